"""Expressions against Python's own integers."""

import operator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes import nodes
from torchsmith_guards._src.shapes import relation as rel
from torchsmith_guards._src.shapes.sympy_bridge import simplify, to_sympy

# Born bounds are part of what is tested: s >= 2, u >= 0, i any, p <= -1.
SYMBOLS = {
    "s0": (ex.symbol("s0", 2), st.integers(2, 50)),
    "s1": (ex.symbol("s1", 2), st.integers(2, 50)),
    "u0": (ex.symbol("u0", 0, 9), st.integers(0, 9)),
    "i0": (ex.symbol("i0"), st.integers(-50, 50)),
    "p0": (ex.symbol("p0", hi=-1), st.integers(-50, -1)),
}
VALUES = st.fixed_dictionaries({name: values for name, (_, values) in SYMBOLS.items()})

BINARY = {
    "+": (ex.add, operator.add),
    "-": (ex.sub, operator.sub),
    "*": (ex.mul, operator.mul),
    "//": (ex.floordiv, operator.floordiv),
    "%": (ex.mod, operator.mod),
    "min": (ex.minimum, min),
    "max": (ex.maximum, max),
}
COMPARE = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

LEAVES = st.sampled_from(sorted(SYMBOLS)) | st.integers(-6, 6)
TREES = st.recursive(
    LEAVES, lambda sub: st.tuples(st.sampled_from(sorted(BINARY)), sub, sub), max_leaves=8
)


def build(tree):
    if isinstance(tree, str):
        return SYMBOLS[tree][0]
    if isinstance(tree, int):
        return ex.const(tree)
    op, left, right = tree
    return BINARY[op][0](build(left), build(right))


def compute(tree, values):
    if isinstance(tree, str):
        return values[tree]
    if isinstance(tree, int):
        return tree
    op, left, right = tree
    return BINARY[op][1](compute(left, values), compute(right, values))


def both(tree, values):
    """The expression and Python's answer; None when the tree divides by zero."""
    try:
        return build(tree), compute(tree, values)
    except ZeroDivisionError:
        return None


@settings(max_examples=400, deadline=None)
@given(TREES, VALUES)
def test_value(tree, values):
    pair = both(tree, values)
    if pair is None:
        return
    expr, expected = pair
    try:
        assert expr.evaluate(values) == expected
    except ZeroDivisionError:
        pytest.fail(f"{expr} divides by zero where {tree} does not")


@settings(max_examples=300, deadline=None)
@given(TREES, VALUES)
def test_text_is_python(tree, values):
    pair = both(tree, values)
    if pair is not None:
        assert eval(pair[0].text(), {}, dict(values)) == pair[1]


@settings(max_examples=300, deadline=None)
@given(TREES, VALUES)
def test_bounds_contain_the_value(tree, values):
    pair = both(tree, values)
    if pair is not None:
        assert pair[0].lo <= pair[1] <= pair[0].hi


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(COMPARE)), TREES, TREES, VALUES)
def test_comparison(op, left, right, values):
    one, two = both(left, values), both(right, values)
    if one is None or two is None:
        return
    expected = COMPARE[op](one[1], two[1])
    condition = rel.relate(op, one[0], two[0])
    opposite = rel.invert(condition)
    if isinstance(condition, bool):
        assert condition is expected
        assert opposite is not expected
    else:
        assert condition.evaluate(values) is expected
        decided = opposite if isinstance(opposite, bool) else opposite.evaluate(values)
        assert decided is not expected
        assert eval(condition.text(), {}, dict(values)) is expected


@settings(max_examples=200, deadline=None)
@given(TREES, VALUES)
@example(("//", "s0", ("*", "s0", -2)), {"s0": 2, "s1": 2, "u0": 0, "i0": 0, "p0": -1})
def test_substitution_of_values_gives_a_literal(tree, values):
    pair = both(tree, values)
    if pair is None:
        return
    literals = {symbol: ex.const(values[name]) for name, (symbol, _) in SYMBOLS.items()}
    result = ex.substitute(pair[0], literals)
    assert isinstance(result, nodes.Const)
    assert result.value == pair[1]


@settings(max_examples=60, deadline=None)
@given(TREES, VALUES)
def test_sympy_agrees(tree, values):
    pair = both(tree, values)
    if pair is None:
        return
    import sympy

    converted = to_sympy(pair[0])
    numbers = {s: values[s.name] for s in converted.free_symbols}
    assert sympy.simplify(converted.subs(numbers)) == pair[1]


