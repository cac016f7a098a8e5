"""Reductions against eager: dims, dtypes, special values, composites."""

import math

import pytest
import torch
import torch.nn.functional as F
from plans import check, externs, kernels

X = torch.randn(3, 4, 5)
SPECIAL = torch.tensor([[1.0, math.nan, 3.0], [math.inf, 2.0, -math.inf], [-0.0, 0.0, -1.0]])


def fused(fn, *args, **kwargs):
    plan = check(fn, *args, **kwargs)
    assert not externs(plan), externs(plan)
    assert len(kernels(plan)) == 1
    return plan


DIMS = [None, 0, 1, -1, (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("dim", DIMS, ids=str)
@pytest.mark.parametrize("name", "sum nansum mean amax amin".split())
def test_dims(name, dim, keepdim):
    op = getattr(torch, name)
    if dim is None:
        fused(lambda x: op(x, dim=()) if name.startswith("am") else op(x), X)
    else:
        fused(lambda x: op(x, dim=dim, keepdim=keepdim), X)


@pytest.mark.parametrize("name", "var std".split())
@pytest.mark.parametrize("dim", [0, -1, (0, 2)], ids=str)
@pytest.mark.parametrize("correction", [0, 1, 2])
def test_variance(name, dim, correction):
    op = getattr(torch, name)
    fused(lambda x: op(x, dim=dim, correction=correction), X)
    fused(lambda x: op(x, dim=dim, correction=correction, keepdim=True) + 1, X + 100)


def test_variance_overloads():
    fused(lambda x: x.var(), X)
    fused(lambda x: x.var(unbiased=False), X)
    fused(lambda x: x.std(1, unbiased=False), X)
    fused(lambda x: torch.var_mean(x, -1), X)
    fused(lambda x: torch.std_mean(x, (0, 1), keepdim=True), X)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", "sum mean amax var".split())
def test_float_dtypes(name, dtype):
    op = getattr(torch, name)
    fused(lambda x: op(x, -1), X.to(dtype))


def test_low_precision_accumulates_in_float32():
    x = torch.full((2, 4096), 0.1, dtype=torch.bfloat16)
    fused(lambda x: x.sum(-1), x)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool], ids=str)
def test_integers(dtype):
    x = torch.tensor([[1, 0, 3], [2, 5, 0]]).to(dtype)
    fused(lambda x: x.sum(-1), x)
    fused(lambda x: x.prod(0), x)
    fused(lambda x: x.amax(1), x)
    fused(lambda x: x.any(1), x)
    fused(lambda x: x.all(1), x)
    fused(lambda x: torch._is_all_true(x > 0), x)  # as distributions check their arguments
    fused(lambda x: torch._is_any_true(x > 0), x)
    fused(lambda x: x.sum(-1, dtype=torch.float32), x)


@pytest.mark.parametrize("given", [{}, {"keepdim": True}, {"dim": 1}, {"dim": -1, "keepdim": True}])
def test_both_ends(given):
    for x in (X, SPECIAL, X.bfloat16(), (X * 9).int(), X.transpose(0, 1)):
        fused(lambda x: torch.aminmax(x, **given), x)
    fused(lambda x: torch.aminmax(x), X[0, 0, 0])


def test_special_values():
    fused(lambda x: x.amax(1), SPECIAL)
    fused(lambda x: x.nansum(1), SPECIAL)
    fused(lambda x: x.nansum(0, keepdim=True, dtype=torch.float64) * 2, SPECIAL)
    fused(lambda x: x.nansum(), SPECIAL * math.nan)
    fused(lambda x: x.nanmean(1), SPECIAL)
    fused(lambda x: x.amin(1), SPECIAL)
    fused(lambda x: x.sum(0), SPECIAL)
    fused(lambda x: x.any(0), SPECIAL)
    fused(lambda x: x.all(0), SPECIAL)
    fused(lambda x: x.prod(1), SPECIAL)
    fused(lambda x: x.max(), SPECIAL[1:])
    fused(lambda x: x.min(), SPECIAL[1:])


