"""Recursion, nesting without measure, programs that change while they are traced, special methods
that return tensors: eager's result or exception, in every call, and no failure of ours."""

import functools
import itertools
import types

import pytest
import torch
import torchsmith_tracer as tracer
from torch import nn
from torchsmith_tracer.errors import FullGraphError

X = torch.ones(3)


def outcome(fn, args):
    try:
        return repr(fn(*args))
    except Exception as e:
        return type(e), str(e)


def same(make, calls=3):
    """``make()`` gives a program and a function that makes its arguments."""
    results = []
    for compile in (lambda fn: fn, tracer.compile):
        program, arguments = make()
        run = compile(program)
        results.append([outcome(run, arguments()) for _ in range(calls)])
    assert results[0] == results[1]


def nest(depth, leaf=1, kind=lambda inner: (inner,)):
    for _ in range(depth):
        leaf = kind(leaf)
    return leaf


def depth_of(nested):
    return nested if not isinstance(nested, tuple) else depth_of(nested[0]) + 1


@pytest.mark.parametrize("depth", [50, 250, 600, 850])
def test_recursion_that_eager_allows(depth):
    same(lambda: (lambda x, t: x * 2 + depth_of(t), lambda t=nest(depth): (X, t)))
    same(lambda: (lambda t: X + depth_of(t), lambda t=nest(depth): (t,)))
    same(lambda: (depth_of, lambda t=nest(depth, X): (t,)))


def test_recursion_without_end():
    def one(x):
        return two(x) + 1

    def two(x):
        return one(x) * 2

    class Asks:
        def __getattr__(self, name):
            return getattr(self, name + "x")

        @property
        def again(self):
            return self.again

        def __add__(self, other):
            return self + other

    for make in (
        lambda: (one, lambda: (X,)),
        lambda: (lambda x: one(x * 2), lambda: (X,)),
        lambda: (lambda x, a: x + a.k, lambda: (X, Asks())),
        lambda: (lambda x, a: x + a.again, lambda: (X, Asks())),
        lambda: (lambda x, a: a + x, lambda: (X, Asks())),
    ):
        same(make, 2)
    with pytest.raises(FullGraphError, match="nested too deep"):
        tracer.compile(one, fullgraph=True)(X)


def through(x, nested):
    while isinstance(nested, dict | list):
        nested = nested["a"] if isinstance(nested, dict) else nested[0]
    return x + nested


def returned(x):
    y = x + 1
    for _ in range(1000):
        y = [y]
    return y


def test_a_thousand_levels():
    for kind in (lambda inner: {"a": inner}, lambda inner: [inner]):
        same(lambda kind=kind: (through, lambda t=nest(1000, X, kind): (X, t)), 2)
    made, expected = tracer.compile(returned)(X), returned(X)
    for _ in range(1000):
        (made,), (expected,) = made, expected
    assert torch.equal(made, expected)
    same(lambda: (nest(200, lambda x: x + 1, functools.partial), lambda: (X,)))
    wrapped = nest(150, lambda x: x, lambda inner: lambda x: inner(x) + 1)
    same(lambda: (lambda x: wrapped(x), lambda: (X,)))


def itself(x, made):
    made.append(made)
    table = {"made": made}
    made.append(table)
    return x + len(made), made[0] is made, made, len(repr(table))


def test_containers_that_hold_themselves():
    same(lambda: (itself, lambda: (X, [])))
    same(lambda: (lambda x: itself(x, []), lambda: (X,)))

    def compares(x):
        one, two = [], []
        one.append(one)
        two.append(two)
        return x, one == two

    same(lambda: (compares, lambda: (X,)))


def swaps_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Softplus()

        def forward(self, x):
            y = self.layer(x)
            self.layer = nn.Sigmoid() if isinstance(self.layer, nn.Softplus) else nn.Softplus()
            return self.layer(y)

    net = Net()
    return net, lambda: (X,)


def swaps_forward():
    class Net(nn.Module):
        def forward(self, x):
            type(self).forward = lambda self, x: x * 7
            return x + 1

    net = Net()
    return net, lambda: (X,)


def deletes_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.ReLU(), nn.Sigmoid()

        def forward(self, x):
            y = self.one(x)
            if hasattr(self, "two"):
                y = self.two(y)
                del self.two
            return y

    net = Net()
    return net, lambda: (X,)


