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
