"""Checkers that ask whether anything has changed: they say what the full check says."""

import gc
import sys
import threading
import types
import weakref
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torchsmith_guards import (
    GLOBAL_STATE,
    AttrSource,
    ClassDictSource,
    ClosureSource,
    DefaultsSource,
    FunctionSource,
    GlobalState,
    Guard,
    GuardKind,
    GuardSet,
    ItemSource,
    LocalSource,
    NamespaceSource,
    PinnedSource,
    TensorSpec,
)
from torchsmith_guards._src.guards import tensor_spec
from torchsmith_guards._src.unchanged import native

pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="this Python does not stamp its dicts"
)
K = GuardKind
SELF = LocalSource("self")
X = LocalSource("x")


class Watched:
    """A checker with the function that it asks, and how often that was of use."""

    def __init__(self, guards, params=("self",), bind=None):
        self.checker = GuardSet(guards).compile(params, bind)
        space = self.checker.check.__globals__
        self.watcher = space["check_and_remember"].__self__

    def __call__(self, *args):
        return self.checker.check(*args)

    @property
    def watches(self):
        return {} if self.watcher.plan is None else self.watcher.plan.watches

    def warm(self, *args, rounds=3):
        """Check until the state of ``args`` is remembered."""
        native.library()
        assert native.shared.settled.wait(60)
        assert native.library() is not None, native.shared.problem
        for _ in range(rounds):
            assert self(*args), self.checker.explain(*args)
        assert self.watches, "nothing is remembered"
        return self

    def answers(self, *args):
        """True or False as the check says, and whether the full check was needed for that."""
        calls = []
        full = self.watcher.full
        self.watcher.full = lambda *a: calls.append(a) or full(*a)
        try:
            return self(*args), bool(calls)
        finally:
            self.watcher.full = full


class Block(nn.Module):
    kind = "block"

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.scale = 0.5
        self.shape = (2, 2)
        self.names = ["a", "b"]
        self.options = {1, 2}
        self.tables = {"a": 1}
        self.helper = helper
        self.parts = [nn.Identity(), nn.Identity()]

    def forward(self, x):
        return x


def helper(x, y=1):
    return x


class Slotted:
    __slots__ = ("__weakref__", "value")


def model(count=8):
    return nn.Sequential(*[Block() for _ in range(count)])


def facts(module, root=SELF):
    """Guards of many kinds on all modules of a tree."""
    out = []
    for name, child in module.named_modules():
        source = root
        for part in filter(None, name.split(".")):
            source = ItemSource(AttrSource(source, "_modules"), part)

        def attr(name, source=source):
            return AttrSource(source, name)

        out += [
            Guard(source, K.TYPE, type(child)),
            Guard(attr("training"), K.CONSTANT, child.training),
            Guard(attr("_forward_hooks"), K.EMPTY),
            Guard(attr("__dict__"), K.DICT_CONTAINS, ("forward", False)),
            Guard(attr("_modules"), K.DICT_KEYS, (dict, tuple(child._modules))),
        ]
        if "forward" in vars(type(child)):
            forward = ItemSource(ClassDictSource(type(child)), "forward")
            out.append(Guard(forward, K.CODE, type(child).forward.__code__))
        for table in ("_parameters", "_buffers"):
            for key, tensor in getattr(child, table).items():
                if tensor is not None:
                    item = ItemSource(attr(table), key)
                    out.append(Guard(item, K.TENSOR, TensorSpec.of(tensor)))
        if isinstance(child, Block):
            out += [
                Guard(AttrSource(PinnedSource(type(child)), "kind"), K.CONSTANT, "block"),
                Guard(attr("scale"), K.CONSTANT, child.scale),
                Guard(attr("shape"), K.LENGTH, (tuple, 2)),
                Guard(ItemSource(attr("shape"), 1), K.CONSTANT, 2),
                Guard(attr("names"), K.LENGTH, (list, 2)),
                Guard(ItemSource(attr("names"), 1), K.CONSTANT, "b"),
                Guard(attr("options"), K.CONSTANT, {1, 2}),
                Guard(ItemSource(attr("tables"), "a"), K.CONSTANT, 1),
                Guard(attr("helper"), K.CODE, helper.__code__),
                Guard(AttrSource(attr("helper"), "__defaults__"), K.CONSTANT, (1,)),
                Guard(attr("parts"), K.LENGTH, (list, 2)),
                Guard(ItemSource(attr("parts"), 1), K.TYPE, nn.Identity),
                Guard(AttrSource(ItemSource(attr("parts"), 1), "training"), K.CONSTANT, True),
            ]
    return out