def swaps_class():
    class One:
        def go(self, x):
            self.__class__ = Two
            return x + 1

    class Two(One):
        def go(self, x):
            self.__class__ = One
            return x * 3

    it = One()
    return lambda x, it: (it.go(it.go(it.go(x))), type(it).__name__), lambda: (X, it)


def swaps_code():
    def inner(x):
        return x + 1

    def other(x):
        return x * 5

    def program(x):
        y = inner(x)
        inner.__code__ = other.__code__
        return y + inner(x)

    return program, lambda: (X,)


def removes_while_iterating():
    def program(x, items):
        for i in items:
            if i % 2:
                items.remove(i)
            x = x + i
        return x, items

    return program, lambda: (X, [1, 3, 5, 2, 4])


def grows_while_iterating():
    def program(x, table):
        for key in table:
            table[key + "x"] = x
        return x

    return program, lambda: (X, {"a": 1})


def counts_reads():
    class Counts:
        n = 0

        @property
        def k(self):
            self.n += 1
            return self.n

    it = Counts()
    return lambda x, it: x + it.k * it.k, lambda: (X, it)


@pytest.mark.parametrize(
    "make",
    [
        swaps_layer,
        swaps_forward,
        deletes_layer,
        swaps_class,
        swaps_code,
        removes_while_iterating,
        grows_while_iterating,
        counts_reads,
    ],
)
def test_programs_that_change_while_they_are_traced(make):
    same(make)


class Tensors:
    """Special methods that return tensors."""

    def __bool__(self):
        return torch.tensor(True)

    def __len__(self):
        return torch.tensor(3)

    def __index__(self):
        return torch.tensor(2)

    def __hash__(self):
        return torch.tensor(2)

    def __iter__(self):
        return torch.ones(2)

    def __eq__(self, other):
        return torch.tensor([True])

    def __contains__(self, item):
        return torch.tensor(0.0)

    def __getitem__(self, key):
        return torch.full((3,), float(key))

    def __call__(self, *args):
        return torch.ones(3) * len(args)

    def __enter__(self):
        return torch.ones(3)

    def __exit__(self, *exc):
        return torch.ones(1) > 0

    def __float__(self):
        return torch.tensor(1.0)

    def __str__(self):
        return torch.ones(1)

    __format__ = lambda self, spec: torch.ones(1)  # noqa: E731
    __int__ = __complex__ = __index__
    __repr__ = __str__


def leaves_with_a_tensor(x, o):
    with o as entered:
        x = x + entered
        raise KeyError("hidden")
    return x


USES = [
    lambda x, o: x + 1 if o else x - 1,
    lambda x, o: x + len(o),
    lambda x, o: (x[o], [1, 2, 3][o]),
    lambda x, o: (x, {o: 1}),
    lambda x, o: [x + i for i in o],
    lambda x, o: (x, *o),
    lambda x, o: (x, o in [1], [o].index(3), o != 2, o == 2),
    lambda x, o: (x, 3 in o),
    lambda x, o: x + o[2] + o(1, 2),
    leaves_with_a_tensor,
    lambda x, o: x + float(o),
    lambda x, o: x + int(o),
    lambda x, o: (x, str(o)),
    lambda x, o: (x, f"{o}"),
    lambda x, o: (x, list(range(o))),
    lambda x, o: (x, sorted([2, 1], key=o)[0].shape),
]


@pytest.mark.parametrize("use", USES, ids=range(len(USES)))
def test_special_methods_that_return_tensors(use):
    same(lambda: (use, lambda: (X, Tensors())), 2)


@pytest.mark.parametrize("changed", ["nothing", "entry", "function", "removed"])
def test_a_module_that_computes_its_attributes(changed):
    def make():
        module, asked = types.ModuleType("computing"), []

        def computed(name):
            asked.append(name)
            if name.startswith("no"):
                raise AttributeError(f"there is no {name}")
            return len(asked)

        module.__getattr__ = computed

        def program(x, count):
            if count == 2 and changed == "entry":
                module.scale = 50
            elif count == 2 and changed == "function":
                module.__getattr__ = lambda name: 7
            elif count == 2 and changed == "removed":
                del module.__getattr__
            found = getattr(module, "nothing", 3), hasattr(module, "none")
            return x * module.scale + module.scale, found, list(asked)

        run = itertools.count()
        return program, lambda: (X, next(run))

    same(make, calls=4)
