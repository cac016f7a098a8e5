"""Operations on two sets in the middle of which ``__eq__`` of an element changes one of them."""

import operator

import pytest
import torch
import torchsmith_tracer as tracer

OPERATORS = ["isub", "iand", "ixor", "ior", "sub", "and_", "xor", "or_"]
COMPARISONS = ["eq", "ne", "le", "lt", "ge", "gt"]
METHODS = [
    "difference_update",
    "intersection_update",
    "symmetric_difference_update",
    "update",
    "difference",
    "intersection",
    "symmetric_difference",
    "union",
    "issubset",
    "issuperset",
    "isdisjoint",
]


def call(name, a, b):
    if name in METHODS:
        return getattr(a, name)(b)
    return getattr(operator, name)(a, b)


def add(held):
    held.add(7)


def fail(held):
    held.clear()
    raise ValueError("unequal")


CHANGES = {"clear": set.clear, "add": add, "fail": fail}


def program(name, change, which, equal, x):
    held = []

    class Element:
        def __hash__(self):
            return 0

        def __eq__(self, other):
            if held:
                change(held.pop())
            return equal

    a, b = {Element()}, {Element()}
    held.append(b if which else a)
    try:
        out = call(name, a, b)
        out = len(out) if isinstance(out, set) else out
    except ValueError as e:
        out = str(e)
    held.clear()
    return out, len(a), len(b), x + 1


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", OPERATORS + COMPARISONS + METHODS)
def test_as_cpython(name, change, which, equal):
    x = torch.ones(1)
    expected = program(name, CHANGES[change], which, equal, x)
    compiled = tracer.compile(program, backend="eager")
    assert compiled(name, CHANGES[change], which, equal, x) == expected


def emptied(name, kinds, seed, x):
    """What is compared, in which order, while either set may be emptied, and what is left."""
    state = [seed]
    log = []
    sets = []

    def draw(count):
        state[0] = (state[0] * 1103515245 + 12345) % 2**31
        return (state[0] >> 16) % count

    class Element:
        def __init__(self, number):
            self.number = number
            self.hash = draw(3)

        def __hash__(self):
            return self.hash

        def __eq__(self, other):
            if not sets:
                return False
            log.append((self.number, other.number))
            if draw(25) == 0:
                sets[0].clear()
            if draw(25) == 0:
                sets[1].clear()
            return draw(4) == 0

    a = kinds[0]([Element(i) for i in range(draw(14))])
    b = kinds[1]([Element(100 + i) for i in range(draw(14))])
    sets.extend((a, b))
    try:
        out = call(name, a, b)
    except RuntimeError as e:
        out = str(e)
    sets.clear()
    shown = [[e.number for e in s] if isinstance(s, set) else s for s in (out, a)]
    return log, shown, [e.number for e in b], x + 1


class Derived(set):
    pass


@pytest.mark.parametrize("kinds", [(set, set), (set, Derived), (Derived, set), (set, list)])
@pytest.mark.parametrize("name", OPERATORS + COMPARISONS + METHODS)
def test_emptied(name, kinds):
    if list in kinds and name not in METHODS:
        return
    x = torch.ones(1)
    for seed in range(6):
        compiled = tracer.compile(emptied, backend="eager", fullgraph=True)
        assert compiled(name, kinds, seed, x) == emptied(name, kinds, seed, x)