def other(x, y=1):
    return y


def swap(obj, name, value):
    setattr(obj, name, value)


KEPT = []  # so that an address is not free for another object


def keep(obj):
    KEPT[:] = [obj]
    return obj


# What is done to a block, and whether the guards still hold after it.
CHANGES = {
    "nothing": (lambda b: None, True),
    "an attribute": (lambda b: swap(b, "scale", 0.25), False),
    "an attribute, replaced by an equal value": (lambda b: swap(b, "scale", float("0.5")), True),
    "an attribute, replaced by an equal value of another type": (
        lambda b: swap(b, "training", 1),
        False,
    ),
    "an attribute, deleted": (lambda b: delattr(b, "scale"), False),
    "an attribute that nothing asks for": (lambda b: swap(b, "fresh", 1), True),
    "a tuple": (lambda b: swap(b, "shape", (2, 3)), False),
    "a tuple, replaced by an equal one": (lambda b: swap(b, "shape", (2, 2)), True),
    "an item of a list": (lambda b: b.names.__setitem__(1, "c"), False),
    "an item of a list that nothing asks for": (lambda b: b.names.__setitem__(0, "c"), True),
    "the length of a list": (lambda b: b.names.append("c"), False),
    "a list, replaced by an equal one": (lambda b: swap(b, "names", ["a", "b"]), True),
    "a list, emptied and filled again": (lambda b: (b.names.clear(), b.names.extend("ab")), True),
    "a module in a list": (lambda b: b.parts.__setitem__(1, nn.Dropout()), False),
    "an equal module in a list": (lambda b: b.parts.__setitem__(1, nn.Identity()), True),
    "an attribute of a module in a list": (lambda b: b.parts[1].eval(), False),
    "a list of modules, reversed": (lambda b: b.parts.reverse(), True),
    "the length of a list whose items live on": (lambda b: keep(b.parts.pop()), False),
    "a list that has moved in memory": (
        lambda b: (
            keep(b.parts[1]),
            b.parts.extend([None] * 1000),
            b.parts.__delitem__(slice(2, None)),
            b.parts.__setitem__(1, nn.Dropout()),
        ),
        False,
    ),
    "a set": (lambda b: b.options.add(3), False),
    "a set, replaced by an equal one": (lambda b: swap(b, "options", {2, 1}), True),
    "an item of a dict": (lambda b: b.tables.__setitem__("a", 2), False),
    "an item of a dict, deleted": (lambda b: b.tables.pop("a"), False),
    "a dict, replaced by an equal one": (lambda b: swap(b, "tables", {"a": 1}), True),
    "a dict, replaced by another one": (lambda b: swap(b, "tables", OrderedDict(a=2)), False),
    "a hook": (lambda b: b.linear.register_forward_hook(print), False),
    "a hook, removed again": (lambda b: b.register_forward_hook(print).remove(), True),
    "a method of the instance": (lambda b: swap(b, "forward", print), False),
    "a submodule": (lambda b: swap(b, "linear", nn.Linear(2, 2, bias=False)), False),
    "a submodule of another class": (lambda b: swap(b, "linear", nn.Identity()), False),
    "an equal submodule": (lambda b: swap(b, "linear", nn.Linear(2, 2)), True),
    "a submodule, deleted": (lambda b: delattr(b, "linear"), False),
    "a new submodule": (lambda b: b.add_module("late", nn.Identity()), False),
    "submodules in another order": (
        lambda b: b._modules.__setitem__("linear", b._modules.pop("linear")),
        False,
    ),
    "the class": (lambda b: swap(b, "__class__", nn.Sequential), False),
    "the instance dict, replaced by an equal one": (
        lambda b: swap(b, "__dict__", dict(b.__dict__)),
        True,
    ),
    "the instance dict, replaced by another one": (
        lambda b: swap(b, "__dict__", {**b.__dict__, "scale": 2.0}),
        False,
    ),
    "the instance dict, replaced while the old one lives on": (
        lambda b: swap(b, "__dict__", {**keep(b.__dict__), "scale": 2.0}),
        False,
    ),
    "the instance dict, emptied": (lambda b: b.__dict__.clear(), False),
    "a parameter": (lambda b: swap(b.linear, "weight", nn.Parameter(torch.ones(3, 2))), False),
    "an equal parameter": (
        lambda b: swap(b.linear, "weight", nn.Parameter(torch.ones(2, 2))),
        True,
    ),
    "a parameter, through its data": (
        lambda b: swap(b.linear.weight, "data", torch.ones(3, 2)),
        False,
    ),
    "a parameter, through equal data": (
        lambda b: swap(b.linear.weight, "data", torch.ones(2, 2)),
        True,
    ),
    "strides of a parameter": (
        lambda b: swap(b.linear.weight, "data", torch.ones(2, 2).t()),
        False,
    ),
    "a lazily negated parameter": (
        lambda b: swap(b.linear.weight, "data", torch._neg_view(torch.ones(2, 2))),
        False,
    ),
    "a parameter's values": (lambda b: b.linear.weight.data.fill_(3), True),
    "a parameter's gradient": (lambda b: swap(b.linear.weight, "grad", torch.ones(2, 2)), True),
    "requires_grad": (lambda b: b.linear.bias.requires_grad_(False), False),
    "a parameter's class": (
        lambda b: swap(b.linear.weight, "__class__", type("Own", (nn.Parameter,), {})),
        False,
    ),
    "a parameter, swapped": (
        lambda b: torch.utils.swap_tensors(b.linear.weight, nn.Parameter(torch.ones(4))),
        False,
    ),
    "a parameter, set to None": (lambda b: swap(b.linear, "weight", None), False),
    "a buffer": (lambda b: swap(b.norm, "running_mean", torch.ones(3)), False),
    "a buffer, resized": (lambda b: b.norm.running_mean.resize_(5), False),
    "a buffer, in place": (lambda b: b.norm.running_mean.add_(1), True),
    "the mode": (lambda b: b.eval(), False),
    "the dtype": (lambda b: b.to(torch.float64), False),
    "the device": (lambda b: b.to("meta"), False),
    "a state dict": (lambda b: b.load_state_dict(Block().state_dict()), True),
    "a state dict, assigned": (
        lambda b: b.load_state_dict(Block().double().state_dict(), assign=True),
        False,
    ),
}


