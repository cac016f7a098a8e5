"""Classes with a metaclass, and what is stored in classes, before and after a break."""

import sys

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def refused(fn, *args):
    try:
        return fn(*args)
    except TypeError as e:
        return str(e)


@case
def a_metaclass_with_an_order_of_its_own():
    class Hidden:
        found = 1

    class Orders(type):
        def mro(cls):
            return [base for base in type.mro(cls) if base is not Hidden]

    class Made(Hidden, metaclass=Orders):
        pass

    return [base.__name__ for base in Made.__mro__], hasattr(Made, "found")


@case
def subclasses_that_were_made_again():
    class Base:
        pass

    class Other:
        pass

    class Made(Other):
        pass

    before = Other.__subclasses__() == [Made]
    Made.__bases__ = (Base,)  # a break
    return (
        before,
        Base.__subclasses__() == [Made],
        Other.__subclasses__(),
        Made.__bases__ == (Base,),
    )


@case
def a_super_object_in_a_class():
    class Base:
        def name(self, n):
            return f"base {n}"

    class Made(Base):
        def name(self, n):
            return "made " + self.parent.name(n)

    Made.parent = super(Made)
    return Made().name(3)


class Text:
    def __get__(self, obj, cls):
        return f"text of {cls.__name__}, {obj is None}"


@case
def a_text_that_is_a_descriptor():
    class Made:
        __doc__ = Text()

    before = Made.__doc__, Made().__doc__
    sys.getrefcount(Made)
    return before, Made.__doc__, Made().__doc__


class Pair(tuple):
    pass


class Items(list):
    pass


class Word(str):
    pass


GIVEN = Pair((1, 2)), Items([1]), Word("ab")


@case
def slices_of_subclasses_are_plain():
    out = []
    for pair, items, word in (GIVEN, (Pair((1, 2)), Items([1]), Word("ab"))):
        made = pair[:], pair[0:2], pair * 1, pair + (), items[:], items * 1, word[:], word * 1
        out.append([type(part).__name__ for part in (*made, pair.__getitem__(slice(None)))])
        out.append((pair[:] is pair, pair[:] == pair))
    return out


@case
def words_of_operators_in_place():
    def add(a, b):
        a += b

    def power(a, b):
        a **= b

    def combine(a, b):
        a &= b

    pairs = [(None, 2), (1, None), ((1,), 2), ([1], 2), ({1}, [2])]
    return [refused(op, a, b) for op in (add, power, combine) for a, b in pairs]


@pytest.mark.filterwarnings("ignore::torchsmith_tracer.errors.TracerWarning")
@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_as_in_python(program):
    compiled = tracer.compile(program, backend="eager", options={"recompile_limit": 64})
    expected = program()
    for _ in range(2):
        assert compiled() == expected
