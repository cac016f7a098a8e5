"""Where Python asks whether a class derives from another, and where it asks the metaclass."""

import abc
import typing

import pytest
import torchsmith_tracer as tracer

ASKED = []


class Agrees(type):
    def __instancecheck__(cls, obj):
        ASKED.append("instance")
        return True

    def __subclasscheck__(cls, other):
        ASKED.append("subclass")
        return True


class Left(metaclass=Agrees):
    def __add__(self, other):
        return "left"

    def __lt__(self, other):
        return "less"


class Right(metaclass=Agrees):
    def __radd__(self, other):
        return "right"

    def __gt__(self, other):
        return "greater"


class Made(metaclass=Agrees):
    def __new__(cls):
        return 5

    def __init__(self):
        raise AssertionError("5 is no instance")


class Error(Exception, metaclass=Agrees):
    pass


def caught(raised):
    try:
        raise raised
    except (Error, KeyError) as e:
        return type(e).__name__


def caught_in_groups(raised):
    found = []
    try:
        raise ExceptionGroup("g", [raised, KeyError(1)])
    except* Error:
        found.append("error")
    except* KeyError as e:
        found.append(repr(e))


def split():
    match, rest = ExceptionGroup("g", [ValueError(1), Error(2)]).split(Error)
    return repr(match), repr(rest)


PROGRAMS = {
    "reflected": lambda: Left() + Right(),
    "compared": lambda: Left() < Right(),
    "made": Made,
    "super": lambda: super(Right, Left()),
    "asked": lambda: (isinstance(3, Left), issubclass(int, Left)),
    "asked of type": lambda: (type.__instancecheck__(Left, 3), type.__subclasscheck__(Left, int)),
    "caught": lambda: caught(KeyError(1)),
    "not caught": lambda: caught(ValueError(1)),
    "no exception": lambda: caught(3),
    "none of a group": lambda: caught_in_groups(ValueError(1)),
    "split": split,
}


def outcome(fn):
    ASKED.clear()
    try:
        return fn(), ASKED.copy()
    except Exception as e:
        return type(e), str(e), ASKED.copy()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_metaclass_is_asked_where_python_asks_it(name):
    expected = outcome(PROGRAMS[name])
    assert outcome(tracer.compile(PROGRAMS[name], backend="eager")) == expected


class Listed(typing.Protocol):
    x: int
    y: int


class Closes(abc.ABC):
    pass


class Point:
    x = 1

    def __init__(self):
        self.y = 2

    def close(self):
        pass


def protocol_made_within(point):
    @typing.runtime_checkable
    class Made(typing.Protocol):
        x: int
        y: int

    return isinstance(point, Made), isinstance(3, Made)


def protocol_to_be_checked(point):
    checked = typing.runtime_checkable(Listed)
    found = isinstance(point, checked), isinstance(3, checked)
    del Listed._is_runtime_protocol
    return found


def hook_of_an_abstract_class(point):
    Closes.__subclasshook__ = classmethod(lambda cls, kind: hasattr(kind, "close"))
    found = isinstance(point, Closes), issubclass(Point, Closes), issubclass(int, Closes)
    del Closes.__subclasshook__
    Closes._abc_caches_clear()
    return found


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.TracerWarning")
@pytest.mark.parametrize(
    "program", [protocol_made_within, protocol_to_be_checked, hook_of_an_abstract_class]
)
def test_checks_of_a_class_that_was_changed_just_now(program):
    compiled = tracer.compile(program, backend="eager")
    for _ in range(2):
        assert compiled(Point()) == program(Point())
