"""Iterators made by traced code are of the real classes, wherever they stopped."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings

import pytest
import torchsmith_tracer as tracer

MADE = {
    "chain": lambda: itertools.chain([1, 2], (3,)),
    "from_iterable": lambda: itertools.chain.from_iterable([[1], [2, 3]]),
    "count": lambda: itertools.count(3),
    "count_step": lambda: itertools.count(1.5, 2),
    "cycle": lambda: itertools.cycle("abc"),
    "tee": lambda: itertools.tee(range(5))[1],
    "product": lambda: itertools.product("ab", range(2)),
    "product_repeat": lambda: itertools.product("ab", repeat=2),
    "permutations": lambda: itertools.permutations("abc", 2),
    "combinations": lambda: itertools.combinations("abcd", 2),
    "replacement": lambda: itertools.combinations_with_replacement("abc", 2),
    "zip_longest": lambda: itertools.zip_longest("a", "bcd", fillvalue=0),
    "accumulate": lambda: itertools.accumulate([1, 2, 3], initial=4),
    "accumulate_none": lambda: itertools.accumulate([1, 2, 3], lambda a, b: None),
    "pairwise": lambda: itertools.pairwise([1, 2, 3, 4]),
    "starmap": lambda: itertools.starmap(pow, [(2, 3), (3, 4)]),
    "repeat": lambda: itertools.repeat(4, 3),
    "repeat_forever": lambda: itertools.repeat(5),
    "islice": lambda: itertools.islice("abcdef", 1, None, 2),
    "compress": lambda: itertools.compress("abcd", [1, 0, 1, 1]),
    "dropwhile": lambda: itertools.dropwhile(bool, [1, 0, 1]),
    "takewhile": lambda: itertools.takewhile(bool, [1, 1, 0, 1]),
    "filterfalse": lambda: itertools.filterfalse(None, [1, 0, 0]),
    "list": lambda: iter([1, 2, 3]),
    "reversed": lambda: reversed([1, 2, 3]),
    "tuple": lambda: iter((1, 2)),
    "str": lambda: iter("abc"),
    "bytes": lambda: iter(b"abc"),
    "range": lambda: iter(range(2, 9, 3)),
    "dict": lambda: iter({1: 2, 3: 4}),
    "items": lambda: iter({1: 2, 3: 4}.items()),
    "callable": lambda: iter(iter([1, 2, 0]).__next__, 0),
    "enumerate": lambda: enumerate("abc", 5),
    "zip": lambda: zip("ab", [1, 2], strict=True),
    "zip_unequal": lambda: zip("abc", [1, 2], strict=True),
    "map": lambda: map(abs, [-1, 2]),
    "filter": lambda: filter(None, [1, 0, 2]),
}


def left(it):
    try:
        return list(itertools.islice(it, 9))
    except ValueError as e:
        return str(e)


@pytest.mark.parametrize("steps", [0, 1, 2])
@pytest.mark.parametrize("name", MADE)
def test_handed_out(name, steps):
    def program():
        it = MADE[name]()
        for _ in range(steps):
            next(it, None)
        return it

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    found, expected = compiled(), program()
    assert type(found) is type(expected)
    assert left(found) == left(expected)


@pytest.mark.parametrize("how", ["copy", "pickle", "reduce"])
@pytest.mark.parametrize("name", [n for n in MADE if n not in ("callable", "accumulate_none")])
def test_copied(name, how):
    def program():
        it = MADE[name]()
        next(it)
        if not hasattr(type(it), "__setstate__") and type(it) is itertools.pairwise:
            return None
        if how == "reduce":
            return [type(part) for part in it.__reduce__()]
        again = copy.copy(it) if how == "copy" else pickle.loads(pickle.dumps(it))
        return type(again), list(itertools.islice(again, 9)), list(itertools.islice(it, 9))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        try:
            expected = program()
        except Exception as e:
            expected = type(e)
        try:
            found = tracer.compile(program, backend="eager", fullgraph=True)()
        except Exception as e:
            found = type(e)
    assert found == expected


def test_groups():
    def program():
        groups = itertools.groupby("aabbc")
        key, group = next(groups)
        first = next(group)
        return groups, key, group, first

    def rest(groups, key, group, first):
        return type(groups), key, first, list(group), [(k, list(g)) for k, g in groups]

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    assert rest(*compiled()) == rest(*program())


def test_branches_share():
    """Branches of one ``tee`` take from the same iterator, also when they are handed out."""

    def program():
        a, b = itertools.tee(iter(range(4)))
        next(a)
        return a, b

    a, b = tracer.compile(program, backend="eager", fullgraph=True)()
    assert [next(b), next(a), next(b), *a, *b] == [0, 1, 1, 2, 3, 2, 3]


def test_subclasses():
    class Own(itertools.chain):
        def __init__(self, *args, note=None):
            self.note = note

    class Zipped(zip):
        pass

    def program():
        own = Own([1], [2], note=3)
        return next(own), own.note, list(own), list(Zipped("ab", "cd"))

    assert tracer.compile(program, backend="eager", fullgraph=True)() == program()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: itertools.islice([], -1),
        lambda: itertools.islice([], 1, 2, 0),
        lambda: itertools.islice([], "a"),
        lambda: itertools.chain().__setstate__(()),
        lambda: itertools.count("a"),
        lambda: itertools.repeat(1, None),
        lambda: itertools.takewhile(predicate=bool, iterable=[]),
        lambda: itertools.combinations([], -1),
        lambda: itertools.permutations([], "a"),
        lambda: itertools.tee([], -1),
    ],
)
def test_wrong(wrong):
    def program():
        try:
            wrong()
        except (TypeError, ValueError) as e:
            return type(e)

    assert tracer.compile(program, backend="eager", fullgraph=True)() == program()


def test_a_group_whose_comparison_takes_its_item_ends():
    def program():
        class Key:
            asked = 0

            def __init__(self, value):
                pass

            def __eq__(self, other):
                Key.asked += 1
                if Key.asked == 1:
                    next(group, None)
                return True

        group = next(itertools.groupby(range(10), Key))[1]
        return [next(group, None) for _ in range(3)]

    assert tracer.compile(program, backend="eager", fullgraph=True)() == program()
