"""Builtin types and protocols at their edges: compiled code does what CPython does."""

from __future__ import annotations

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


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_compiled_code_gives_what_python_gives(fn):
    expected = fn()
    assert tracer.compile(fn, backend="eager", fullgraph=True)() == expected