def test_what_is_unchanged_is_asked_for_and_not_checked_again():
    module = model()
    check = Watched(facts(module)).warm(module)
    assert check.answers(module) == (True, False)
    assert len(check.watcher.plan.covered) > 0.8 * len(check.checker.guards)


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_like_in_full(change, place):
    apply, holds = CHANGES[change]
    module = model()
    check = Watched(facts(module)).warm(module)
    apply(module[place])
    assert check(module) is check.watcher.full(module) is holds
    assert check(module) is holds, "the same answer once more"
    for _ in range(6):  # and after the new state has been remembered
        assert check(module) is holds


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (Block, "forward", lambda self, x: x + 1),
        (Block, "kind", "other"),
        (Block, "scale", property(lambda self: 2.0)),
        (Block, "training", property(lambda self: False)),
        (Block, "__getattribute__", lambda self, name: object.__getattribute__(self, name)),
        (nn.Linear, "forward", lambda self, x: x),
        (nn.Module, "scale", property(lambda self: 2.0)),
        (helper, "__code__", other.__code__),
        (helper, "__defaults__", (2,)),
    ],
)
def test_a_change_of_a_class_or_function_is_seen(owner, name, value):
    module = model(3)
    check = Watched(facts(module)).warm(module)
    missing = object()
    before = vars(owner).get(name, missing) if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        answer, in_full = check.answers(module)
        assert answer is check.watcher.full(module)
        assert in_full or not answer
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
    assert check(module)


