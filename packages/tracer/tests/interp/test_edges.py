"""Builtin types and protocols at their edges: compiled code does what CPython does."""

from __future__ import annotations

import abc
import functools
import random

import pytest
import torchsmith_tracer as tracer

CASES = []


def case(fn):
    """``fn`` without arguments gives the same compiled and not."""
    CASES.append(fn)
    return fn


# --- random numbers --------------------------------------------------------------------------


class EvenBits(random.Random):
    def getrandbits(self, k):
        return super().getrandbits(k) & ~1


def draws(rng):
    out = [rng.randrange(10), rng.randint(3, 9), rng.uniform(1, 2), rng.randrange(5, 50, 3)]
    for fn, args in ((rng.randrange, (0,)), (rng.randint, (3, 1)), (rng.randrange, (1, 9, 0))):
        try:
            fn(*args)
        except ValueError as e:
            out.append(str(e))
    items = list(range(6))
    rng.shuffle(items)
    return [*out, items, rng.sample(range(30), 4), rng.choice("abc"), rng.random()]


@case
def random_methods():
    return draws(random.Random(5))


@case
def random_methods_over_the_bits_of_a_subclass():
    return draws(EvenBits(5))


@case
def random_methods_replaced_on_the_object():
    rng, other = random.Random(5), random.Random(5)
    rng.getrandbits = lambda k: int(other.random() * 2**k)
    first = draws(rng)
    rng.randrange = lambda *args: 7
    return first, rng.randint(1, 99), rng.randrange(4)


# --- texts with addresses ----------------------------------------------------------------------


class Plain:
    def method(self):
        return 1


def _same_form(*pairs):
    """Each text is its object's own, wherever that lies now."""
    return [text == form % tuple(hex(id(o)) for o in objects) for text, form, *objects in pairs]


def addressed_texts(one):
    class Local:
        pass

    def inner():
        yield

    made, gen = Local(), inner()
    items = [made, one]
    items.append(items)
    get = classmethod(inner)
    text = "%s|%r|%%" % (made, [one])
    caught = ""
    try:
        raise ValueError(f"no {made!r} here")
    except ValueError as e:
        caught = str(e)
    table = {repr(made): 1, repr(one): 2}
    return [
        repr(Local) == str(type(made)),
        repr(made) == f"{made}" == str(made) != repr(one),
        repr(made) != "nothing" and repr(made) in table,
        len(table),
        repr(made).__class__ is str and isinstance(repr(made), str),
    ], [
        (repr(made), f"<{__name__}.addressed_texts.<locals>.Local object at %s>", made),
        (repr(one), f"<{__name__}.Plain object at %s>", one),
        (repr(inner), "<function addressed_texts.<locals>.inner at %s>", inner),
        (repr(gen), "<generator object addressed_texts.<locals>.inner at %s>", gen),
        (repr(one.method), f"<bound method Plain.method of <{__name__}.Plain object at %s>>", one),
        (
            str(items),
            f"[<{__name__}.addressed_texts.<locals>.Local object at %s>, "
            f"<{__name__}.Plain object at %s>, [...]]",
            made,
            one,
        ),
        (repr({1: one}), f"{{1: <{__name__}.Plain object at %s>}}", one),
        (repr({one}), f"{{<{__name__}.Plain object at %s>}}", one),
        (repr(frozenset([one])), f"frozenset({{<{__name__}.Plain object at %s>}})", one),
        (repr(get), "<classmethod(<function addressed_texts.<locals>.inner at %s>)>", inner),
        (
            text,
            f"<{__name__}.addressed_texts.<locals>.Local object at %s>|"
            f"[<{__name__}.Plain object at %s>]|%%",
            made,
            one,
        ),
        ("+".join(["a", repr(one)]), f"a+<{__name__}.Plain object at %s>", one),
        (caught, f"no <{__name__}.addressed_texts.<locals>.Local object at %s> here", made),
    ]


@pytest.mark.parametrize("how", ["eager", "compiled", "compiled again"])
def test_texts_with_addresses(how):
    fn = addressed_texts
    if how != "eager":
        fn = tracer.compile(fn, backend="eager", fullgraph=True)
    if how == "compiled again":
        fn(Plain())
    facts, texts = fn(Plain())
    assert facts == [True, True, True, 2, True]
    assert all(_same_form(*texts)), texts


@case
def errors_of_percent():
    out = []
    for operand in ((Plain(), 1), (), {"a": Plain()}):
        try:
            out.append(bool("%s" % operand))
        except TypeError as e:
            out.append(str(e))
    return out, "%(a)s %(b)r" % {"a": 1, "b": "x"}



@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_compiled_code_gives_what_python_gives(fn):
    expected = fn()
    assert tracer.compile(fn, backend="eager", fullgraph=True)() == expected
