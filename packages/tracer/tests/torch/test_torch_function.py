"""Tensors of subclasses with ``__torch_function__``: each program against eager, by values, types,
attributes and what the classes have seen."""

import gc
import operator
import weakref

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch import nn

BASE = torch.arange(6.0).reshape(2, 3)
SEEN = []


class Plain(torch.Tensor):
    pass


class Derived(Plain):
    pass


class Noting(torch.Tensor):
    """Keeps the names of all functions that it is asked for."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        SEEN.append((func.__name__, [t.__name__ for t in types], len(args), kwargs and [*kwargs]))
        return super().__torch_function__(func, types, args, kwargs)


class Measured(torch.Tensor):
    """Has a unit, which results inherit."""

    unit = "m"
    made = 0

    @staticmethod
    def __new__(cls, data, unit="m"):
        return torch.Tensor._make_subclass(cls, data)

    def __init__(self, data, unit="m"):
        self.unit = unit

    @property
    def twice(self):
        return self * 2

    def scaled(self, k):
        return self * k

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        units = [a.unit for a in args if isinstance(a, Measured)]
        if isinstance(result, Measured) and units:
            result.unit = units[0]
        return result


class Renaming(torch.Tensor):
    """Gives other answers than torch, for properties, too."""

    answers = {torch.Tensor.shape.__get__: "shape", torch.add: "add"}

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.dtype.__get__:
            return "dtype"
        if func in cls.answers:
            return cls.answers[func]
        return super().__torch_function__(func, types, args, kwargs)


class Overriding(torch.Tensor):
    """Has methods and properties of torch's names."""

    def sigmoid(self):
        return super().sigmoid() + 1

    def __mul__(self, other):
        return super().__mul__(other) - 1

    @property
    def ndim(self):
        return super().ndim + 10

    @property
    def shape(self):
        return (*super().shape, 1)

    def __getitem__(self, key):
        return super().__getitem__(key) + 5

    def __len__(self):
        return 77

    def __bool__(self):
        return True

    def __eq__(self, other):
        return 3

    __hash__ = torch.Tensor.__hash__

    def __iter__(self):
        return iter([1, 2])

    def __contains__(self, item):
        return item == 1

    def __call__(self, other):
        return self + other

    def __getattr__(self, name):
        if name == "other":
            return 5
        raise AttributeError(name)


