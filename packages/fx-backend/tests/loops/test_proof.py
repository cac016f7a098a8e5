"""Proofs about index expressions hold at every point, and settled expressions mean the same."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.proof import at_least, settled

c, i, j = ix.const, ix.var(0), ix.var(1)
s, t = ix.Sym("s0", 2), ix.Sym("s1", 2)
shift = ix.Sym("k", None, -1)


def test_a_flip_of_a_dimension_is_never_negative():
    for size in (c(7), s, ix.sub(s, c(3)), ix.mul(s, t)):
        assert at_least(ix.sub(ix.sub(size, c(1)), i), 0, (size,))
        assert not at_least(ix.sub(ix.sub(size, c(2)), i), 0, (size,))


def test_a_flip_of_a_merged_dimension_is_never_negative():
    flat = ix.add(ix.mul(t, i), j)
    assert at_least(ix.sub(ix.sub(ix.mul(s, t), c(1)), flat), 0, (s, t))
    assert not at_least(ix.sub(ix.sub(ix.mul(s, t), c(2)), flat), 0, (s, t))


def test_a_quotient_stays_below_what_it_came_from():
    assert at_least(ix.sub(s, ix.mul(c(2), ix.floordiv(s, c(2)))), 0)
    assert at_least(ix.sub(ix.sub(t, c(1)), ix.floordiv(i, s)), 0, (ix.mul(s, t),))


def test_an_extent_says_that_its_symbol_is_large():
    assert at_least(ix.sub(s, c(4)), 0, (ix.sub(s, c(3)),))
    assert not at_least(ix.sub(s, c(4)), 0)


def test_a_fact_is_used():
    outside = ix.sub(i, c(2))
    assert not at_least(outside, 0, (s,))
    assert at_least(outside, 0, (s,), (outside,))


def test_symbols_that_may_be_negative_prove_nothing():
    assert not at_least(ix.add(i, shift), 0, (s,))
    assert at_least(ix.mul(c(-1), shift), 1)


def test_a_numerator_is_lifted_or_the_division_marked():
    assert str(settled(ix.mod(ix.sub(i, c(2)), s), (s,))) == "((i0 + s0 + (-2)) % s0)"
    quotient = settled(ix.floordiv(ix.sub(c(3), i), c(4)), (c(24),))
    assert str(quotient) == "(((-1) * i0 + 23) // 4) + (-5)"
    marked = settled(ix.mod(ix.add(i, shift), s), (s,))
    assert ix.render(marked, floored=("fdiv", "fmod")) == "fmod(i0 + k, s0)"


def _trees():
    leaves = st.one_of(st.integers(-9, 9).map(c), st.sampled_from([i, j, s, shift]))
    den = st.one_of(st.integers(1, 6).map(c), st.just(s))

    def grow(children):
        pair = st.tuples(children, children)
        return st.one_of(
            pair.map(lambda p: ix.add(*p)),
            st.tuples(children, st.integers(-3, 3).map(c)).map(lambda p: ix.mul(*p)),
            st.tuples(children, den).map(lambda p: ix.floordiv(*p, (c(6), s))),
            st.tuples(children, den).map(lambda p: ix.mod(*p, (c(6), s))),
        )

    return st.recursive(leaves, grow, max_leaves=6)


def _machine(x, point, values):
    """``x`` on a machine that truncates, with floor functions where marked."""
    match x:
        case ix.Add(parts):
            return sum(_machine(p, point, values) for p in parts)
        case ix.Mul(parts):
            total = 1
            for part in parts:
                total *= _machine(part, point, values)
            return total
        case ix.FloorDiv(num, den, floored) | ix.Mod(num, den, floored):
            a, b = _machine(num, point, values), _machine(den, point, values)
            quotient = a // b if floored or a >= 0 else -(-a // b)
            return quotient if type(x) is ix.FloorDiv else a - quotient * b
    return ix.evaluate(x, point, values)


@settings(max_examples=150, deadline=None)
@given(_trees(), st.integers(-12, 12))
def test_what_is_proved_holds_everywhere(x, least):
    proved = at_least(x, least, (c(6), s))
    low, high = ix.bounds(x, (c(6), s))
    machine = settled(x, (c(6), s))
    for size, moved in product((2, 3, 7), (-1, -2, -8)):
        values = {"s0": size, "k": moved}
        for point in product(range(6), range(size)):
            value = ix.evaluate(x, point, values)
            assert not proved or value >= least
            assert low is None or low <= value
            assert high is None or value <= high
            assert _machine(machine, point, values) == value


@pytest.mark.parametrize("size", [c(5), s])
def test_simplification_agrees_with_floor_arithmetic_below_zero(size):
    for offset, by in product((-7, -2, -1), (2, 3, 4)):
        x = ix.sub(ix.add(i, c(offset)), j)
        ranges = (size, c(4))
        for a, b in product(range(5), range(4)):
            value = a + offset - b
            point, values = (a, b), {"s0": 5}
            assert ix.evaluate(ix.floordiv(x, c(by), ranges), point, values) == value // by
            assert ix.evaluate(ix.mod(x, c(by), ranges), point, values) == value % by
