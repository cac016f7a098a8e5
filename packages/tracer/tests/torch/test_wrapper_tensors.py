"""Tensors with ``__torch_dispatch__`` over inner tensors, jagged ones among them, and tensors of
kinds that are not traced: each program against eager."""

import gc
import re
import weakref

import pytest
import torch
import torch.nn.functional as F
import torchsmith_tracer
from torch import nn
from torch.utils import _pytree as pytree

BASE = torch.arange(12.0).reshape(4, 3)
SEEN = []


class Two(torch.Tensor):
    """Two tensors of one shape; every operator runs on both."""

    scale = 2

    @staticmethod
    def __new__(cls, a, b, note="", size=None, stride=None):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            a.shape if size is None else size,
            strides=a.stride() if stride is None else stride,
            dtype=a.dtype,
            device=a.device,
            requires_grad=a.requires_grad,
        )

    def __init__(self, a, b, note="", size=None, stride=None):
        self.a, self.b, self.note = a, b, note

    def __repr__(self):
        return f"Two({self.a}, {self.b})"

    def __tensor_flatten__(self):
        return ["a", "b"], (self.note,)

    @classmethod
    def __tensor_unflatten__(cls, inner, context, size, stride):
        return cls(inner["a"], inner["b"], context[0], size, stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        notes = [x.note for x in pytree.tree_leaves(args) if isinstance(x, Two)]

        def on(part):
            picked = pytree.tree_map_only(Two, lambda x: getattr(x, part), (args, kwargs or {}))
            return func(*picked[0], **picked[1])

        flat, spec = pytree.tree_flatten(on("a"))
        both = zip(flat, pytree.tree_leaves(on("b")), strict=True)
        made = [cls(x, y, notes[0]) if isinstance(x, torch.Tensor) else x for x, y in both]
        out = pytree.tree_unflatten(made, spec)
        return args[0] if func._schema.name.endswith("_") else out

    @property
    def total(self):
        return self.a + self.b

    def scaled(self, k=1):
        return self * (k * self.scale)


class Noted(Two):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {})) if func is not torch.add else "added"


class Bare(torch.Tensor):
    """Dispatches, but cannot be taken apart."""

    @staticmethod
    def __new__(cls, a):
        return torch.Tensor._make_wrapper_subclass(cls, a.shape, dtype=a.dtype)

    def __init__(self, a):
        self.a = a

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*[x.a if isinstance(x, Bare) else x for x in args], **(kwargs or {}))


class Plain(torch.Tensor):
    pass


def two(n=4, cls=Two):
    return cls(BASE[:n].clone(), torch.ones(n, 3), "m")


def jagged(*lengths, grad=False):
    parts = [torch.arange(4.0 * n).reshape(n, 4) for n in lengths or (2, 3)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=grad)


def shown(value):
    with torch._C.DisableTorchFunctionSubclass():
        if isinstance(value, Two):
            rest = {k: v for k, v in value.__dict__.items() if k not in "ab"}
            facts = (value.shape, value.stride(), value.dtype, value.requires_grad)
            return type(value), shown(value.a), shown(value.b), facts, rest
        if isinstance(value, Bare):
            return Bare, shown(value.a)
        if isinstance(value, torch.Tensor) and value.is_nested and value.layout is torch.jagged:
            return type(value), value._ragged_idx, shown(value._values), shown(value._offsets)
        if isinstance(value, torch.Tensor) and (value.is_nested or not is_dense(value)):
            return str(value)
        if isinstance(value, torch.Tensor):
            facts = (value.dtype, value.shape, value.stride(), value.requires_grad)
            return type(value), value.detach().tolist(), facts
        if isinstance(value, tuple | list):
            return type(value), [shown(v) for v in value]
        return value


def is_dense(tensor):
    return tensor.layout is torch.strided and not tensor.is_quantized


def run(fn, args):
    try:
        result = shown(fn(*args))
    except Exception as e:
        result = type(e), re.sub(r"j\d+", "j", str(e))  # torch numbers ragged sizes
    return result, shown(list(args))


LINEAR = nn.Linear(3, 3)
LINEAR.weight = nn.Parameter(Two(torch.ones(3, 3), torch.full((3, 3), 2.0)))
LAST = nn.Linear(4, 5)


def of(cls):
    return lambda: (two(cls=cls),)


def with_plain():
    return two(), BASE.clone()


