"""The builtin iterators, copied and handed out wherever they stopped."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torchsmith_tracer as tracer

MADE = {
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
@pytest.mark.parametrize("name", [n for n in MADE if n != "callable"])
def test_copied(name, how):
    def program():
        it = MADE[name]()
        next(it)
        if how == "reduce":
            return [type(part) for part in it.__reduce__()]
        again = copy.copy(it) if how == "copy" else pickle.loads(pickle.dumps(it))
        return type(again), list(itertools.islice(again, 9)), list(itertools.islice(it, 9))

    assert tracer.compile(program, backend="eager", fullgraph=True)() == program()
