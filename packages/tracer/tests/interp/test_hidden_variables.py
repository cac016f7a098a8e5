"""Variables that comprehensions hide, variables without a value, and names that a class hides."""

import pytest
import torchsmith_tracer as tracer

skip = tracer.disable(lambda: None)


def defaults_after_a_hiding_one(n):
    i = "outer"
    numbers = [i for i in range(n)]
    made = [lambda i=i: i for i in range(3)]
    closed = [lambda: i for i in range(3)]
    return numbers, i, [f() for f in made], [f() for f in closed]


def broken_before(n):
    i = "outer"
    held = lambda: i
    skip()
    closed = [lambda i=i: i for i in range(n)]
    return [f() for f in closed], [i for i in range(2)], held(), i


def of_an_enclosing_function(n):
    a = n

    def inner():
        skip()
        hidden = [a for a in range(n)]
        return hidden, [a for _ in range(2)], [[a for a in "xy"] for _ in range(2)], a

    return inner()


def in_a_class(n):
    y = n

    class Holder:
        y = 5
        outer = [y for _ in range(2)]
        later = lambda: y

    return Holder.outer, Holder.later(), Holder.y


def in_a_class_of_an_enclosing_function(n):
    y = n

    class Holder:
        y = 5
        skip()
        outer = [y for _ in range(2)]
        own = [y for y in range(2)]

    return Holder.outer, Holder.own, Holder.y


def no_value_when_locals_are_asked(n):
    if n > 2:
        last = n
    show = lambda: last
    numbers = [i for i in range(n)]
    return "last" in locals(), sorted(locals()), numbers, show() if n > 2 else None


def no_value_when_a_step_asks(n):
    total = 0
    doubled = [last for i in range(n) if (last := 2 * i) >= 0]
    keep = lambda: (last, total)
    skip()
    return locals().get("last"), doubled, "keep" in dir(), keep() if n else None


def names_of_a_class(n):
    class Named:
        __qualname__ = "Other"
        k = n

    class Renamed:
        pass

    Renamed.__qualname__ = "New"
    made = type("Made", (), {"__qualname__": "Told"})
    named = [c.__qualname__ for c in (Named, Renamed, made)]
    hidden = ["__qualname__" in vars(c) for c in (Named, Renamed, made)]
    return named, hidden, hasattr(Named(), "__qualname__"), Named.k


PROGRAMS = [
    defaults_after_a_hiding_one,
    broken_before,
    of_an_enclosing_function,
    in_a_class,
    in_a_class_of_an_enclosing_function,
    no_value_when_locals_are_asked,
    no_value_when_a_step_asks,
    names_of_a_class,
]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_hidden_variables(fn):
    compiled = tracer.compile(fn, backend="eager")
    for n in (2, 3, 0, 4, 0):
        assert compiled(n) == fn(n)
