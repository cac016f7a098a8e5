"""What ``functools.cmp_to_key`` makes is an object of its C class."""

import functools

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    CASES.append(fn)
    return fn


def order(a, b):
    return (a > b) - (a < b)


def outcome(fn, *args):
    try:
        return fn(*args)
    except Exception as e:
        return type(e).__name__, str(e)


MADE = functools.cmp_to_key(order)


@case
def its_class(key):
    kind = type(key)
    return kind is type(MADE), kind is type(key(1)), kind.__name__, isinstance(key(1), kind)


@case
def its_class_makes_none(key):
    return outcome(type(key)), outcome(type(key), order)


@case
def comparisons(key):
    one, two = key(1), key(obj=2)
    return one < two, one > two, one <= two, one >= two, one == key(1), one != key(1)


@case
def comparisons_with_others(key):
    return outcome(lambda: key < key(1)), outcome(lambda: key(1) < 1), outcome(hash, key(1))


@case
def what_it_wraps(key):
    wrapped = key(3)
    first, nothing = wrapped.obj, key.obj
    wrapped.obj = 7
    return first, nothing, wrapped.obj, wrapped < key(8)


@case
def errors_of_the_function(_):
    bad = functools.cmp_to_key(lambda a, b: 1 // a)
    return outcome(lambda: bad(0) < bad(1)), outcome(lambda: bad(None) < bad(1))


@case
def sorting(key):
    return sorted([3, 1, 2], key=key), min([3, 1, 2], key=key), max([3, 1, 2], key=key)


@pytest.mark.parametrize("program", CASES, ids=lambda program: program.__name__)
def test_as_in_python(program):
    def made_within():
        return program(functools.cmp_to_key(order))

    assert tracer.compile(made_within, backend="eager", fullgraph=True)() == made_within()
    assert tracer.compile(program, backend="eager")(MADE) == program(MADE)


def test_made_again_after_the_graph():
    @functools.partial(tracer.compile, backend="eager", fullgraph=True)
    def program():
        key = functools.cmp_to_key(order)
        return key, key(4)

    key, four = program()
    assert type(key) is type(four) is type(MADE)
    assert (key.obj, four.obj) == (None, 4) and key(3) < four < key(5)
