"""What torch asks of a symbolic node."""

import itertools
import math

import pytest
import torch
from torchsmith_guards import LocalSource, ShapeEnv, SymNode, TensorPropertySource
from torchsmith_guards.errors import SymbolicTypeError


@pytest.fixture
def env():
    return ShapeEnv()


def symbol(env, hint, dim=0):
    return env.create_symbol(hint, TensorPropertySource(LocalSource("x"), "size", dim))


def test_numbers_and_truth_values_do_not_mix(env):
    s = symbol(env, 4)
    truth = (s == 5).node
    with pytest.raises(SymbolicTypeError, match="TS-G004"):
        truth.add(s.node)
    with pytest.raises(SymbolicTypeError, match="logic has no symbolic form"):
        s.node.sym_and(truth)


def test_literals(env):
    node = symbol(env, 4).node
    assert node.wrap_int(3).maybe_as_int() == 3
    assert node.wrap_float(1.5).maybe_as_float() == 1.5
    assert node.wrap_bool(True).maybe_as_bool() is True
    assert node.maybe_as_int() is None
    assert node.wrap_int(3).is_constant()
    assert not node.is_constant()
    assert (node.is_int(), node.is_float(), node.is_bool()) == (True, False, False)


def test_sympy_form_for_torch(env):
    from torch.fx.experimental.symbolic_shapes import free_symbols, free_unbacked_symbols

    s, u = symbol(env, 4), env.create_unbacked(size=True)
    assert {str(x) for x in free_symbols(s * 2 + u)} == {"s0", "u0"}
    assert {str(x) for x in free_unbacked_symbols([s, u])} == {"u0"}


@pytest.mark.parametrize(
    ("sizes", "strides"),
    [
        ((4, 5), (5, 1)), ((4, 5), (1, 4)), ((4, 1), (1, 1)), ((4, 1), (7, 3)), ((4, 5), (10, 2)),
        ((4, 0), (1, 1)), ((2, 3, 4, 5), (60, 20, 5, 1)), ((2, 3, 4, 5), (60, 1, 15, 3)),
        ((2, 3, 4, 5), (60, 4, 12, 3)), ((2, 3, 2, 4, 5), (120, 1, 60, 15, 3)), ((4, 5), (0, 1)),
    ],
)  # fmt: skip
def test_layout_questions_agree_with_torch(env, sizes, strides):
    real = torch.empty_strided(sizes, strides)
    nodes = [_node(env, n, dim) for dim, n in enumerate(sizes)]
    steps = [nodes[0].wrap_int(n) for n in strides]
    first = nodes[0]
    assert first.is_contiguous(nodes, steps).bool_() is real.is_contiguous()
    assert first.is_channels_last_contiguous_2d(nodes, steps).bool_() is (
        len(sizes) == 4 and real.is_contiguous(memory_format=torch.channels_last)
    )
    assert first.is_channels_last_contiguous_3d(nodes, steps).bool_() is (
        len(sizes) == 5 and real.is_contiguous(memory_format=torch.channels_last_3d)
    )
    assert first.is_non_overlapping_and_dense(nodes, steps).bool_() is _dense(sizes, strides)
    symbolic = torch.empty_like(real, device="meta").as_strided(sizes, strides)
    assert first.is_channels_last_strides_2d(nodes, steps).bool_() is (
        torch._prims_common.suggest_memory_format(symbolic) == torch.channels_last
    )


def _dense(sizes, strides):
    """By definition: the elements fill a block of memory, each its own place."""
    offsets = [
        sum(i * step for i, step in zip(index, strides))
        for index in itertools.product(*map(range, sizes))
    ]
    return sorted(offsets) == list(range(len(offsets)))


def _node(env, number, dim):
    made = env.create_symbol(number, TensorPropertySource(LocalSource("x"), "size", dim))
    return made.node if isinstance(made, torch.SymInt) else SymNode(env, _literal(number))


def _literal(number):
    from torchsmith_guards._src.shapes import expr as ex

    return ex.const(number)


@pytest.mark.parametrize("op", ["floor", "ceil", "trunc"])
@pytest.mark.parametrize("value", [-2.5, 2.5, 3.0])
def test_float_to_int(env, op, value):
    f = env.create_symbol(value, LocalSource("f"), "unspecified")
    assert getattr(f.node, op)().hint == getattr(math, op)(value)
    assert round(f).node.hint == round(value)
    assert f.is_integer().node.hint is value.is_integer()
    assert env.guards == []


def test_quotients_of_ints_stay_ints(env):
    s = symbol(env, 7)
    assert str(math.ceil(s / 2)) == "s0 - (s0//2)"
    assert str(math.floor(s / 2)) == "s0//2"
    assert str(torch.sym_int(torch.sym_float(s))) == "s0"


def test_truth_values_compare(env):
    s, t = symbol(env, 7), symbol(env, 8, 1)
    one, two = s == 7, t == 7
    assert (one == two).node.hint is False
    assert (one == one).node.hint is True
    assert one.node.sym_ite(s.node, t.node).hint == 7


def test_bits(env):
    s = symbol(env, 12)
    cases = [(s & 10, 8), (s | 3, 15), (s ^ 5, 9), (s << 2, 48), (s >> 1, 6)]
    for value, expected in cases:
        assert value.node.hint == expected
