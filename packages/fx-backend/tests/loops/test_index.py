"""Index expressions: canonical form, and agreement with integer arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.sizes import TYPICAL_SIZE, estimate
from torchsmith_fx_backend._src.loops.views import reshape

i, j = ix.var(0), ix.var(1)
s, t = ix.Sym("s0"), ix.Sym("s1")


def c(n):
    return ix.const(n)


def test_like_terms_merge_and_order_does_not_matter():
    a = ix.add(ix.mul(c(3), i), j, c(4), ix.mul(i, c(2)))
    b = ix.add(c(4), j, ix.mul(c(5), i))
    assert a == b
    assert str(a) == "5 * i0 + i1 + 4"


def test_subtraction_cancels():
    assert ix.sub(ix.add(ix.mul(c(8), i), j), ix.mul(i, c(8))) == j


def test_product_distributes_over_sum():
    assert ix.mul(s, ix.add(i, c(2))) == ix.add(ix.mul(s, i), ix.mul(c(2), s))


@pytest.mark.parametrize("d", [c(12), s], ids=["constant", "symbol"])
def test_quotient_and_remainder_recombine(d):
    assert ix.add(ix.mul(ix.floordiv(i, d), d), ix.mod(i, d)) == i
    scaled = ix.add(ix.mul(ix.floordiv(i, d), d, c(5)), ix.mul(c(5), ix.mod(i, d)))
    assert scaled == ix.mul(c(5), i)


@pytest.mark.parametrize(
    "divisor",
    [
        ix.floordiv(s, c(TYPICAL_SIZE + 1)),
        ix.sub(s, c(TYPICAL_SIZE)),
        ix.mul(ix.sub(ix.floordiv(s, c(100)), c(5)), ix.sub(ix.floordiv(s, c(100)), c(5))),
        ix.floordiv(s, c(TYPICAL_SIZE << 14)),
        ix.sub(s, t),
    ],
    ids=str,
)
def test_estimates_of_sizes_with_a_divisor_that_is_zero_somewhere(divisor):
    assert estimate(ix.mul(c(4), ix.floordiv(ix.mul(s, t), divisor))) > 0
    assert estimate(ix.mod(ix.mul(s, t), divisor)) >= 0


def test_nested_splits_recombine():
    # A [4, 4] reshape of 16, split again into [2, 2, 2, 2] and put together.
    a, b = ix.floordiv(i, c(4)), ix.mod(i, c(4))
    parts = [ix.floordiv(a, c(2)), ix.mod(a, c(2)), ix.floordiv(b, c(2)), ix.mod(b, c(2))]
    total = ix.ZERO
    for part in parts:
        total = ix.add(ix.mul(c(2), total), part)
    assert total == i


def test_division_uses_ranges():
    flat = ix.add(ix.mul(c(16), i), j)
    ranges = {0: c(5), 1: c(16)}
    assert ix.floordiv(flat, c(16), ranges) == i
    assert ix.mod(flat, c(16), ranges) == j
    assert ix.floordiv(flat, c(16)) != i


def test_division_by_symbol_uses_symbolic_ranges():
    flat = ix.add(ix.mul(s, i), j)
    assert ix.floordiv(flat, s, {1: s}) == i
    assert ix.mod(flat, s, {1: s}) == j
    assert ix.mod(flat, s, {1: t}) != j


def test_exact_symbolic_quotient():
    assert ix.floordiv(ix.mul(c(6), s, t), ix.mul(c(3), s)) == ix.mul(c(2), t)


def test_coefficient_of_non_affine_is_none():
    assert ix.coefficient(ix.add(ix.mul(c(4), i), ix.mod(j, c(3))), 0) == c(4)
    assert ix.coefficient(ix.mod(i, c(3)), 0) is None
    assert ix.coefficient(j, 0) == ix.ZERO


def test_in_range_needs_a_proof():
    assert ix.in_range(i, c(8), {0: c(8)})
    assert not ix.in_range(i, c(7), {0: c(8)})
    assert not ix.in_range(i, c(8))
    assert ix.in_range(ix.add(i, s), ix.add(s, t), {0: t})


def test_render_for_c():
    x = ix.add(ix.mul(c(4), ix.floordiv(i, s)), c(-3))
    assert ix.render(x, lambda a: "xyz"[a], div="/") == "4 * (x / s0) + (-3)"


leaves = st.one_of(st.integers(0, 6).map(c), st.sampled_from([i, j, s]), st.sampled_from([i, j]))
POINT_RANGES = {0: c(7), 1: c(12)}


def _extend(inner):
    positive = st.one_of(st.integers(1, 12).map(c), st.just(s))
    return st.one_of(
        st.tuples(st.just("add"), inner, inner),
        st.tuples(st.just("mul"), inner, inner),
        st.tuples(st.just("floordiv"), inner, positive),
        st.tuples(st.just("mod"), inner, positive),
    )


trees = st.recursive(leaves, _extend, max_leaves=7)


def _build(tree):
    if isinstance(tree, ix.Index):
        return tree
    op, a, b = tree
    a, b = _build(a), _build(b)
    if op in ("add", "mul"):
        return getattr(ix, op)(a, b)
    return getattr(ix, op)(a, b, POINT_RANGES)


def _value(tree, point, symbols):
    if isinstance(tree, ix.Index):
        return ix.evaluate(tree, point, symbols)
    op, a, b = tree
    a, b = _value(a, point, symbols), _value(b, point, symbols)
    if op in ("add", "mul"):
        return a + b if op == "add" else a * b
    return a // b if op == "floordiv" else a % b


@settings(max_examples=400, deadline=None)
@given(trees, st.integers(0, 6), st.integers(0, 11), st.integers(1, 9))
def test_constructors_keep_the_value(tree, a, b, n):
    x = _build(tree)
    point, symbols = {0: a, 1: b}, {"s0": n}
    expected = _value(tree, point, symbols)
    assert ix.evaluate(x, point, symbols) == expected
    low, high = ix.bounds(x, POINT_RANGES)
    assert low is None or low <= expected
    assert high is None or expected <= high


@settings(max_examples=100, deadline=None)
@given(trees, trees, st.integers(0, 6), st.integers(0, 11))
def test_substitute_is_composition(tree, other, a, b):
    x, y = _build(tree), _build(other)
    symbols = {"s0": 5}
    z = ix.substitute(x, {0: y})
    inner = ix.evaluate(y, {0: a, 1: b}, symbols)
    assert ix.evaluate(z, {0: a, 1: b}, symbols) == ix.evaluate(x, {0: inner, 1: b}, symbols)


shapes = st.lists(st.sampled_from([1, 2, 3, 4, 6]), min_size=1, max_size=4)


@settings(max_examples=200, deadline=None)
@given(shapes, st.permutations(range(4)), st.data())
def test_reshape_keeps_row_major_position(source, _, data):
    total = 1
    for n in source:
        total *= n
    target, left = [], total
    while left > 1:
        n = data.draw(st.sampled_from([d for d in range(1, left + 1) if left % d == 0]))
        target.append(n)
        left //= n
    axes = {k: c(n) for k, n in enumerate(source)}
    at = tuple(ix.ZERO if n == 1 else ix.var(k) for k, n in enumerate(source))
    out = reshape(at, tuple(map(c, source)), tuple(map(c, target)), axes)
    point = [data.draw(st.integers(0, n - 1)) for n in source]

    def flat(sizes, coords):
        value = 0
        for n, x in zip(sizes, coords):
            value = value * n + x
        return value

    got = [ix.evaluate(x, point, {}) for x in out]
    assert all(0 <= x < n for x, n in zip(got, target))
    assert flat(target, got) == flat(source, point)


def test_reshape_of_symbolic_sizes_only_touches_its_group():
    at = (i, j)
    out = reshape(at, (ix.mul(s, t), c(32)), (s, t, c(4), c(8)), {0: ix.mul(s, t), 1: c(32)})
    assert [str(x) for x in out] == ["(i0 // s1)", "(i0 % s1)", "(i1 // 8)", "(i1 % 8)"]


def test_divisions_of_sizes_alone_have_functions_of_their_own():
    a, b = ix.Sym("s0"), ix.Sym("s1")
    of_sizes = ix.FloorDiv(ix.add(a, ix.Mod(b, a, True)), b, True)
    moving = ix.Mod(ix.add(ix.var(0), of_sizes), b, True)
    text = ix.render(moving, floored=("floordiv", "rem", "size_floordiv", "size_rem"))
    assert text == "rem(i0 + size_floordiv(s0 + size_rem(s1, s0), s1), s1)"
    assert ix.render(of_sizes, floored=("div", "rem")) == "div(s0 + rem(s1, s0), s1)"
