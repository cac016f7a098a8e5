"""What a metaclass does when attributes of its classes are stored, deleted and listed."""

import copy
import enum
import pickle

import pytest
import torchsmith_tracer as tracer


class Keeps(type):
    log = []

    def __setattr__(cls, name, value):
        Keeps.log.append((name, value))
        super().__setattr__(name, value)

    def __delattr__(cls, name):
        Keeps.log.append(name)
        super().__delattr__(name)

    def __dir__(cls):
        return [*super().__dir__(), cls.extra]


class Kept(metaclass=Keeps):
    extra = "zz"


class Plain:
    pass


class Other(Plain):
    pass


class Season(enum.Enum):
    SPRING = 1
    SUMMER = 2

    def warm(self):
        return self is Season.SUMMER


class Number(int, enum.Enum):
    ONE = 1

    def __dir__(self):
        return ["shown"]


class Flags(enum.Flag):
    A = 1
    B = 2


class Derived(enum.StrEnum):
    X = "x"


def refused(change, *args):
    try:
        change(*args)
    except AttributeError as e:
        return str(e)
    return None


def stored_and_deleted(n):
    Keeps.log.clear()
    Kept.made = n
    listed = dir(Kept)
    del Kept.made
    return listed, hasattr(Kept, "made"), dir(Kept), list(Keeps.log), refused(delattr, Kept, "made")


def extra_is_another(n):
    Kept.extra = f"z{n}"
    try:
        return dir(Kept), type.__dir__(Kept)
    finally:
        Kept.extra = "zz"


def plain_class(n):
    Plain.made = n
    Other.own = n
    listed = dir(Plain), dir(Other), dir(Other()), type.__dir__(Other)
    del Plain.made, Other.own
    return listed, dir(Other), dir(Plain())


def members(n):
    done = [
        refused(setattr, Season, "SPRING", n),
        refused(delattr, Season, "SUMMER"),
        refused(setattr, Season, "other", n),
    ]
    found = Season.other, refused(delattr, Season, "other"), refused(delattr, Season, "other")
    return done, found, hasattr(Season, "other")


def listed(n):
    every = (Season.SPRING, Number.ONE, Flags.A, Flags.A | Flags.B, Derived.X)
    return [dir(member) for member in every], dir(Season), n


def copied(n):
    out = []
    for member in (Season.SPRING, Number.ONE, Flags.A, Flags.A | Flags.B, Derived.X):
        loaded = pickle.loads(pickle.dumps(member))
        same = loaded is member, copy.copy(member) is member, copy.deepcopy([member])[0] is member
        out.append((same, member.__reduce_ex__(4), n))
    return out


PROGRAMS = [stored_and_deleted, extra_is_another, plain_class, members, listed, copied]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_as_in_python(program):
    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    for n in (1, 2, 1):
        assert compiled(n) == program(n)


def test_names_that_a_class_gets_between_calls_are_listed():
    def program():
        return dir(Other), dir(Other()), dir(Season.SPRING)

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    assert compiled() == program()
    Plain.later = Season.later = 1
    try:
        assert compiled() == program()
    finally:
        del Plain.later, Season.later
    assert compiled() == program()
