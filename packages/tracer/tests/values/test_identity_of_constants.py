"""Whether equal numbers and texts are one object differs between calls: it is asked each time."""

import operator
import sys

import pytest
import torch
import torchsmith_tracer as tracer


def again(value):
    """An equal object that is another one."""
    return value[:1] + value[1:] if isinstance(value, str | bytes) else (value + 1) - 1


VALUES = ("ab c", b"ab c", 10**30, 1024.5, 3 + 4j)
TEXT, NUMBER = VALUES[0], VALUES[3]
ASKED = [
    lambda a, b: (a is b, a is not b, operator.is_(a, b)),
    lambda a, b: (id(a) == id(b), len({id(a), id(b)})),
    lambda a, b: ([a, 1][0] is [2, b][1], {1: a}[1] is b, a in (b,), [a].index(b)),
    lambda a, b: (a is TEXT, b is NUMBER, a == b),
]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize("first", [0, 1])
def test_equal_constants_are_one_object_or_two(ask, first):
    for value in VALUES:
        compiled = tracer.compile(ask, backend="eager", fullgraph=True)
        other = again(value)
        assert other is not value
        calls = [(value, other), (value, value), (other, other), (other, value)]
        for a, b in calls[first:] + calls:
            assert compiled(a, b) == ask(a, b)


def test_attributes_and_items_are_asked_like_arguments():
    class Holder:
        pass

    def program(holder, items):
        return holder.left is holder.right, items[0] is items[1], items[0] is holder.left

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    text = "ab c"
    for left in (text, again(text)):
        for right in (text, again(text)):
            holder = Holder()
            holder.left, holder.right = left, right
            for items in ([left, right], [text, text]):
                assert compiled(holder, items) == program(holder, items)


@pytest.mark.parametrize("make", [int, lambda n: float(n) + 0.5])
def test_numbers_that_vary_are_asked_like_constants(make):
    def program(a, b, x):
        return x + a, a is b, a + 0 is a, a is not b

    compiled = tracer.compile(program, backend="eager")
    x = torch.ones(2)
    for value in (1000, 2000, 3000, 7):
        a, b = make(value), make(value)
        for pair in ((a, make(value + 1)), (a, b), (a, a)):
            assert compiled(*pair, x)[1:] == program(*pair, x)[1:]


def test_interned_texts_are_one_object():
    class Text(str):
        pass

    def program(a, b):
        try:
            one = sys.intern(a) is sys.intern(b)
        except TypeError as e:
            return str(e)
        return one, sys.intern(a) is sys.intern("one " + "text")

    compiled = tracer.compile(program, backend="eager", fullgraph=True)
    text = "one text"
    for pair in ((text, again(text)), (again(text), text), (Text("a"), "b"), (5, "b"), ("b", b"")):
        assert compiled(*pair) == program(*pair)