def test_positions():
    x = torch.tensor([[1.0, 5.0, 5.0], [7.0, math.nan, 9.0], [2.0, 2.0, 2.0]])
    fused(lambda x: x.argmax(1), x)
    fused(lambda x: x.argmin(1, keepdim=True), x)
    fused(lambda x: x.argmax(), x[::2])
    fused(lambda x: x.argmax(0), x)
    fused(lambda x: tuple(x.max(1)), x)
    fused(lambda x: tuple(x.min(0, keepdim=True)), x)
    fused(lambda x: (x * 3).argmax(1), torch.randn(4, 5, 6))


def test_position_of_rounded_ties():
    # Equal once rounded to bfloat16: the first counts, as in eager.
    x = torch.tensor([256.0, 256.0], dtype=torch.bfloat16)
    y = torch.tensor([0.0, 1.0], dtype=torch.bfloat16)
    fused(lambda a, b: (a + b).argmax(0), x, y)


def test_norms_and_logs():
    fused(lambda x: torch.linalg.vector_norm(x, dim=-1), X)
    fused(lambda x: torch.linalg.vector_norm(x, ord=1, dim=(0, 1)), X)
    fused(lambda x: torch.linalg.vector_norm(x, ord=math.inf, dim=1, keepdim=True), X)
    fused(lambda x: torch.logsumexp(x, 1), X)
    assert externs(check(lambda x: torch.linalg.vector_norm(x, ord=3, dim=1), X))
    x = torch.tensor([[-math.inf, -math.inf], [1.0, math.inf]])
    fused(lambda x: torch.ops.aten.logsumexp.default(x, [1]), x)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmaxes(dim):
    fused(lambda x: F.softmax(x, dim), X)
    fused(lambda x: F.log_softmax(x, dim), X)
    fused(lambda x: F.softmax(x.bfloat16(), dim), X)
    fused(lambda x: F.softmax(x, dim, dtype=torch.float64), X)


def test_safe_softmax_of_empty_row():
    x = torch.randn(3, 4)
    x[1] = -math.inf
    fused(lambda x: torch.ops.aten._safe_softmax.default(x, -1), x)


def test_layer_norm_outputs():
    w, b = torch.randn(5), torch.randn(5)
    fused(torch.ops.aten.native_layer_norm.default, X, [5], w, b, 1e-5)
    fused(torch.ops.aten.native_layer_norm.default, X, [4, 5], None, None, 1e-5)
    fused(lambda x, w: F.layer_norm(x, (5,), w, None), X, w)


def test_rms_norm():
    weight = torch.randn(5)
    fused(torch.ops.aten._fused_rms_norm.default, X, [5], weight, 1e-6)
    fused(torch.ops.aten._fused_rms_norm.default, X, [5], weight, None)
    fused(torch.ops.aten._fused_rms_norm.default, X, [4, 5], None, 1e-6)


def test_dimension_of_size_one_and_scalars():
    fused(lambda x: x.sum(0) * 2, torch.randn(1, 4))
    fused(lambda x: x.sum() * 2, torch.randn(()))
    fused(lambda x: x.argmax(0) + 1, torch.randn(1, 4))
    fused(lambda x: x.var(0, correction=0), torch.randn(1, 4))


def test_empty_reduction_stays_with_aten():
    check(lambda x: x.sum(1), torch.randn(3, 0))
    check(lambda x: x.exp().sum(), torch.randn(0))


def test_reduction_of_transposed_and_split_input():
    fused(lambda x: (x.transpose(0, 2) * 2).sum(-1), X)
    fused(lambda x: (x.view(3, 2, 2, 5) * 2).mean((1, 3)), X)
    fused(lambda x: (x * 2).view(3, 2, 10).sum(-1), X)


def test_the_tensor_that_is_reduced_decides_the_order_of_the_results():
    """It is larger than they are: here neighbouring results read neighbouring elements."""
    x = torch.randn(2, 6, 3, 4)
    for name in ("amax", "sum"):
        (kernel,) = kernels(fused(lambda x: getattr(x.permute(0, 3, 1, 2) * 2, name)(-1), x))
        load, store = kernel.body[0], kernel.body[-1]
        assert str(load.index) == "72 * i0 + 12 * i1 + 4 * i3 + i2"
        assert str(store.index) == "24 * i0 + 6 * i2 + i1"