class Unwrapping(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class Refusing(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return NotImplemented


class Table:
    """No tensor, but acts as one for the functions that it has an entry for."""

    entries = {}

    def __init__(self, value):
        self.value = value

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in cls.entries:
            return NotImplemented
        return cls.entries[func](*args, **(kwargs or {}))


def below(x):
    return x.value if isinstance(x, Table) else x


Table.entries[torch.add] = lambda a, b: Table(below(a) + below(b))
Table.entries[torch.Tensor.add] = Table.entries[torch.add]
Table.entries[torch.mean] = lambda a: below(a).mean()


class Special(nn.Parameter):
    tag = 3

    def twice(self):
        return self * 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = Special(torch.ones(3, 3))
        self.linear = nn.Linear(3, 3)
        self.linear.weight = Special(torch.full((3, 3), 0.5))
        self.linear.bias = Special(torch.zeros(3), requires_grad=False)
        self.register_buffer("b", torch.ones(3).as_subclass(Plain))

    def forward(self, x):
        return self.linear(x) @ self.w.twice() + self.b * self.w.tag


LAYER = Layer()


def shown(value):
    """All of a nest that can be compared, without asking any class."""
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(value, torch.Tensor):
            attributes = {k: shown(v) for k, v in value.__dict__.items()}
            facts = (value.dtype, value.shape, value.stride(), value.requires_grad)
            return type(value), value.detach().tolist(), facts, attributes
        if isinstance(value, tuple | list):
            return type(value), [shown(v) for v in value]
        if isinstance(value, Table):
            return Table, shown(value.value)
        return value


def run(fn, args):
    SEEN.clear()
    try:
        result = shown(fn(*args))
    except Exception as e:
        result = type(e), str(e)
    return result, list(SEEN), shown(list(args))


def of(cls):
    return lambda: (BASE.clone().as_subclass(cls),)


def with_plain(cls):
    return lambda: (BASE.clone().as_subclass(cls), BASE.clone())


def leaf():
    return (BASE.clone().requires_grad_(),)


def through_grad(a):
    return torch.autograd.grad((a.as_subclass(Plain) * a).sum(), a)[0]


def in_the_middle(a):
    b = a + 1
    torch.manual_seed(0)
    return b * 2, type(b).__name__


WHOLE = {
    "number on the right": (lambda a: a + 1, of(Plain)),
    "number on the left": (lambda a: (1 + a, 1 - a, 2 / (a + 1), 2**a, 7 // (a + 1)), of(Plain)),
    "unary": (lambda a: (-a, +a, abs(a), ~(a > 1)), of(Plain)),
    "compared": (lambda a: (a == 1, a < 2, 2 > a, a != a), of(Plain)),
    "with plain tensors": (
        lambda a, b: (a + b, b + a, b @ a.T, torch.cat([b, a]), torch.stack((b, a)), b > a),
        with_plain(Plain),
    ),
    "as an index": (lambda a, b: (b[a.long()[0, :2]], a[0], a[:, 1], a[None]), with_plain(Plain)),
    "the derived class first": (lambda a, b: (a + b, b + a, type(b + a).__name__),
        lambda: (BASE.as_subclass(Plain), BASE.as_subclass(Derived))),
    "metadata": (
        lambda a: (a.shape, a.dtype, a.size(0), a.ndim, a.device, len(a), a.requires_grad, a.dim()),
        of(Plain),
    ),
    "properties": (lambda a: (a.T, a.mT, a.real, a.data, a.grad, a.is_leaf), of(Plain)),
    "reductions": (
        lambda a: (a.sum(), a.mean(1, keepdim=True), a.max(1), a.topk(2), a.split(1), a.unbind()),
        of(Plain),
    ),
    "functional": (
        lambda a: (F.relu(a), F.softmax(a, -1), F.layer_norm(a, (3,)), F.linear(a, a), F.gelu(a),
                   F.dropout(a, 0.5, False), F.max_pool1d(a, 2)),
        of(Plain),
    ),
    "in place": (lambda a: (a.add_(1) is a, a.mul_(2), a), of(Plain)),
    "augmented": (lambda a: operator.iadd(a, 2), of(Plain)),
    "items set": (lambda a: (a.__setitem__(0, 5.0), a), of(Plain)),
    "items set in a plain tensor": (lambda a, b: (operator.setitem(b, 0, a[1]), b),
        with_plain(Plain)),
    "the very object": (lambda a: a.contiguous() is a and a.to(torch.float32) is a, of(Plain)),
    "made by a method": (lambda a: a.as_subclass(Plain) + 1, lambda: (BASE,)),
    "made by the class": (lambda a: (Plain(a) * 2, Derived(a)), lambda: (BASE,)),
    "back to a plain one": (lambda a: a.as_subclass(torch.Tensor) * 2, of(Plain)),
    "from one class to another": (lambda a: a.as_subclass(Derived) * 2, of(Plain)),
    "written through a view": (
        lambda a: (a.as_subclass(Plain).add_(1), a * 1), lambda: (BASE.clone(),)
    ),
    "an attribute is set": (lambda a: setattr(a, "note", a + 1) or a, of(Plain)),
    "an attribute of a new one": (
        lambda a: (lambda b: setattr(b, "note", 3) or (b, b.note))(a + 1), of(Plain)
    ),
    "questions": (
        lambda a: (isinstance(a, Plain), isinstance(a, torch.Tensor), type(a), torch.is_tensor(a),
                   torch.overrides.is_tensor_like(a), torch.overrides.has_torch_function((a,)),
                   torch.overrides.has_torch_function_unary(a), a.__class__, hash(a) == hash(a)),
        of(Plain),
    ),
    "iterated": (lambda a: [r * 2 for r in a], of(Plain)),
    "out=": (lambda a, b: (torch.add(a, 1, out=b) is b, b), with_plain(Plain)),
    "operators of torch.ops": (lambda a: torch.ops.aten.add.Tensor(a, a), of(Plain)),
    "functions of operator": (
        lambda a, b: (operator.add(b, a), operator.lt(a, b), operator.neg(a),
                      operator.matmul(a, b.T), operator.getitem(a, 0), pow(a, 2),
                      operator.and_(a > 1, b > 1)),
        with_plain(Plain),
    ),
    "einsum": (lambda a: torch.einsum("ij,kj->ik", a, a), of(Plain)),
    "where": (lambda a: torch.where(a > 1, a, 0.0), of(Plain)),
    "what is handed on": (
        lambda a, b: (a + 1, 1 + a, 1 - a, a == 1, -a, a[0], b + a, a.view(-1), a.shape, a.size(1),
                      torch.add(input=a, other=1), torch.cat([b, a]), F.relu(a), a.sum(dim=0)),
        with_plain(Noting),
    ),
    "what is handed on by Python code": (
        lambda a, b: (F.linear(a, a), F.linear(b, a, b[0, :2]), b - a, a.__rsub__(b), 1 - a,
                      F.layer_norm(a, (3,)), a.split(1, dim=1), torch.einsum("ij->", a), a.norm(),
                      len(a), F.dropout(a, training=False), F.relu(input=a), b.split(a.size(0))),
        with_plain(Noting),
    ),
    "handled by nobody in between": (lambda a: torch.ops.aten.mul.Tensor(a, 2), of(Noting)),
    "inherited attributes": (
        lambda a: (a + 1, a.twice, a.scaled(3), a.unit, (a + 1).unit),
        lambda: (Measured(BASE, "kg"),),
    ),
    "constructed with arguments": (lambda a: Measured(a, "s") + 1, lambda: (BASE,)),
    "other answers": (
        lambda a: (a.shape, a.dtype, torch.add(a, 1), a.size(), a + 1), of(Renaming)
    ),
    "names of torch's": (
        lambda a: (a.sigmoid(), a * 2, 2 * a, a.ndim, a.shape, a[0], len(a), a == 1, list(a),
                   1 in a, a(3), a.other, hasattr(a, "none"), 1 if a else 2),
        of(Overriding),
    ),
    "classes that ask for the dtype": (
        lambda a: [isinstance(a, c) for c in (torch.FloatTensor, torch.LongTensor, nn.Buffer)],
        of(Plain),
    ),
    "unwrapped": (lambda a: (a + 1, a.relu(), a.shape), of(Unwrapping)),
    "switched off": (lambda a: switched_off(a), of(Noting)),
    "an object that acts as a tensor": (
        lambda a, b: (torch.add(a, 1), torch.mean(a), torch.add(b, a), b + a),
        lambda: (Table(BASE), BASE),
    ),
    "one that refuses before one that does not": (
        lambda a, b: torch.add(a, b), lambda: (BASE.as_subclass(Refusing), Table(BASE))
    ),
    "a function of the user's": (lambda a: open_to_overrides(a, 2), of(Noting)),
    "a module": (lambda a: LAYER(a), lambda: (BASE,)),
    "parameters": (
        lambda a: (LAYER.w, LAYER.w.tag, LAYER.w.twice(), isinstance(LAYER.w, nn.Parameter),
                   isinstance(LAYER.w, Special), LAYER.w.is_leaf, LAYER.w.grad),
        lambda: (BASE,),
    ),
    "with a history": (lambda a: a.as_subclass(Plain) * 2, leaf),
    "without gradients": (torch.no_grad()(lambda a: a.as_subclass(Plain) * 2), leaf),
}  # fmt: skip
BROKEN = {
    "data": (lambda a: 1 if a.sum() > 3 else a, of(Plain)),
    "text": (lambda a: (str(a), a + 1), of(Plain)),
    "gradients inside": (through_grad, leaf),
    "in the middle": (in_the_middle, of(Measured)),
    "nobody takes it": (lambda a: a + 1, of(Refusing)),
    "a leaf by setting": (lambda a: a.requires_grad_() * 2, of(Plain)),
    "content by setting": (lambda a: (setattr(a, "data", a.data + 1), a), of(Plain)),
    "a method, not a class method": (lambda a, b: torch.add(a, b), lambda: (BOUND, BASE)),
}


def switched_off(a):
    with torch._C.DisableTorchFunctionSubclass():
        b = a + 1
        enabled = torch._C._is_torch_function_enabled()
    return b, enabled, a * 2


def open_to_overrides(a, b):
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(open_to_overrides, (a, b), a, b=b)
    return a * b + 1


class Bound:
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return len(types)


BOUND = Bound()


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name, capture):
    fn, args = WHOLE[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for _ in range(2):
        assert run(compiled, args()) == run(fn, args())
    assert capture.n <= 1
    for graph, inputs in zip(capture.graphs, capture.inputs, strict=True):
        assert all(type(x) in (torch.Tensor, nn.Parameter, Special) for x in inputs), graph


@pytest.mark.filterwarnings("ignore:Defining your")
@pytest.mark.parametrize("name", BROKEN)
def test_breaks_are_right(name, capture):
    fn, args = BROKEN[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        assert run(compiled, args()) == run(fn, args())


def test_switched_off_around_the_call(capture):
    compiled = torchsmith_tracer.compile(lambda a: a + 1, backend=capture)
    x = BASE.as_subclass(Noting)
    for _ in range(2):
        SEEN.clear()
        assert type(compiled(x)) is Noting
        assert [name for name, *_ in SEEN] == ["add"]
        SEEN.clear()
        with torch._C.DisableTorchFunctionSubclass():
            assert type(compiled(x)) is torch.Tensor
        assert SEEN == []
    assert capture.n == 2


def test_gradients_reach_the_callers_leaves(capture):
    compiled = torchsmith_tracer.compile(lambda a, m: (m(a) * a).sum(), backend=capture)
    grads = []
    for fn in (lambda a, m: (m(a) * a).sum(), compiled):
        x = BASE.clone().as_subclass(Plain).requires_grad_()
        LAYER.zero_grad()
        fn(x, LAYER).backward()
        grads.append((x.grad, LAYER.w.grad.clone(), LAYER.linear.weight.grad.clone()))
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
    assert capture.n == 1


# --- between calls -------------------------------------------------------------------------------


class Changing(torch.Tensor):
    factor = 2
    fixed = [1, 2]

    def grown(self):
        return self + self.factor

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs)


def noisy(cls, func, types, args=(), kwargs=None):
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **(kwargs or {})) + 100


@pytest.mark.parametrize(
    "change",
    [
        lambda m, x: m.setattr(Changing, "factor", 5),
        lambda m, x: m.setattr(Changing, "grown", lambda self: self * 10),
        lambda m, x: m.setattr(Changing, "__torch_function__", classmethod(noisy)),
        lambda m, x: m.setattr(Changing, "__add__", lambda a, b: a * 7, raising=False),
        lambda m, x: m.setattr(Changing, "note", property(lambda self: 9), raising=False),
        lambda m, x: setattr(x, "factor", 8),
        lambda m, x: setattr(x, "grown", lambda: x * 4),
        lambda m, x: Changing.fixed.append(3),
        lambda m, x: setattr(x, "__class__", Plain),
    ],
)
def test_what_changes_between_calls(change, monkeypatch, capture):
    def fn(x):
        note = getattr(x, "note", 0)
        return x.grown() if hasattr(x, "grown") else x, note, list(getattr(x, "fixed", ()))

    monkeypatch.setattr(Changing, "fixed", [1, 2])
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    x = BASE.clone().as_subclass(Changing)
    assert shown(compiled(x)) == shown(fn(x))
    change(monkeypatch, x)
    assert shown(compiled(x)) == shown(fn(x))


def test_a_class_gets_its_hook_back(monkeypatch, capture):
    compiled = torchsmith_tracer.compile(lambda a: a * 2, backend=capture)
    x = BASE.clone().as_subclass(Changing)
    hooks = (
        torch._C._disabled_torch_function_impl,
        classmethod(noisy),
        Changing.__torch_function__,
    )
    for hook in hooks * 2:
        monkeypatch.setattr(Changing, "__torch_function__", hook)
        assert shown(compiled(x)) == shown(x * 2)


def test_classes_alternate_at_one_argument(capture):
    compiled = torchsmith_tracer.compile(lambda a: a * 2, backend=capture)
    for _ in range(2):
        for cls in (torch.Tensor, Plain, Derived, Unwrapping):
            x = BASE.as_subclass(cls)
            assert shown(compiled(x)) == shown(x * 2)
    assert capture.n == 4


def test_sizes_become_symbols(capture):
    compiled = torchsmith_tracer.compile(lambda a: (a * a.shape[0]).sum(0), backend=capture)
    for n in (3, 4, 5, 6):
        x = torch.ones(n, 2).as_subclass(Plain)
        assert shown(compiled(x)) == shown((x * n).sum(0))
    assert capture.n == 2


def test_the_same_object_twice(capture):
    def fn(a, b):
        a.add_(1)
        return a * b, a is b

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        for same in (False, True):
            x = BASE.clone().as_subclass(Plain)
            y = BASE.clone().as_subclass(Plain)
            a, b = BASE.clone().as_subclass(Plain), BASE.clone().as_subclass(Plain)
            ours = compiled(x, x if same else y)
            assert shown((ours, x, y)) == shown((fn(a, a if same else b), a, b))


def test_storage_shared_with_another_argument(capture):
    def fn(a, b):
        a.add_(1)
        return b * 2

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        b = BASE.clone()
        assert torch.equal(compiled(b.as_subclass(Plain), b), (BASE + 1) * 2)


def test_nothing_is_kept_alive(capture):
    compiled = torchsmith_tracer.compile(
        lambda a, b: (a + b, a.as_subclass(Derived)), backend=lambda gm, inputs: gm.forward
    )
    x, y = BASE.clone().as_subclass(Plain), BASE.clone().as_subclass(Plain).requires_grad_()
    refs = [weakref.ref(x), weakref.ref(y), weakref.ref(compiled(x, y)[0])]
    del x, y
    gc.collect()
    assert [r() for r in refs] == [None, None, None]


class Handed:
    """What acts as a tensor and gives the function that it is asked about."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return func


@pytest.mark.parametrize(
    "fn",
    [
        lambda a, b: (a == b, b == a, a != b, a < b, torch.eq(a, b), a.eq(b)),
        lambda a, b: torch.tensor(b),
        lambda a, b: torch.as_tensor(b),
    ],
)
def test_what_an_object_that_acts_as_a_tensor_is_asked(agree, fn):
    agree(fn, BASE, Handed())


@pytest.mark.filterwarnings("ignore:To copy construct")
def test_a_tensor_of_data_is_no_object_of_the_class(capture):
    fn = lambda a: (torch.tensor(a), torch.as_tensor(a), torch.asarray(a))
    x = BASE.as_subclass(Noting)
    SEEN.clear()
    found = torchsmith_tracer.compile(fn, backend=capture)(x)
    assert [type(t) for t in found] == [torch.Tensor, Noting, Noting]
    assert found[1] is found[2] is x
    assert SEEN == []
