"""Texts of instances of builtin types' subclasses: their own where CPython asks them."""

import enum

import pytest
import torch
import torchsmith_tracer


class Word(str):
    def __str__(self):
        return "own"


class Shown(str):
    def __repr__(self):
        return "shown"


class Spelled(str):
    def __format__(self, spec):
        return f"spelled {spec}"


class Number(int):
    def __str__(self):
        return "number"


class Half(float):
    def __str__(self):
        return "half"

    def __float__(self):
        return 0.5


class Level(enum.IntEnum):
    LOW = 1


VALUES = [Word("w"), Shown("s"), Spelled("p"), Number(3), Half(2.0), Level.LOW]


def texts(x, v):
    return x + 1, [
        *("%s" % v, "%r" % v, "%s and %a" % (v, v), "%(a)s" % {"a": v}, "%%%s" % v),
        *("{}".format(v), f"{v}", f"{v!s}", f"{v!r}", str(v), repr(v), format(v), format(v, "")),
    ]


def padded(x, v):
    return x + 1, ["%5s" % v, "%-6r|" % v]


def numbers(x, v):
    return x + 1, ["%d" % v, "%05.1f" % v, "%x" % int(v)]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("program", [texts, padded, numbers])
def test_texts_are_cpythons(program, value):
    if program is numbers and isinstance(value, str):
        pytest.skip("not a number")
    x = torch.ones(1)
    assert torchsmith_tracer.compile(program, backend="eager")(x, value)[1] == program(x, value)[1]