def test_bases_of_a_class_are_part_of_what_is_compared():
    class Left(nn.Module):
        depth = 1

    class Right(nn.Module):
        depth = 2

    class Own(Left):
        pass

    module = nn.Sequential(*[Own() for _ in range(20)])
    guards = facts(module)
    for n in range(20):
        part = ItemSource(AttrSource(SELF, "_modules"), str(n))
        guards.append(Guard(AttrSource(part, "depth"), K.CONSTANT, 1))
    check = Watched(guards).warm(module)
    Own.__bases__ = (Right,)
    assert not check(module)


def test_modules_that_share_a_checker_are_told_apart():
    modules = [model(4) for _ in range(5)]
    check = Watched(facts(modules[0]))
    for module in modules:
        check.warm(module, rounds=4)
    assert len(check.watches) == 5
    modules[2][1].scale = 3.0
    assert [check.answers(m) for m in modules] == [
        (True, False),
        (True, False),
        (False, True),
        (True, False),
        (True, False),
    ]


def test_nothing_is_kept_alive_and_nothing_takes_a_dead_module_s_place():
    module = model(4)
    check = Watched(facts(module)).warm(module)
    parts = [weakref.ref(m) for m in module.modules()]
    parts += [weakref.ref(p) for p in module.parameters()]
    removed = weakref.ref(module[3].linear)
    module[3].linear = nn.Linear(2, 2)
    gc.collect()
    assert removed() is None, "before any further check"
    assert check(module)
    del module
    gc.collect()
    assert [p() for p in parts] == [None] * len(parts)
    assert check.watches == {}
    for _ in range(20):  # some of these are likely where the first one was
        again = model(4)
        again[2].scale = 7.0
        assert not check(again)


def test_what_changes_at_every_call_is_left_to_the_generated_code():
    module = model(8)
    check = Watched(facts(module)).warm(module)
    for n in range(200):
        module.calls = n
        assert check(module)
    module.calls = -1
    assert check.answers(module) == (True, False)
    module[3].scale = 9.0
    assert not check(module)


class Batch:
    """What a loader makes anew for each call."""

    def __init__(self, n):
        self.size, self.kind, self.names = n, "batch", ("a", "b")


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("first", ["batch", "self"])
def test_an_argument_that_is_another_one_each_time_does_not_hide_the_others(kept, first):
    module, batches = model(8), []
    batch = LocalSource("batch")
    guards = facts(module) + [
        Guard(AttrSource(batch, name), K.CONSTANT, value)
        for name, value in (("size", 4), ("kind", "batch"), ("names", ("a", "b")))
    ]
    guards = guards if first == "self" else guards[::-1]
    args = lambda b: (b, module) if first == "batch" else (module, b)  # noqa: E731
    check = Watched(guards, ("batch", "self") if first == "batch" else ("self", "batch"))
    check.warm(*args(Batch(4)), rounds=4)
    for _ in range(100):
        each = Batch(4)
        assert check(*args(each))
        batches += [each] * kept
    assert check.answers(*args(Batch(4))) == (True, False)
    assert not check(*args(Batch(5)))
    module[3].scale = 9.0
    assert not check(*args(Batch(4)))


def test_a_checker_is_not_rewritten_for_ever():
    module = model(30)
    check = Watched(facts(module)).warm(module)
    for n in range(3000):
        module[n % 30].calls = n
        assert check(module)
    assert check.watcher._plans <= 10
    module[3].scale = 9.0
    assert not check(module)