WHOLE = {
    "operators": (lambda a: (a + 1, 2 - a, -a, a > 2, a.t() @ a, a[0], a[:, 1]), of(Two)),
    "with plain tensors": (lambda a, b: (a + b, b + a, b @ a.t()), with_plain),
    "inner tensors": (lambda a: (a.a + 1, (a * 2).b, a.total, (a + 1).total), of(Two)),
    "inner identity": (lambda a: (a.a is a.a, (b := a + 1).a is b.a), of(Two)),
    "methods": (lambda a: (a.scaled(), a.scaled(k=3), a.note, a.scale), of(Two)),
    "attributes": (lambda a: (setattr(a, "mark", 3), a.mark, a, hasattr(a, "x")), of(Two)),
    "metadata": (
        lambda a: (a.shape, a.size(0), a.dim(), a.dtype, a.device, a.stride(), a.numel(), len(a)),
        of(Two),
    ),
    "questions": (
        lambda a: (isinstance(a, Two), isinstance(a, torch.Tensor), type(a + 1)), of(Two)
    ),
    "made": (lambda a: (Two(a, a * 2) + 1, Two(a, a, note="s").note), lambda: (BASE,)),
    "in place": (lambda a: (a.add_(1) is a, a.a * 1, a), of(Two)),
    "inner in place": (lambda a: (a.a.add_(1), a * 1), of(Two)),
    "views": (lambda a: (a.view(-1), a.T, a.unsqueeze(0), a.to(torch.float64)), of(Two)),
    "as a weight": (lambda a: LINEAR(a), lambda: (BASE,)),
    "the class has both hooks": (lambda a: (a + 1, torch.add(a, 1), a * 2), of(Noted)),
    "jagged": (
        lambda a: (a * 2 + 1, F.relu(a), LAST(a), a.sum(-1), a.mean(1)), lambda: (jagged(),)
    ),
    "jagged content": (
        lambda a: (a.values() * 2, a.offsets(), a.size(0), a.size(2), a.dim(), a.is_nested,
                   a._values.sum(), a.to_padded_tensor(0.0), a.transpose(1, 2)),
        lambda: (jagged(),),
    ),
    "jagged sizes": (
        lambda a: (a.view(a.size(0), a.size(1), 2, 2), a.size(1) == a.size(1)), lambda: (jagged(),)
    ),
    "jagged together": (lambda a, b: (a + b, a.size(1) == b.size(1)),
        lambda: ((a := jagged()), a * 2)),
    "jagged apart": (lambda a, b: a * 2 if a.size(1) == b.size(1) else b * 3,
        lambda: (jagged(), jagged(2, 3))),
    "jagged made": (
        lambda v, o: torch.nested.nested_tensor_from_jagged(v, o) * 2,
        lambda: (torch.arange(10.0).reshape(5, 2), torch.tensor([0, 2, 5])),
    ),
}  # fmt: skip
BROKEN = {
    "data": (lambda a: (1 if a.a.sum() > 3 else 2, a * 2), of(Two)),
    "inner replaced": (lambda a: (setattr(a, "a", a.b + 1), a * 2), of(Two)),
    "switched off": (lambda a: switched_off(a), of(Noted)),
    "two classes": (lambda a, b: torch.mul(a, b), lambda: (two(), BASE.as_subclass(Plain))),
    "no way to take it apart": (lambda a: (a + 1, 2), lambda: (Bare(BASE),)),
    "jagged split": (lambda a: [t * 2 for t in a.unbind()], lambda: (jagged(),)),
    "jagged that do not match": (lambda a, b: a + b, lambda: (jagged(), jagged(1, 2))),
}
EAGER = {
    "strided nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed": lambda: torch.eye(3).to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "mkldnn": lambda: torch.ones(3).to_mkldnn(),
    "bare": lambda: Bare(BASE),
}


def switched_off(a):
    with torch._C.DisableTorchFunctionSubclass():
        return torch.add(a, 1)


@pytest.mark.parametrize("name", WHOLE)
def test_one_graph(name, capture):
    fn, args = WHOLE[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture, fullgraph=True)
    for _ in range(2):
        assert run(compiled, args()) == run(fn, args())
    assert capture.n <= 1


@pytest.mark.parametrize("name", BROKEN)
def test_breaks_are_right(name, capture):
    fn, args = BROKEN[name]
    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        assert run(compiled, args()) == run(fn, args())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", EAGER)
def test_other_kinds_run_eagerly_and_say_so(name, capture):
    def fn(a):
        return a.clone(), 2

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        assert run(compiled, (EAGER[name](),)) == run(fn, (EAGER[name](),))
    assert capture.n == 0
    found = torchsmith_tracer.explain(fn)(EAGER[name]()).breaks
    assert found and all(b.advice for b in found)


