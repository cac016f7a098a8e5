"""What a tracer's utilities are for, seen from the program: a few lines for each of them.

The rows are those of the reference system's utilities that a program can observe: classifying
objects, constants and keys, numbers, copies, fake results, modules, NumPy. Each program runs
compiled and in eager; ``WHOLE`` ones are captured in one graph, the others say how they break.
"""

import enum
import functools
import typing

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

X = torch.arange(6.0).reshape(2, 3)


class Color(enum.Enum):
    RED = 1

    def __str__(self):
        raise AssertionError("nobody's text is asked for")


class Pair(typing.NamedTuple):
    one: torch.Tensor
    two: int


class Boxed(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, item):
        self.item = item


class Wrapping:
    """Attributes by a hook of its own, past which the tracer must look."""

    def __init__(self, inner):
        self.inner = inner

    def __getattr__(self, name):
        return getattr(object.__getattribute__(self, "inner"), name)


class Reading:
    k = 2

    def __getattribute__(self, name):
        return 5 if name == "k" else object.__getattribute__(self, name)


class Hooked(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.register_forward_hook(lambda module, args, result: result * 2)


@functools.lru_cache
def cached(n):
    return n * 2


def counted(k):
    total = 0

    def add(n):
        nonlocal total
        total += n * k
        return total

    return add


def hashes(x, *values):
    found = []
    for value in values:
        try:
            hash(value)
        except TypeError:
            found.append(False)
        else:
            found.append(True)
    return x + sum(found)


def iterators(x, table):
    keys, values, pairs = iter(table), iter(table.values()), iter(tuple(table.items()))
    next(pairs)
    return x + next(values), list(keys), list(pairs), isinstance(table.keys(), type({}.keys()))


def constants(x, *values):
    kinds = (str, bytes, type(None), type(...), torch.device, torch.dtype, torch.layout, slice)
    return x * sum(isinstance(v, kinds) for v in values), x.to(values[0]), x[values[1]]


def tensor_keys(x):
    y, z = x + 1, x + 2
    table = {y: 1, z: 2, "k": 3}
    return table[y] * y, table[z], [key is y for key in table], next(iter(table))


def contains(x, n, *items):
    return x + (n in items) + (x.shape[0] in items) + (2.0 in items) + any(x is i for i in items)


def hook_handle(x):
    linear = torch.nn.Linear(3, 3)
    handle = linear.register_forward_hook(lambda *_: None)
    handle.remove()
    handle.remove()
    return x, len(linear._forward_hooks)


def random_state(x):
    state = torch.get_rng_state()
    y = torch.rand(3)
    torch.set_rng_state(state)
    return x + y - torch.rand(3)


def slots_of_tensors(x):
    return torch.Tensor.shape.__get__(x), torch._C.TensorBase.dtype.__get__(x), x * 2


def legacy(x):
    return x.type(torch.DoubleTensor), x.type() == "torch.FloatTensor", torch.IntTensor is X


def checkpointed(x):
    y = x.clone().requires_grad_()
    return checkpoint(lambda a: a.sin() * 2, y, use_reentrant=False)


def new_module(x):
    linear = torch.nn.Linear.__new__(torch.nn.Linear)
    torch.nn.Module.__init__(linear)
    linear.k = 3
    return x * linear.k, object.__new__(Boxed).__class__ is Boxed


def named_tuples(x):
    pair, top = Pair(x, 2), torch.max(x, 1)
    return (
        pair._replace(two=3),
        top.values,
        type(top).__name__,
        top._fields,
        pair[:1],
        pair._asdict(),
    )


def typing_constructs(x, kinds=(typing.Any, list[int], typing.List[int], typing.Optional[int])):  # noqa: UP006
    wide = [typing.get_origin(kind) is list for kind in kinds]
    return x * sum(wide), isinstance(Boxed(x), typing.Generic), Boxed(x).item


def inplace_metadata(x):
    y = x.clone()
    before = y.shape
    y.t_()
    return y, before, y.shape


def numpy_round_trip(x):
    a = x.numpy() * 2
    a[0] = 7
    return torch.from_numpy(a) + x, a.mean(), np.add(a, 1), a + np.float32(2), a.T.shape


def copies(x):
    import copy

    y = copy.deepcopy({"a": [x, x], "n": 3})
    return y["a"][0] is y["a"][1], y, x.clone(memory_format=torch.preserve_format)


def linked(x):
    both = [torch.nn.Parameter(x), x]
    return [type(w) is torch.nn.Parameter for w in both], [
        isinstance(w, torch.Tensor) for w in both
    ]


def functions(x):
    return [f(x) for f in (torch.sin, len, torch.ops.aten.cos, torch.Tensor.neg, abs)]


def rotation(x, a, b, c):
    a, b, c = c, a, b
    return (a, b, c), (lambda p, q, r: (r, p, q))(a, b, c), x


SCRIPTED = torch.jit.script(torch.nn.ReLU())


WHOLE = {
    "closure cell": (lambda x: (counted(2)(3), x + counted(1)(4)), X),
    "hashability probe": (hashes, X, 1, [1], "a", {}, (1, [2]), X, slice),
    "exact type test": (lambda x, n: x + (type(n) is int) + isinstance(n, int), X, True),
    "first of several attributes": (lambda x, o: x * getattr(o, "a", getattr(o, "real", 3)), X, 2),
    "qualified name": (lambda x: (x, counted.__module__, counted(2).__qualname__), X),
    "rotation of the stack": (rotation, X, 1, 2, 3),
    "bare object creation": (new_module, X),
    "dead removable handle": (hook_handle, X),
    "activation checkpointing": (checkpointed, X),
    "typing constructs": (typing_constructs, X),
    "NumPy scalars and arrays": (lambda s, a: a * s + a.sum(), np.float32(2), np.arange(3.0)),
    "functions": (functions, X),
    "cached functions": (lambda x: x * cached(3), X),
    "named tuples": (named_tuples, X),
    "slots of tensors": (slots_of_tensors, X),
    "custom attribute hooks": (lambda x, w, r: x * w.k * r.k, X, Wrapping(Reading()), Reading()),
    "legacy tensor types": (legacy, X),
    "constants": (constants, X, torch.float64, slice(0, 1), b"a", None, ..., torch.device("cpu")),
    "container iterators": (iterators, X, {"a": 1, "b": 2}),
    "keys by identity": (tensor_keys, X),
    "enum keys": (lambda x, table: x * table[Color.RED], X, {Color.RED: 3}),
    "membership": (contains, X, 3, 1, 2, 3),
    "membership by identity": (lambda x, y: x + any(x is i for i in [y, x]), X, X + 1),
    "metadata that changes": (inplace_metadata, X),
    "exact tensor types": (linked, X),
    "hooks of modules": (lambda x, m: m(x), X, Hooked()),
    "NumPy functions, attributes, methods, operators": (numpy_round_trip, X),
    "linalg of NumPy": (lambda a: np.linalg.norm(a), np.arange(4.0)),
    "fft of NumPy": (lambda a: np.fft.fft(a).real.sum(), np.arange(4.0)),
}  # fmt: skip
BROKEN = {  # the kinds of breaks first
    "random states": (["torch-state", "torch-state"], random_state, X),
    "script functions": (["opaque-call"], lambda x: SCRIPTED(x) + 1, X),
    "inverses of NumPy": (["opaque-call"], lambda a: np.linalg.inv(a + np.eye(4)), np.arange(4.0)),
    "subclass cast": (["opaque-call"], lambda x: x.as_subclass(torch.nn.Parameter).sum(), X),
    "copies": (["opaque-call"], copies, X),
}


@pytest.mark.parametrize("row", WHOLE)
def test_programs_that_are_captured_whole(row, check):
    fn, *args = WHOLE[row]
    check(fn, *args, breaks=[])


@pytest.mark.parametrize("row", BROKEN)
def test_programs_that_break(row, check):
    breaks, fn, *args = BROKEN[row]
    check(fn, *args, breaks=breaks)