def test_an_argument_is_checked_again_each_time():
    module, x = model(), torch.ones(2)
    guards = [*facts(module), Guard(X, K.TENSOR, TensorSpec.of(x))]
    check = Watched(guards, ("self", "x")).warm(module, x)
    assert check.answers(module, torch.zeros(2)) == (True, False)
    assert check(module, torch.zeros(3)) is False
    assert check(module, None) is False


def test_torch_s_state_is_checked_again_each_time():
    module = model()
    guards = [*facts(module), Guard(GLOBAL_STATE, K.GLOBAL_STATE, GlobalState.capture())]
    check = Watched(guards).warm(module)
    with torch.no_grad():
        assert not check(module)
    assert check.answers(module) == (True, False)


def test_a_model_in_a_global_variable_or_a_cell():
    module = model()
    space = {"net": module, "other": 1}

    def function():
        return module

    for source, bind in (
        (ItemSource(NamespaceSource(), "net"), {"G": space}),
        (ClosureSource(FunctionSource(), 0), {"F": function}),
    ):
        check = Watched(facts(module, source), (), bind).warm()
        assert check.answers() == (True, False)
        module[2].scale = 2.0
        assert not check()
        module[2].scale = 0.5
        for n in range(40):
            space["other"] = n
            assert check()
        kept = module
        space["net"] = module = nn.Identity()
        assert not check()
        space["net"] = module = kept
        assert check()


def test_contents_of_cells_of_functions():
    def make(inner):
        def forward(self, x):
            return inner(x)

        return forward

    class Own(Block):
        forward = make(helper)

    module = nn.Sequential(*[Own() for _ in range(20)])
    content = ClosureSource(ItemSource(ClassDictSource(Own), "forward"), 0)
    guards = [*facts(module), Guard(content, K.CODE, helper.__code__)]
    check = Watched(guards).warm(module)
    assert check.answers(module) == (True, False)
    (cell,) = Own.forward.__closure__
    cell.cell_contents = other
    assert not check(module)
    cell.cell_contents = types.FunctionType(helper.__code__, {})
    assert check(module), "another function of the same code"
    gc.collect()
    cell.cell_contents = types.FunctionType(other.__code__, {})
    assert not check(module)


def test_another_object_at_the_same_address_is_another_object():
    class Part:
        pass

    module = model()
    item = ItemSource(AttrSource(ItemSource(AttrSource(SELF, "_modules"), "1"), "parts"), 1)
    for _ in range(200):
        guards = [g for g in facts(module) if not g.source.expr.startswith(item.expr)]
        module[1].parts[1] = part = Part()
        guards.append(Guard(item, K.ID, part))
        check = Watched(guards).warm(module)
        guards.clear()
        address = id(part)
        module[1].parts[1] = part = None
        module[1].parts[1] = again = Part()
        assert not check(module)
        if id(again) == address:
            return
    pytest.skip("no object took the address of another")


def test_identity_across_branches():
    module = model()
    parts = [ItemSource(AttrSource(SELF, "_modules"), str(n)) for n in range(8)]
    weights = [
        ItemSource(
            AttrSource(ItemSource(AttrSource(part, "_modules"), "linear"), "_parameters"), "weight"
        )
        for part in parts
    ]
    module[5].linear.weight = module[1].linear.weight
    guards = [
        *facts(module),
        Guard(weights[5], K.SAME_OBJECT, weights[1]),
        Guard(weights[0], K.NOT_SAME, tuple(weights[2:5])),
        Guard(X, K.TYPE, nn.Parameter),
        Guard(X, K.NOT_SAME, tuple(weights[:5])),
    ]
    check = Watched(guards, ("self", "x")).warm(module, nn.Parameter(torch.ones(1)))
    assert check.answers(module, nn.Parameter(torch.ones(2))) == (True, False)
    assert not check(module, module[3].linear.weight)
    module[3].linear.weight = module[0].linear.weight
    assert not check(module, nn.Parameter(torch.ones(1)))