def test_gradients():
    def fn(x, w):
        return (F.linear(x * 2, w) ** 2).sum()

    grads = []
    for call in (fn, torchsmith_tracer.compile(fn, backend="eager", fullgraph=True)):
        x, w = two().requires_grad_(), two(3).requires_grad_()
        call(x, w).backward()
        plain = BASE.clone().requires_grad_()
        call(plain, w).backward()
        grads.append([shown(x.grad), shown(w.grad), shown(plain.grad)])
    assert grads[0] == grads[1]


def test_gradients_of_jagged_tensors():
    def fn(x):
        return (LAST(x) * 2).values()

    grads = []
    for call in (fn, torchsmith_tracer.compile(fn, backend="eager", fullgraph=True)):
        x = jagged(grad=True)
        call(x).sum().backward()
        grads.append(shown(x.grad))
    assert grads[0] == grads[1]


# --- between calls -------------------------------------------------------------------------------


def test_sizes_become_symbols(capture):
    compiled = torchsmith_tracer.compile(lambda a: (a * a.shape[0]).sum(0), backend=capture)
    for n in (2, 3, 4, 2):
        assert shown(compiled(two(n))) == shown((two(n) * n).sum(0))
    assert capture.n == 2


def test_ragged_lengths_become_symbols(capture):
    compiled = torchsmith_tracer.compile(lambda a: (LAST(a) * 2).mean(1), backend=capture)
    for lengths in ((2, 3), (4, 3), (5, 6), (7, 7), (2, 9)):
        a = jagged(*lengths)
        assert shown(compiled(a)) == shown((LAST(a) * 2).mean(1))
    assert capture.n <= 3


@pytest.mark.parametrize(
    "change",
    [
        lambda m, x: setattr(x, "a", x.a * 3),
        lambda m, x: setattr(x, "note", "s"),
        lambda m, x: setattr(x, "b", x.a),
        lambda m, x: x.a.add_(1),
        lambda m, x: m.setattr(Two, "scale", 5),
        lambda m, x: m.setattr(Two, "scaled", lambda self: self * 10),
        lambda m, x: m.setattr(Two, "total", property(lambda self: self.a * 7)),
        lambda m, x: m.setattr(Two, "__add__", lambda a, b: a.a * 7, raising=False),
        lambda m, x: m.setattr(Two, "__torch_dispatch__", classmethod(lambda *a, **k: BASE)),
        lambda m, x: m.setattr(
            Two, "__torch_function__", classmethod(lambda *a, **k: 5), raising=False
        ),
    ],
)
def test_what_changes_between_calls(change, monkeypatch, capture):
    def fn(x):
        return x.scaled(), x.total, x + 1, x.note

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    x = two()
    assert run(compiled, (x,)) == run(fn, (x,))
    change(monkeypatch, x)
    assert run(compiled, (x,)) == run(fn, (x,))


def test_inner_dtype_and_class(capture):
    compiled = torchsmith_tracer.compile(lambda a: a * 2, backend=capture)
    half = Two(BASE.half(), BASE.half())
    nested = Two(two(), two())
    for x in (two(), half, BASE, Noted(BASE, BASE), nested, two(), half):
        assert shown(compiled(x)) == shown(x * 2)
    assert capture.n == 5


def test_inner_tensors_shared_with_another_argument(capture):
    def fn(x, y):
        x.mul_(2)
        return y + 1, x.a is y

    compiled = torchsmith_tracer.compile(fn, backend=capture)
    for _ in range(2):
        for shared in (False, True):
            x, u = two(), two()
            y, v = (x.a, u.a) if shared else (BASE.clone(), BASE.clone())
            assert shown((compiled(x, y), x)) == shown((fn(u, v), u))


def test_nothing_is_kept_alive():
    compiled = torchsmith_tracer.compile(lambda a: a * 2, backend=lambda gm, inputs: gm.forward)
    x, y = two(), jagged()
    refs = [weakref.ref(v) for v in (x, x.a, x.b, compiled(x), y, y._values, compiled(y))]
    del x, y
    gc.collect()
    assert [r() for r in refs] == [None] * len(refs)


@pytest.mark.parametrize("training", [True, False])
def test_dropout_draws_for_jagged_tensors_at_rate_zero_where_eager_does(training):
    def dropped(x):
        return F.dropout(x, 0.0, training)

    def draws(call):
        torch.manual_seed(0)
        return shown(call(jagged())), torch.rand(()).item()

    compiled = torchsmith_tracer.compile(dropped, fullgraph=True, backend="eager")
    assert draws(compiled) == draws(dropped)
