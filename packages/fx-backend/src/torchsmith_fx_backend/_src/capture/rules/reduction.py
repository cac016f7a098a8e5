"""Means, variances and norms as sums; maxima with positions as two reductions."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Tensor,
    aten,
    axes,
    count,
    div,
    mul,
    rule,
    sub,
    to,
    total,
    up,
)


@rule(aten.sum.default)
def _sum(m: Mode, x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return m.call(aten.sum.dim_IntList, x, axes(x, None), False, dtype=dtype)


@rule(aten.mean.default)
def _mean_all(m: Mode, x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return _mean(m, x, None, False, dtype=dtype)


@rule(aten.mean.dim)
def _mean(
    m: Mode, x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    kind = dtype or x.dtype
    if kind not in FLOATS or x.dtype.is_complex:
        return NotImplemented
    wide = up(m, to(m, x, dtype) if dtype is not None else x)
    dims = axes(x, dim)
    return to(m, div(m, total(m, wide, dims, keepdim), count(x, dims) if x.dim() else 1), kind)


def _variance(
    m: Mode, x: Tensor, dim: Any, correction: Any, keepdim: bool
) -> tuple[Tensor, Tensor] | None:
    """Variance and mean in the type that they are computed in."""
    if x.dtype not in FLOATS or not x.dim():
        return None
    wide = up(m, x)
    dims = axes(x, dim)
    number = count(x, dims)
    mean = div(m, total(m, wide, dims), number)
    centred = sub(m, wide, mean)
    squares = total(m, mul(m, centred, centred), dims, keepdim)
    freedom = number - (1 if correction is None else correction)
    if type(freedom) in (int, float):
        freedom = max(freedom, 0)
    variance = div(m, squares, freedom)
    if not keepdim:
        mean = m.call(aten.view.default, mean, list(variance.shape))
    return variance, mean


@rule(aten.var.correction)
def _var(
    m: Mode, x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    parts = _variance(m, x, dim, correction, keepdim)
    return NotImplemented if parts is None else to(m, parts[0], x.dtype)


@rule(aten.std.correction)
def _std(
    m: Mode, x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    parts = _variance(m, x, dim, correction, keepdim)
    if parts is None:
        return NotImplemented
    return to(m, m.call(aten.sqrt.default, parts[0]), x.dtype)


@rule(aten.var_mean.correction)
def _var_mean(
    m: Mode, x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Any:
    parts = _variance(m, x, dim, correction, keepdim)
    if parts is None:
        return NotImplemented
    return to(m, parts[0], x.dtype), to(m, parts[1], x.dtype)


@rule(aten.linalg_vector_norm.default)
def _vector_norm(
    m: Mode,
    x: Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Any:
    if x.dtype not in FLOATS or dtype is not None or not x.dim():
        return NotImplemented
    wide = up(m, x)
    dims = axes(x, dim)
    if ord == 2:
        result = m.call(aten.sqrt.default, total(m, mul(m, wide, wide), dims, keepdim))
    elif ord == 1:
        result = total(m, m.call(aten.abs.default, wide), dims, keepdim)
    else:
        return NotImplemented
    return to(m, result, x.dtype)


@rule(aten.norm.ScalarOpt_dim)
def _norm(m: Mode, x: Tensor, p: Any, dim: Any, keepdim: bool = False) -> Any:
    return _vector_norm(m, x, 2 if p is None else p, dim, keepdim)


def _is_empty(x: Tensor) -> bool:
    return any(type(n) is int and n == 0 for n in x.shape)


@rule(aten.max.default)
def _max(m: Mode, x: Tensor) -> Any:
    if _is_empty(x) or x.dtype is torch.bool:
        return NotImplemented
    return m.call(aten.amax.default, x, axes(x, None), False)


@rule(aten.min.default)
def _min(m: Mode, x: Tensor) -> Any:
    if _is_empty(x) or x.dtype is torch.bool:
        return NotImplemented
    return m.call(aten.amin.default, x, axes(x, None), False)


@rule(aten.max.dim)
def _max_dim(m: Mode, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if _is_empty(x) or x.dtype not in FLOATS or not x.dim():
        return NotImplemented
    values = m.call(aten.amax.default, x, [dim], keepdim)
    positions = m.call(aten.argmax.default, x, dim, keepdim)
    return torch.return_types.max((values, positions))


@rule(aten.min.dim)
def _min_dim(m: Mode, x: Tensor, dim: int, keepdim: bool = False) -> Any:
    if _is_empty(x) or x.dtype not in FLOATS or not x.dim():
        return NotImplemented
    values = m.call(aten.amin.default, x, [dim], keepdim)
    positions = m.call(aten.argmin.default, x, dim, keepdim)
    return torch.return_types.min((values, positions))