S0, S1, I0 = (SYMBOLS[n][0] for n in ("s0", "s1", "i0"))
C = ex.const


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (ex.mul(ex.add(S0, C(1)), S1), ex.add(ex.mul(S0, S1), S1)),
        (ex.add(S0, S1), ex.add(S1, S0)),
        (ex.sub(ex.add(S0, S1), S1), S0),
        (ex.floordiv(ex.mul(C(4), S0, S1), ex.mul(S0, S1)), C(4)),
        (ex.floordiv(ex.add(ex.mul(C(4), S0), C(3)), C(4)), S0),
        (ex.floordiv(ex.floordiv(I0, C(2)), C(3)), ex.floordiv(I0, C(6))),
        (ex.mod(ex.add(ex.mul(C(4), I0), C(7)), C(4)), C(3)),
        (ex.mod(S0, ex.mul(S0, S1)), S0),
        (ex.floordiv(S0, ex.mul(C(2), S0)), C(0)),
        (ex.floordiv(ex.mul(C(6), S0), ex.mul(C(4), S1)),
         ex.floordiv(ex.mul(C(3), S0), ex.mul(C(2), S1))),
        (ex.floordiv(S0, C(-3)), ex.floordiv(ex.neg(S0), C(3))),
        (ex.mod(S0, C(-3)), ex.neg(ex.mod(ex.neg(S0), C(3)))),
        (ex.maximum(C(1), S0), S0),
        (ex.minimum(S0, ex.add(S0, C(1))), S0),
        (ex.maximum(S0, ex.maximum(S1, S0)), ex.maximum(S1, S0)),
    ],
)  # fmt: skip
def test_canonical_forms_are_the_same_object(left, right):
    assert left is right


@pytest.mark.parametrize(
    ("op", "left", "right", "expected"),
    [
        (">=", S0, C(2), True),
        ("==", S0, C(1), False),
        ("!=", S0, C(0), True),
        ("<", C(0), ex.mul(S0, S1), True),
        ("<=", S0, ex.mul(S0, S1), True),
        ("==", S0, ex.mul(S0, S1), False),
        ("==", ex.mul(C(2), I0), C(3), False),
        ("==", ex.floordiv(S0, C(2)), C(0), False),
        (">=", ex.call("float", S0), C(0.0), True),
    ],
)
def test_bounds_decide(op, left, right, expected):
    assert rel.relate(op, left, right) is expected


@pytest.mark.parametrize(
    ("op", "left", "right", "text"),
    [
        ("==", C(5), S0, "s0 == 5"),
        ("==", ex.mul(C(2), S0), ex.mul(C(2), S1), "s0 == s1"),
        ("<", S0, C(7), "s0 <= 6"),
        (">", S0, C(7), "8 <= s0"),
        ("<=", ex.mul(C(2), I0), C(5), "i0 <= 2"),
        ("==", ex.add(S0, C(3)), S1, "s0 + 3 == s1"),
    ],
)
def test_relations_read_well(op, left, right, text):
    assert rel.relate(op, left, right).text() == text


def test_equal_relations_are_equal():
    one = rel.relate("==", ex.mul(C(2), S0), ex.mul(C(2), S1))
    assert one == rel.relate("==", S1, S0)
    assert hash(one) == hash(rel.relate("==", S1, S0))


def test_large_products_stay_small():
    wide = ex.add(*(ex.symbol(f"w{i}", 2) for i in range(12)))
    product = ex.mul(wide, wide, wide)
    values = {f"w{i}": i + 2 for i in range(12)}
    assert product.evaluate(values) == sum(values.values()) ** 3


def test_division_by_literal_zero():
    with pytest.raises(ZeroDivisionError):
        ex.floordiv(S0, C(0))
    with pytest.raises(ZeroDivisionError):
        ex.mod(S0, C(0))


def test_symbols_with_other_bounds_are_other_symbols():
    assert ex.symbol("q", 2) is ex.symbol("q", 2)
    assert ex.symbol("q", 2) is not ex.symbol("q")


def test_simplify_on_request():
    assert simplify(ex.sub(ex.mul(S0, S1), ex.mul(S0, S1))) == "0"


def test_logic():
    a, b = rel.relate("==", I0, C(3)), rel.relate("<=", I0, C(9))
    assert rel.join("and", a, True) == a
    assert rel.join("and", a, False) is False
    assert rel.join("or", a, True) is True
    assert rel.join("and", a, b, a) == rel.join("and", a, b)
    for value in range(12):
        values = {"i0": value}
        assert rel.join("and", a, b).evaluate(values) is (value == 3)
        assert rel.join("or", a, b).evaluate(values) is (value <= 9)
        assert rel.invert(rel.join("or", a, b)).evaluate(values) is (value > 9)