def test_properties_are_checked_by_code():
    class Own(Block):
        @property
        def twice(self):
            return 2 * self.hidden

    module = nn.Sequential(*[Own() for _ in range(10)])
    slotted = Slotted()
    slotted.value = 4
    guards = facts(module)
    for n, part in enumerate(module):
        part.hidden = part_hidden = n
        part.slotted = slotted
        source = ItemSource(AttrSource(SELF, "_modules"), str(n))
        guards.append(Guard(AttrSource(source, "twice"), K.CONSTANT, 2 * part_hidden))
        guards.append(Guard(AttrSource(AttrSource(source, "slotted"), "value"), K.CONSTANT, 4))
    check = Watched(guards).warm(module)
    slotted.value = 5
    assert not check(module)
    slotted.value = 4
    assert check(module)
    module[7].hidden = 1
    assert not check(module)


def with_parts(part):
    """An object whose facts lie in fields of objects in C, and guards on them."""

    def function(x, y=1, *, z="z"):
        return part

    part.function, part.slotted = function, Slotted()
    part.slotted.value = (1, "a")
    source = ItemSource(AttrSource(SELF, "_modules"), "3")
    here = AttrSource(source, "function")
    return [
        Guard(DefaultsSource(here, -1), K.CONSTANT, 1),
        Guard(DefaultsSource(here, "z"), K.CONSTANT, "z"),
        Guard(AttrSource(here, "__globals__"), K.ID, function.__globals__),
        Guard(ItemSource(AttrSource(AttrSource(source, "slotted"), "value"), 1), K.CONSTANT, "a"),
        Guard(AttrSource(ClosureSource(here, 0), "scale"), K.CONSTANT, 0.5),
    ]


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        (lambda p: swap(p.function, "__defaults__", (2,)), False),
        (lambda p: swap(p.function, "__defaults__", (1,)), True),
        (lambda p: swap(p.function, "__defaults__", None), False),
        (lambda p: swap(p.function, "__kwdefaults__", {"z": 3}), False),
        (lambda p: swap(p.function, "__kwdefaults__", {"z": "z"}), True),
        (lambda p: p.function.__kwdefaults__.update(z=3), False),
        (lambda p: swap(p, "function", helper), False),
        (lambda p: swap(p.slotted, "value", (1, "b")), False),
        (lambda p: swap(p.slotted, "value", (1, "".join("a"))), True),
        (lambda p: delattr(p.slotted, "value"), False),
        (lambda p: swap(p.function.__closure__[0], "cell_contents", nn.Identity()), False),
        (lambda p: swap(p.function.__closure__[0], "cell_contents", Block()), True),
    ],
)
def test_fields_of_functions_slots_and_cells(change, holds):
    module = model()
    fields = with_parts(module[3])
    check = Watched([*facts(module), *fields]).warm(module)
    assert check.answers(module) == (True, False)
    assert check.watcher.plan.covered.issuperset(fields)
    change(module[3])
    for _ in range(6):
        assert check(module) is check.watcher.full(module) is holds


def test_threads_that_check_while_another_one_changes_the_model():
    module = model(6)
    check = Watched(facts(module)).warm(module)
    problems = []
    stop = threading.Event()

    def run():
        while not stop.is_set():
            try:
                check(module)
            except BaseException as error:  # noqa: BLE001 - to the main thread
                problems.append(error)

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for n in range(300):
            module[n % 6].scale = 1.0
            assert not check(module)
            module[n % 6].linear = nn.Linear(2, 2)
            module[n % 6].scale = 0.5
            assert check(module)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert problems == []


