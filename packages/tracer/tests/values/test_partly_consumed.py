"""Iterators that fail, or see the container that they fill, while something consumes them."""

import array
import collections
import math

import pytest
import torch


def add_in_place(a, items):
    a += items


def of_each(take, items):
    """``take`` of objects that tell what is done to them."""
    told = []
    try:
        return getattr(take(Told(v, told) for v in items), "v", None), told
    except TypeError as e:
        return str(e), told


class Told:
    def __init__(self, v, told):
        self.v, self.told = v, told

    def __add__(self, other):
        self.told.append(("add", self.v))
        return Told(self.v + getattr(other, "v", other), self.told)

    __radd__ = __add__

    def __lt__(self, other):
        self.told.append(("lt", self.v))
        return self.v < other.v

    def __hash__(self):
        self.told.append(("hash", self.v))
        return hash(self.v)

    def __eq__(self, other):
        return self.v == other.v


PAIRS = ((1, 2), (3, 4), (3, 6), (5,))
NUMBERS = (1, 2, 2, 3)
FILLED = {
    "dict.update": (dict, lambda a, it: a.update(it), PAIRS),
    "dict.__init__": (dict, lambda a, it: a.__init__(it, z=1), PAIRS),
    "ordered": (collections.OrderedDict, lambda a, it: a.update(it), PAIRS[:3]),
    "defaultdict": (lambda: collections.defaultdict(list), lambda a, it: a.update(it), PAIRS),
    "count": (collections.Counter, lambda a, it: a.update(it), NUMBERS),
    "extend": (list, lambda a, it: a.extend(it), NUMBERS),
    "+=": (list, add_in_place, NUMBERS),
    "list.__init__": (lambda: [7], lambda a, it: a.__init__(it), NUMBERS),
    "deque +=": (collections.deque, add_in_place, NUMBERS),
    "left": (lambda: collections.deque(maxlen=2), lambda a, it: a.extendleft(it), NUMBERS),
    "set.update": (lambda: {9}, lambda a, it: a.update([8], it), (1, 5, [], 3)),
    "set.__init__": (lambda: {9}, lambda a, it: a.__init__(it), (1, 5, [], 3)),
    "set difference": (lambda: {1, 2, 3}, lambda a, it: a.difference_update(it), NUMBERS),
    "set intersection": (lambda: {1, 2}, lambda a, it: a.intersection_update(it), NUMBERS),
    "xor": (lambda: {1, 2}, lambda a, it: a.symmetric_difference_update(it), NUMBERS),
    "isdisjoint": (lambda: {2}, lambda a, it: a.isdisjoint(it), NUMBERS),
    "array": (lambda: array.array("i"), lambda a, it: a.extend(it), NUMBERS),
    "sum": (list, lambda a, it: a.append(sum(it)), (1, 0.1, "a", 3)),
    "prod": (list, lambda a, it: a.append(math.prod(it)), (1, 2, "a", 3)),
    "max": (list, lambda a, it: a.append(max(it)), (1, 2, "a", 3)),
    "min": (list, lambda a, it: a.append(min(it, key=lambda v: 1 // (v - 2))), NUMBERS),
    **{
        f"{take.__name__} of objects": (
            list,
            lambda a, it, t=take: a.append(of_each(t, it)),
            (2, 1),
        )
        for take in (sum, min, max, sorted, set, frozenset, dict.fromkeys, lambda it: {*it})
    },
}


@pytest.mark.parametrize("name", FILLED)
def test_what_came_before_an_exception_of_an_iterator_was_used(name, agree):
    make, use, items = FILLED[name]

    def fn(x, fails):
        filled, seen = make(), []

        def source():
            for i, item in enumerate(items):
                seen.append((i, len(filled)))
                if i == fails:
                    raise LookupError(i)
                yield item

        try:
            seen.append(use(filled, source()))
        except (LookupError, TypeError, ValueError, ArithmeticError) as e:
            seen.append(str(e))
        return x + len(filled), list(filled), str(filled), seen

    for fails in range(5):
        agree(fn, torch.ones(2), fails)
