"""The shape environment: symbols, decisions, guards, rollback."""

import math

import pytest
import torch
from torchsmith_guards import (
    Add,
    Const,
    FloorDiv,
    GuardKind,
    GuardSet,
    LocalSource,
    Mul,
    ShapeEnv,
    ShapeRelation,
    Symbol,
    TensorPropertySource,
    expr_of,
    hint_of,
    is_symbolic,
)
from torchsmith_guards.errors import DataDependentError

X = LocalSource("x")
N = LocalSource("n")


def size(dim, source=X):
    return TensorPropertySource(source, "size", dim)


@pytest.fixture
def env():
    return ShapeEnv()


def texts(env):
    return [g.condition.text() for g in env.guards]


def relations(env):
    return [g.expected.text() for g in env.shape_guards() if isinstance(g.expected, ShapeRelation)]


# --- creation --------------------------------------------------------------------------------


def test_symbols_are_torch_sym_ints(env):
    s = env.create_symbol(4, size(0))
    assert isinstance(s, torch.SymInt)
    assert is_symbolic(s)
    assert not is_symbolic(4)
    assert hint_of(s) == 4
    assert str(s) == "s0"
    assert env.bindings == {"s0": size(0)}


@pytest.mark.parametrize("value", [0, 1])
def test_sizes_zero_and_one_are_specialised(env, value):
    assert env.create_symbol(value, size(0)) == value
    assert not env.has_symbols
    n = env.create_symbol(value, N, "unspecified")
    assert is_symbolic(n)
    assert bool(n == value)
    assert len(env.guards) == 1


def test_equal_sizes_share_a_symbol_and_are_guarded(env):
    a, b = env.create_symbol(4, size(0)), env.create_symbol(4, size(1))
    assert expr_of(a) is expr_of(b)
    assert a == b
    assert env.guards == []
    assert "x.size(1) == x.size(0)" in relations(env)


def test_ints_do_not_share(env):
    a = env.create_symbol(4, size(0))
    b = env.create_symbol(4, N, "unspecified")
    assert expr_of(a) is not expr_of(b)
    kinds = [(g.source, g.kind, g.expected) for g in env.shape_guards()]
    assert (N, GuardKind.TYPE, int) in kinds


def test_one_source_has_one_symbol(env):
    a, b = env.create_symbol(4, N, "unspecified"), env.create_symbol(4, N, "unspecified")
    assert expr_of(a) is expr_of(b)
    assert env.bindings[expr_of(a).name] == N


def test_negative_ints(env):
    n = env.create_symbol(-3, N, "unspecified")
    assert hint_of(n) == -3
    assert bool(n < 0)
    made = GuardSet(env.shape_guards()).compile(["n"])
    assert [made.check(v) for v in (-1, -9, 0, 5, -2.0)] == [True, True, False, False, False]


@pytest.mark.parametrize(
    ("value", "yes", "no"),
    [
        (2.5, [2.5], [2.0, float("nan")]),
        (0.0, [0.0], [-0.0, 1.0]),
        (-0.0, [-0.0], [0.0]),
        (float("nan"), [float("nan")], [0.0, 1.0]),
    ],
)
def test_specialised_floats(env, value, yes, no):
    env.create_symbol(value, N, "unspecified").node.specialise()
    made = GuardSet(env.shape_guards()).compile(["n"])
    assert [made.check(v) for v in (*yes, *no)] == [True] * len(yes) + [False] * len(no)


def test_floats(env):
    f = env.create_symbol(2.5, N, "unspecified")
    assert isinstance(f, torch.SymFloat)
    assert hint_of(f * 2) == 5.0
    assert bool(f > 2.0)
    made = GuardSet(env.shape_guards()).compile(["n"])
    assert [made.check(v) for v in (2.5, 2.25, 1.5, 3)] == [True, True, False, False]


# --- arithmetic through torch's own operators --------------------------------------------------


