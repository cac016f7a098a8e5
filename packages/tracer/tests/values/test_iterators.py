"""Containers that change while they are iterated over, or that are given to themselves."""

import collections

import pytest
import torch


class List(list):
    pass


class Dict(dict):
    pass


class Set(set):
    pass


class Deque(collections.deque):
    pass


def drop(a):
    for k in a:
        del a[k]


def grow(a):
    for k in a:
        a["new"] = 1


def clear(a):
    for _ in a.values():
        a.clear()


def move(a):
    for k in a:
        a[k] = a.pop(k)


def shift(a):
    it = iter(a.items())
    a.pop("b")
    a["c"] = 1
    return list(it)


def backwards(a):
    for k in reversed(a):
        a.pop(k)


def store(a):
    for k in a:
        a[k] = 0


def grow_set(a):
    for i in a:
        a.add(i + 10)


def grow_list(a):
    for i in a:
        if len(a) < 6:
            a.append(i)


def shrink_list(a):
    for i in a:
        a.remove(i)


def grow_deque(a):
    for i in a:
        a.append(i)


def rotate(a):
    it = iter(a)
    a.rotate(1)
    return next(it)


DICTS = (
    lambda: {"a": 1, "b": 2},
    lambda: Dict(a=1, b=2),
    lambda: collections.OrderedDict(a=1, b=2),
)
SETS = (lambda: {1, 2, 3}, lambda: Set({1, 2, 3}))
LISTS = (lambda: [1, 2, 3], lambda: List([1, 2, 3]))
DEQUES = (lambda: collections.deque([1, 2, 3]), lambda: Deque([1, 2, 3], 5))
CASES = [
    *((make, f) for make in DICTS for f in (drop, grow, clear, move, shift, backwards, store)),
    *((make, f) for make in SETS for f in (grow_set,)),
    *((make, f) for make in LISTS for f in (grow_list, shrink_list)),
    *((make, f) for make in DEQUES for f in (grow_deque, rotate)),
]


@pytest.mark.parametrize(("make", "change"), CASES)
@pytest.mark.parametrize("caught", [False, True])
def test_a_change_during_iteration_ends_as_in_cpython(program, make, change, caught):
    def body(C):
        def f(a, x):
            if not caught:
                return change(a), x * 2
            try:
                return change(a), x * 2
            except RuntimeError as e:
                return str(e), x * 3

        f, out = C(f), []
        for _ in range(2):
            a = make()
            try:
                out.append(f(a, torch.ones(1)))
            except RuntimeError as e:
                out.append(str(e))
            out.append(list(a.items()) if isinstance(a, dict) else sorted(a))
        return out

    program(body, broken=not caught)


def extend(a):
    a.extend(a)


def add(a):
    a += a


def assign(a):
    a[:] = a


def insert(a):
    a[1:1] = a


def init(a):
    a.__init__(a)


def left(a):
    a.extendleft(a)


def update(a):
    a.update(a)


def merge(a):
    a |= a


def minus(a):
    a -= a


SELF = [
    *((make, f) for make in LISTS for f in (extend, add, assign, insert, init)),
    *((make, f) for make in DEQUES for f in (extend, add, left, init)),
    *((make, f) for make in DICTS for f in (update, merge, init)),
    *((make, f) for make in SETS for f in (update, merge, minus, init)),
]


@pytest.mark.parametrize(("make", "change"), SELF)
def test_a_container_given_to_itself(program, make, change):
    def body(C):
        f = C(lambda a, x: (change(a), x * len(a)))
        a = make()
        return f(a, torch.ones(1)), list(a), f(a, torch.ones(1)), list(a), type(a).__name__

    program(body)
