"""Creation and element-moving operators against eager."""

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, kernels

X = torch.randn(3, 4, 6)


def fused(fn, *args, **kwargs):
    plan = check(fn, *args, **kwargs)
    assert not externs(plan), externs(plan)
    assert len(kernels(plan)) == 1
    return plan


def test_fills():
    fused(lambda x: torch.zeros(3, 4), X)
    fused(lambda x: torch.ones(3, 4, dtype=torch.int32), X)
    fused(lambda x: torch.full((2, 2), 1.5), X)
    fused(lambda x: torch.full_like(x, 2.5), X)
    fused(lambda x: torch.zeros_like(x, dtype=torch.bool), X)
    fused(lambda x: x.new_ones(4), X)
    fused(lambda x: x.new_full((4,), 3), X)
    fused(lambda x: torch.ops.aten.scalar_tensor(2.5, dtype=torch.float64), X)
    fused(lambda x: x + torch.ones(6) * 3, X)


def test_ranges():
    fused(lambda x: torch.arange(7), X)
    fused(lambda x: torch.arange(2, 9), X)
    fused(lambda x: torch.arange(2, 20, 3), X)
    fused(lambda x: torch.arange(9, 2, -2), X)
    fused(lambda x: torch.arange(5, dtype=torch.float32), X)
    fused(lambda x: torch.arange(6) + x, X)
    fused(lambda x: torch.eye(4), X)
    fused(lambda x: torch.eye(3, 5, dtype=torch.int64), X)
    assert externs(check(lambda x: torch.arange(0.0, 1.0, 0.1), X))


@pytest.mark.parametrize("diagonal", [-2, 0, 1])
def test_triangles(diagonal):
    fused(lambda x: x.tril(diagonal), X)
    fused(lambda x: x.triu(diagonal), X)
    fused(lambda x: torch.ones(5, 5, dtype=torch.bool).tril(diagonal), X)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat(dim):
    fused(lambda x: torch.cat([x, x * 2], dim), X)
    fused(lambda x: torch.cat([x.exp(), x, -x], dim), X)
    fused(lambda x: torch.cat([x], dim) + 1, X)
    fused(lambda x: torch.cat([x, x.long()], dim), X)
    fused(lambda x: torch.stack([x, x + 1, x * 2], dim), X)


def test_cat_of_uneven_pieces():
    fused(lambda x, y: torch.cat([x, y], 1) * 2, torch.randn(2, 1, 4), torch.randn(2, 6, 4))
    check(lambda x, y: torch.cat([x, y], 0), torch.randn(0), torch.randn(3))


def test_cat_of_bool_and_ints():
    fused(lambda x: torch.cat([x > 0, x < 1], 1), X)
    fused(lambda x: torch.cat([x.long(), x.long() * 2], 1), X * 10)


def test_pad():
    fused(lambda x: F.pad(x, (1, 2)), X)
    fused(lambda x: F.pad(x, (1, 0, 0, 3), value=2.5), X)
    fused(lambda x: F.pad(x, (-1, 2)), X)
    fused(lambda x: F.pad(x * 2, (0, 1)) + 1, X)
    fused(lambda x: F.pad(x, (0, 0)) + 1, X)


def test_pad_of_masked_cat():
    fused(lambda x: F.pad(torch.cat([x, x * 2], 1), (1, 1, 1, 1)), X)


def test_permutations():
    fused(lambda x: x.flip(0, 2), X)
    fused(lambda x: x.roll((1, -2), (1, 2)), X)
    fused(lambda x: x.roll(7, 1) * 2, X)
    fused(lambda x: x.repeat(2, 1, 3), X)
    fused(lambda x: x.repeat(2, 1, 1, 2), X)


def test_scatters_of_slices():
    fused(lambda x: torch.slice_scatter(x, x[:, :2] * 0, 1, 1, 3), X)
    fused(lambda x: torch.slice_scatter(x, x[:, ::2] * 0, 1, 0, 4, 2), X)
    fused(lambda x: torch.select_scatter(x, x[:, 0] * 0, 1, -1), X)


def test_rotate_half_is_one_kernel():
    def rope(q, cos, sin):
        half = q.shape[-1] // 2
        turned = torch.cat((-q[..., half:], q[..., :half]), -1)
        return q * cos + turned * sin

    fused(rope, torch.randn(2, 3, 5, 8), torch.randn(5, 8), torch.randn(5, 8))