def test_arithmetic(env):
    s, t = env.create_symbol(4, size(0)), env.create_symbol(6, size(1))
    cases = [
        (s + t, 10), (s + 1, 5), (1 + s, 5), (s - t, -2), (10 - s, 6), (s * t, 24), (2 * s, 8),
        (t // s, 1), (t // 4, 1), (13 // s, 3), (t % s, 2), (t % 4, 2), (13 % 4, 1), (-s, -4),
        (s**2, 16), (abs(s), 4), (torch.sym_max(s, t), 6), (torch.sym_min(s, 2), 2),
        (torch.sym_sum([s, t, 1]), 11), (s / 8, 0.5), (s / t, 4 / 6), (torch.sym_float(s), 4.0),
        (torch.sym_int(t / s), 1), (math.ceil(t / s), 2), (math.floor(t / s), 1), (s * 0.5, 2.0),
        (torch.sym_not(s == t), True), (s > t, False), (s <= t, True), (s == 4, True),
    ]  # fmt: skip
    for value, expected in cases:
        assert hint_of(value) == expected
    assert env.guards == []


def test_results_that_are_known_are_plain(env):
    s = env.create_symbol(4, size(0))
    assert (s - s).__class__ is int or (s - s).node.maybe_as_int() == 0
    assert (s >= 2) is True
    assert (s == 0) is False
    assert env.guards == []


def test_public_expressions(env):
    s, t = env.create_symbol(4, size(0)), env.create_symbol(6, size(1))
    assert isinstance(expr_of(s), Symbol)
    assert isinstance(expr_of(3), Const)
    assert isinstance(expr_of(s + t), Add)
    assert isinstance(expr_of(s * t), Mul)
    assert isinstance(expr_of(s // t), FloorDiv)
    with pytest.raises(TypeError):
        expr_of("3")
    with pytest.raises(TypeError):
        hint_of(None)


# --- decisions -----------------------------------------------------------------------------------


def test_branches_record_what_was_taken(env):
    s = env.create_symbol(4, size(0))
    assert not (s > 5)
    assert texts(env) == ["s0 <= 5"]
    if s % 2 == 0:
        assert texts(env) == ["s0 <= 5", "s0 % 2 == 0"]
    else:
        pytest.fail("4 is even")


def test_branches_that_follow_are_not_recorded(env):
    s = env.create_symbol(4, size(0))
    assert s < 10
    for known in (s < 11, s <= 9, 2 * s < 21, s != 12, s != 10):
        assert bool(known) is True
    assert bool(s > 9) is False
    assert texts(env) == ["s0 <= 9"]


def test_equalities_replace(env):
    s, t = env.create_symbol(4, size(0)), env.create_symbol(8, size(1))
    assert t == 2 * s
    assert bool(t % s == 0)
    assert bool(t + s == 3 * s)
    assert texts(env) == ["s1 == 2*s0"] or texts(env) == ["2*s0 == s1"]


def test_int_specialises(env):
    s = env.create_symbol(4, size(0))
    assert int(s) == 4
    assert texts(env) == ["s0 == 4"]
    assert [0, 1, 2, 3, 4][s] == 4
    assert bool(s > 3)
    assert texts(env) == ["s0 == 4"]


def test_user_line_is_kept():
    env = ShapeEnv(where=lambda: "app.py:3")
    assert env.create_symbol(4, size(0)) < 9
    assert env.guards[0].user_line == "app.py:3"
    assert env.shape_guards()[-1].user_line == "app.py:3"


def test_suppressed_guards(env):
    s = env.create_symbol(4, size(0))
    with env.suppress_guards():
        assert s < 9
    assert env.guards == []


def test_conjunctions(env):
    s, t = env.create_symbol(4, size(0)), env.create_symbol(6, size(1))
    both = torch.sym_not((s < 5) & (t < 5))
    assert bool(both)
    made = GuardSet(env.shape_guards()).compile(["x"])
    results = [made.check(torch.empty(a, b)) for a, b in ((4, 6), (9, 3), (4, 3))]
    assert results == [True, True, False]


# --- guards decide for other sizes as the program would -----------------------------------------


@pytest.mark.parametrize(
    "branch",
    [
        lambda s, t: s > t,
        lambda s, t: s * 2 == t,
        lambda s, t: (s + t) % 3 == 0,
        lambda s, t: t // s >= 2,
        lambda s, t: torch.sym_max(s, t) < 7,
        lambda s, t: s * t - t > 12,
        lambda s, t: s / t < 0.5,
    ],
)
def test_guards_hold_exactly_where_the_branch_goes_the_same_way(branch):
    def env_for(a, b):
        env = ShapeEnv()
        s, t = env.create_symbol(a, size(0)), env.create_symbol(b, size(1))
        return env, bool(branch(s, t))

    env, taken = env_for(3, 6)
    made = GuardSet(env.shape_guards()).compile(["x"])
    for a in range(2, 9):
        for b in range(2, 9):
            same = taken is bool(branch(a, b))
            assert made.check(torch.empty(a, b)) is same, (a, b, made.code)


# --- data-dependent ------------------------------------------------------------------------------


def test_unbacked_symbols(env):
    u = env.create_symbol(None, None, "unbacked")
    assert hint_of(u) is None
    assert hint_of(u + 1) is None
    with pytest.raises(DataDependentError, match=r"only the data determines u0"):
        bool(u > 3)
    with pytest.raises(DataDependentError, match="TS-G003"):
        int(u)
    assert env.guards == []


def test_checks_on_unbacked_symbols_become_runtime_asserts(env):
    u = env.create_unbacked(size=True)
    assert bool(u >= 0)
    torch._check(u < 10)
    assert bool(u < 12)
    assert [g.condition.text() for g in env.runtime_asserts] == ["u0 <= 9"]
    assert env.shape_guards() == []


def test_guard_or_false(env):
    from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true

    u, s = env.create_unbacked(), env.create_symbol(4, size(0))
    assert guard_or_false(u == 3) is False
    assert guard_or_false(s == 4) is True
    assert statically_known_true(s >= 2) is True
    assert statically_known_true(s >= 9) is False
    assert texts(env) == ["s0 == 4"]


# --- rollback ------------------------------------------------------------------------------------


def test_rollback_forgets_everything(env):
    s = env.create_symbol(4, size(0))
    assert s < 100
    before = (texts(env), relations(env), dict(env.bindings), dict(env.hints))
    mark = env.checkpoint()
    t = env.create_symbol(6, size(1))
    env.create_symbol(6, size(2))
    assert s == 4
    assert s + 2 == t
    torch._check(env.create_unbacked() > 3)
    env.rollback(mark)
    assert (texts(env), relations(env), dict(env.bindings), dict(env.hints)) == before
    assert env.runtime_asserts == []
    again = env.create_symbol(7, size(1))
    assert str(again) == "s1"
    assert s < 50
    assert texts(env) == ["s0 <= 99", "s0 <= 49"]
    assert bool(s > 3) and texts(env)[-1] == "4 <= s0"


def test_a_condition_whose_opposite_is_impossible_holds():
    env = ShapeEnv()
    size = env.create_symbol(5, LocalSource("n"))
    pieces = (size + 2) // 3  # how many of three chunks: the last one is never negative
    assert env.static_truth((pieces * 2 <= size).node.condition) is True
    assert env.guards == []


SOLVED = {  # -> whether no other size than 6 fits
    "plus its third": (lambda s: s + s // 3 == 8, True),
    "squared": (lambda s: s * s == 36, True),
    "elements": (lambda s: (s * 4) // 3 == 8, True),
    "times": (lambda s: s * 4 == 24, True),
    "its half": (lambda s: s // 2 == 3, False),
    "remainder": (lambda s: s % 4 == 2, False),
    "not": (lambda s: s + s // 3 != 9, False),
}


@pytest.mark.parametrize("name", SOLVED)
def test_an_equality_with_one_solution_is_that_number(env, name):
    condition, alone = SOLVED[name]
    symbol = env.create_symbol(6, size(0))
    assert bool(condition(symbol))
    assert (env.simplify(expr_of(symbol)).text() == "6") is alone
    assert env.guards


@pytest.mark.parametrize("write", [lambda n: 3 % (n // 7), lambda n: 12 // (n // 7)])
def test_conditions_whose_divisor_is_zero_for_all_smaller_sizes(write):
    env = ShapeEnv()
    n = env.create_symbol(7, size(0))
    assert bool(write(n) == write(7))
    assert env.guards
