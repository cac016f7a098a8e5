"""What builtin objects refuse, what they give where little is set, and how they are bound."""

import functools
import operator
import sys

import pytest
import torch


class Slotted:
    __slots__ = ("k",)

    @functools.cached_property
    def twice(self):
        return 2


def caller(*args, **kwargs):
    return len(args), kwargs


def cleared_state():
    made = functools.partial(caller)
    made.mark = 1
    made.__setstate__((caller, (1,), {"a": 2}, None))
    return made(3), vars(made)


def wrong(fn, *args):
    try:
        return fn(*args)
    except TypeError as e:
        return str(e)


REFUSALS = [
    cleared_state,
    lambda: wrong(lambda: Slotted().twice),
    lambda: [wrong(kind) for kind in (range, slice, enumerate)],
    lambda: (wrong(range, 1, 2, 3, 4), wrong(slice, 1, 2, 3, 4)),
    lambda: [wrong(torch.Size, given) for given in (["a"], [1.5], [1, None], "ab", [True, 2])],
]


@pytest.mark.parametrize("fn", REFUSALS)
def test_refusals(agree, fn):
    agree(fn)


class Own:
    def __init__(self, *args):
        self.count = len(args)

    def __call__(self, *args):
        return len(args)


class Got:
    def __get__(self, obj, owner=None):
        return lambda: obj.__name__


class Bound:
    partial = classmethod(functools.partial(caller, 1, a=2))
    method = classmethod(operator.methodcaller("__repr__"))
    own_class = classmethod(Own)
    instance = classmethod(Own())
    text = classmethod(repr)
    if sys.version_info < (3, 13):  # where descriptors were chained
        name = classmethod(property(lambda cls: cls.__name__))
        chained = classmethod(Got())


class Derived(Bound):
    pass


CALLS = [
    lambda: (Bound.partial(3, b=4), Derived().partial(3)),
    lambda: (Bound.method()[-7:], Derived.text()[-9:]),
    lambda: (Derived.own_class(1).count, Derived().instance(1)),
]


class PythonPartial:
    def __init__(self, fn, *args):
        self.fn, self.args = fn, args

    def __call__(self, *args):
        return self.fn(*self.args, *args)


def made_here():
    class Here:
        partial = classmethod(functools.partial(caller, 1))
        python = classmethod(PythonPartial(caller, 1, 2))
        text = classmethod(repr)

    return Here.partial(2), Here().python(3), Here.text()[-6:]


CALLS.append(made_here)
if sys.version_info < (3, 13):
    CALLS.append(lambda: (Bound.name, Derived().name, Derived.chained()))


@pytest.mark.parametrize("fn", CALLS)
def test_class_methods_of_any_callable(agree, fn):
    agree(fn)


TENSOR = torch.ones(2)
HASHES = [
    lambda: hash((TENSOR, 1)) == hash((1, TENSOR)),
    lambda: hash((TENSOR, "a")),
    lambda: hash(frozenset([TENSOR])),
    lambda: hash((1, (TENSOR,))),
]


@pytest.mark.parametrize("fn", HASHES)
def test_hashes_of_what_holds_a_tensor(agree, fn):
    agree(fn)