def test_small_sets_and_those_without_a_library_are_checked_in_full(monkeypatch):
    module = model()
    small = GuardSet([Guard(SELF, K.TYPE, nn.Sequential)]).compile(("self",))
    assert "check_and_remember" not in small.check.__globals__
    monkeypatch.setattr(native, "shared", native.Shared())
    monkeypatch.setenv("TORCHSMITH_NATIVE_GUARDS", "0")
    check = Watched(facts(module))
    assert check(module)
    assert native.shared.settled.wait(60)
    assert native.unavailable()
    assert check(module)
    assert check.checker.check.__code__ is check.watcher.full.__code__
    module[3].scale = 9.0
    assert not check(module)
    later = GuardSet(facts(model())).compile(("self",))
    assert "check_and_remember" not in later.check.__globals__


def test_tensor_facts_that_the_native_code_does_not_compare_are_not_left_to_it():
    from torchsmith_guards._src.unchanged import survey

    known = {f for f in tensor_spec.TensorSpec.__slots__}
    assert known == survey._METADATA or not survey._COMPLETE


# Gradients of known parameters are other objects after each backward pass.

COUNT = 12
in_a_list = pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="values in instances have no stamps, and lists no weak references: all is checked",
)


class MarkedTensor(torch.Tensor):
    """A class of its own."""


class Holder:
    """Parameters in a list, as an optimizer has them."""

    def __init__(self):
        self.params = [nn.Parameter(torch.ones(2, 3)) for _ in range(COUNT)]
        self.renew()

    def renew(self):
        for p in self.params[1:]:
            p.grad = torch.ones(2, 3)


def watched_gradients(holder):
    guards, grads = [], []
    for i, p in enumerate(holder.params):
        source = ItemSource(AttrSource(SELF, "params"), i)
        grads.append(AttrSource(source, "grad"))
        guards.append(Guard(source, K.TENSOR, TensorSpec.of(p)))
        if p.grad is None:
            guards.append(Guard(grads[-1], K.NONE))
        else:
            guards.append(Guard(grads[-1], K.TENSOR, TensorSpec.of(p.grad)))
            guards.append(Guard(grads[-1], K.WRITABLE))
    others = (ItemSource(AttrSource(SELF, "params"), 2), *grads[2:])
    return Watched([*guards, Guard(grads[1], K.NOT_SAME, others)])


def regraded(change):
    def apply(holder):
        holder.params[4].grad = change(holder.params[4].grad)

    return apply


def of_inference(grad):
    with torch.inference_mode():
        return torch.ones(2, 3)


OF_GRADIENTS = {  # what is done, and whether the guards still hold
    "nothing": (lambda h: None, True),
    "new objects": (Holder.renew, True),
    "one new object": (regraded(torch.clone), True),
    "none": (regraded(lambda g: None), False),
    "one where there was none": (lambda h: setattr(h.params[0], "grad", torch.ones(2, 3)), False),
    "other strides": (regraded(lambda g: g.t().contiguous().t()), False),
    "a subclass": (regraded(lambda g: g.as_subclass(MarkedTensor)), False),
    "a parameter": (regraded(lambda g: nn.Parameter(g, requires_grad=False)), False),
    "one that is differentiable": (regraded(lambda g: g.clone().requires_grad_()), False),
    "one that is lazily negated": (regraded(torch._neg_view), False),
    "one of inference mode": (regraded(of_inference), False),
    "another one's": (lambda h: setattr(h.params[4], "grad", h.params[1].grad), False),
    "a parameter of the list": (
        lambda h: (h.params[2].requires_grad_(False), setattr(h.params[4], "grad", h.params[2])),
        False,
    ),
}


@in_a_list
@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_a_change_of_gradients_is_seen(name):
    holder, (change, holds) = Holder(), OF_GRADIENTS[name]
    check = watched_gradients(holder).warm(holder)
    assert check.answers(holder) == (True, False)
    change(holder)
    assert check.answers(holder) == (holds, not holds)
    assert check.checker.check(holder) is holds


@in_a_list
def test_a_gradient_that_nothing_in_python_stands_for():
    holder = Holder()
    check = watched_gradients(holder).warm(holder)
    holder.params[4].grad = None
    (holder.params[4] * torch.ones(2, 3)).sum().backward()
    assert check.answers(holder) == (True, False)
