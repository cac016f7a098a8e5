"""Builtin types and protocols at their edges: compiled code does what CPython does."""

from __future__ import annotations

import abc
import functools
import random

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    """``fn`` without arguments gives the same compiled and not."""
    CASES.append(fn)
    return fn


# --- random numbers --------------------------------------------------------------------------


class EvenBits(random.Random):
    def getrandbits(self, k):
        return super().getrandbits(k) & ~1


def draws(rng):
    out = [rng.randrange(10), rng.randint(3, 9), rng.uniform(1, 2), rng.randrange(5, 50, 3)]
    for fn, args in ((rng.randrange, (0,)), (rng.randint, (3, 1)), (rng.randrange, (1, 9, 0))):
        try:
            fn(*args)
        except ValueError as e:
            out.append(str(e))
    items = list(range(6))
    rng.shuffle(items)
    return [*out, items, rng.sample(range(30), 4), rng.choice("abc"), rng.random()]


@case
def random_methods():
    return draws(random.Random(5))


@case
def random_methods_over_the_bits_of_a_subclass():
    return draws(EvenBits(5))


@case
def random_methods_replaced_on_the_object():
    rng, other = random.Random(5), random.Random(5)
    rng.getrandbits = lambda k: int(other.random() * 2**k)
    first = draws(rng)
    rng.randrange = lambda *args: 7
    return first, rng.randint(1, 99), rng.randrange(4)


# --- hashing, comparing and changing containers ------------------------------------------------


class Counted:
    """Counts what containers ask of it."""

    def __init__(self, value):
        self.value, self.hashes, self.equals = value, 0, 0

    def __hash__(self):
        self.hashes += 1
        return hash(self.value)

    def __eq__(self, other):
        self.equals += 1
        return self.value == other.value


@case
def hashes_are_taken_over():
    keys = [Counted(i) for i in range(4)]
    table = dict.fromkeys(keys)
    counts = []
    for use in (set, frozenset, dict.fromkeys, lambda t: set().union(t)):
        use(table)
        use(frozenset(table))
        counts.append(sum(k.hashes for k in keys))
    set(table.keys())
    set(iter(table))
    return counts, sum(k.hashes for k in keys), sum(k.equals for k in keys)


@case
def keys_are_compared_once():
    first, second = Counted(1), Counted(1)
    table = {}
    counts = []
    table[first] = 1
    for use in (
        lambda: table.setdefault(second, 2),
        lambda: table.__setitem__(second, 3),
        lambda: table.get(second),
        lambda: {first}.add(second),
    ):
        use()
        counts.append((first.hashes, first.equals, second.hashes, second.equals))
    return counts, list(table.values())


@case
def dicts_changed_while_iterated():
    out = []
    for view in (iter, dict.keys, dict.values, dict.items):
        for start, change in (
            ({0: 0}, lambda d: (d.pop(0), d.__setitem__(0, 0))),
            ({0: 0, 1: 1}, lambda d: (d.popitem(), d.popitem(), d.__setitem__(1, 1))),
            ({0: 0, 1: 1}, lambda d: (d.pop(1), d.update({1: 5}))),
            ({0: 0}, lambda d: d.update({0: 5})),
            ({0: 0}, lambda d: d.update({1: 5})),
        ):
            d, got = dict(start), []
            try:
                for item in view(d):
                    got.append(item)
                    if len(got) == 1:
                        change(d)
            except RuntimeError as e:
                got.append(str(e))
            out.append(got)
    return out


@case
def keywords_of_immutable_subclasses():
    class F(frozenset):
        pass

    class T(tuple):
        __slots__ = ()

    class N(frozenset):
        def __init__(self, arg, more=None):
            self.more = more

    out = [N([1], more=2).more, T([1]), sorted(F([2, 1])), sorted(N([3]))]
    for fn, args, kwargs in (
        (F, (), {"a": 1}),
        (T, (), {"a": 1}),
        (F, ([], 2), {}),
        (T, ([], 2), {}),
    ):
        try:
            fn(*args, **kwargs)
        except TypeError as e:
            out.append(str(e) if kwargs else type(e))
    return out


@case
def unions_that_functions_are_chosen_by():
    @functools.singledispatch
    def show(x):
        return "base"

    @show.register
    def _(x: int | float):
        return "number"

    union = int | str
    facts = (
        hasattr(union, "__origin__"),
        union == (int | str),
        union == list[int],
        union in (int, str),
    )
    return show(1), show(1.5), show([]), facts


# --- abstract classes ----------------------------------------------------------------------------


@case
def abstract_classes():
    class Abstract(abc.ABC):
        @abc.abstractmethod
        def go(self): ...

        @property
        @abc.abstractmethod
        def p(self): ...

        @classmethod
        @abc.abstractmethod
        def made(cls): ...

    class Half(Abstract):
        p = 3

        def go(self):
            return self.p

    class Whole(Half):
        made = classmethod(Half)

    out = [Whole().go()]
    for cls in (Abstract, Half):
        try:
            cls()
        except TypeError as e:
            out.append(str(e))
    return out


def test_abstract_classes_leave_as_such():
    def make():
        class Abstract(abc.ABC):
            @abc.abstractmethod
            def go(self): ...

            @property
            @abc.abstractmethod
            def p(self): ...

        class Half(Abstract):
            p = 3

        class Whole(Half):
            def go(self):
                return self.p

        return Abstract, Half, Whole

    abstract, half, whole = tracer.compile(make, backend="eager", fullgraph=True)()
    assert sorted(abstract.__abstractmethods__) == ["go", "p"]
    assert sorted(half.__abstractmethods__) == ["go"]
    assert whole().go() == 3
    with pytest.raises(TypeError):
        half()


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_compiled_code_gives_what_python_gives(fn):
    expected = fn()
    assert tracer.compile(fn, backend="eager", fullgraph=True)() == expected
