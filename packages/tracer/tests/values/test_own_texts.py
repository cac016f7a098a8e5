"""Texts of instances of builtin types' subclasses: their own where CPython asks them."""

import collections
import enum
import types

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


class Mode(str, enum.Enum):
    FAST = "fast"

    def __repr__(self):
        return f"mode {str.__repr__(self)}"


class Plain(str, enum.Enum):
    A = "a"


VALUES = [Word("w"), Shown("s"), Spelled("p"), Number(3), Half(2.0), Level.LOW, Mode.FAST, Plain.A]


def texts(x, v):
    return x + 1, [
        *("%s" % v, "%r" % v, "%s and %a" % (v, v), "%(a)s" % {"a": v}, "%%%s" % v),
        *("{}".format(v), f"{v}", f"{v!s}", f"{v!r}", str(v), repr(v), format(v), format(v, "")),
    ]


def padded(x, v):
    return x + 1, ["%5s" % v, "%-6r|" % v]


def numbers(x, v):
    return x + 1, ["%d" % v, "%05.1f" % v, "%x" % int(v)]


def joined(x, v):
    first = "-".join([v]), "-".join([v, "z", v]), v.join("xy"), type("".join([v]))
    named = types.SimpleNamespace(**{v: x})
    return x + 1, [*first, list(vars(named)) == [v], str.__str__(v), str.__repr__(v)]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: type(v).__name__)
@pytest.mark.parametrize("program", [texts, padded, numbers, joined])
def test_texts_are_cpythons(program, value):
    if program is numbers and isinstance(value, str):
        pytest.skip("not a number")
    if program is joined and not isinstance(value, str):
        pytest.skip("not a text")
    x = torch.ones(1)
    assert torchsmith_tracer.compile(program, backend="eager")(x, value)[1] == program(x, value)[1]


class Ordered(collections.OrderedDict):
    pass


class Defaults(collections.defaultdict):
    pass


class Some(set):
    pass


class Fixed(frozenset):
    pass


class Window(collections.deque):
    pass


@pytest.mark.parametrize("made", [False, True])
def test_texts_of_containers_name_their_class(made):
    given = (Ordered(a=1), Defaults(int, b=2), Some([1, 2]), Fixed([3, 4]), Some(), Window([1], 2))

    def program(x, given):
        if made:
            given = (
                Ordered(a=1),
                Defaults(int, b=2),
                Some([1, 2]),
                Fixed([3, 4]),
                Some(),
                Window([1], 2),
            )
        return x + 1, [repr(v) for v in given], str(given[0]), f"{given[1]}"

    x = torch.ones(1)
    compiled = torchsmith_tracer.compile(program, backend="eager")
    assert compiled(x, given)[1:] == program(x, given)[1:]


def test_format_reads_attributes_that_every_object_has():
    def program(x, v):
        template = "{0.__class__.__name__} {k.__doc__} {0.__dict__} {0.__class__}"
        return x + 1, template.format(v, k=v), "{k.__class__.__name__}".format_map({"k": v})

    v, x = Word("w"), torch.ones(1)
    v.tag = 3
    compiled = torchsmith_tracer.compile(program, backend="eager")
    assert compiled(x, v)[1:] == program(x, v)[1:]
