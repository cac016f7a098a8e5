"""Rules of reductions and scans along dimensions. Their results are row-major."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    INTEGRAL,
    Layout,
    Layouts,
    axis_of,
    contiguous,
    holds,
    is_contiguous,
    is_row_major,
    is_static,
    rule,
    unsure_if,
)


def _reduced(x: torch.Tensor, dim: Any, keepdim: bool) -> tuple[Any, ...]:
    dims = dim if isinstance(dim, list | tuple) else [] if dim is None else [dim]
    axes = {axis_of(d, x.dim()) for d in dims or range(x.dim())}
    unsure_if(dims and len(axes) != len(dims))
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return tuple(n for i, n in enumerate(x.shape) if i not in axes)


def _int_to_long(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (torch.int64 if x.dtype in INTEGRAL else x.dtype)


@rule("sum", "prod", "sum.dim_IntList", "prod.dim_int")
def _sum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Layout:
    return contiguous(_reduced(x, dim, keepdim), x, _int_to_long(x, dtype))


@rule("mean", "mean.dim")
def _mean(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Layout | None:
    kind = dtype or x.dtype
    return contiguous(_reduced(x, dim, keepdim), x, kind) if kind.is_floating_point else None


@rule("var.correction", "std.correction")
def _var(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Layout:
    unsure_if(not x.dtype.is_floating_point)
    return contiguous(_reduced(x, dim, keepdim), x)


@rule("var_mean.correction", "std_mean.correction")
def _var_mean(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Layouts:
    return [_var(x, dim, keepdim=keepdim)] * 2


@rule("amax", "amin", "max", "min")
def _amax(x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Layout | None:
    return None if holds(x.shape, 0) else contiguous(_reduced(x, dim, keepdim), x)


@rule("max.dim", "min.dim")
def _max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Layouts:
    size = _reduced(x, dim, keepdim)
    unsure_if(holds(x.shape, 0))
    return [contiguous(size, x), contiguous(size, x, torch.int64)]


@rule("argmax", "argmin")
def _argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Layout:
    unsure_if(holds(x.shape, 0) or x.dtype is torch.bool)
    return contiguous(_reduced(x, dim, keepdim), x, torch.int64)


@rule("any", "all", "any.dim", "all.dim", "any.dims", "all.dims")
def _any(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Layout:
    unsure_if(x.dtype is torch.uint8 or (isinstance(dim, list | tuple) and not dim))
    return contiguous(_reduced(x, dim, keepdim), x, torch.bool)


@rule("logsumexp")
def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> Layout:
    unsure_if(not x.dtype.is_floating_point or not dim)
    return contiguous(_reduced(x, dim, keepdim), x)


@rule("linalg_vector_norm")
def _vector_norm(
    x: torch.Tensor,
    ord: Any = 2,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: torch.dtype | None = None,
) -> Layout | None:
    size = _reduced(x, dim, keepdim)
    unsure_if(not x.dtype.is_floating_point or dtype not in (None, x.dtype))
    return None if holds(x.shape, 0) and not holds(size, 0) else contiguous(size, x)


@rule("norm.ScalarOpt_dim")
def _norm(x: torch.Tensor, p: Any, dim: Any, keepdim: bool = False) -> Layout | None:
    return _vector_norm(x, p, dim, keepdim)


@rule("topk")
def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Layouts:
    axis = axis_of(dim, x.dim())
    unsure_if(not x.dim() or type(k) is not int or k < 0 or x.dtype is torch.bool)
    extent: Any = x.shape[axis]
    unsure_if(type(extent) is not int or k > extent)
    size: list[Any] = list(x.shape)
    size[axis] = k
    return [contiguous(size, x), contiguous(size, x, torch.int64)]


@rule("sort", "sort.stable")
def _sort(x: torch.Tensor, *_: Any, **__: Any) -> Layouts:
    unsure_if(not is_row_major(x) or holds(x.shape, 0))
    return [contiguous(x.shape, x), contiguous(x.shape, x, torch.int64)]


# Scans and softmax.


@rule("cumsum", "cumprod")
def _cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Layout:
    axis_of(dim, x.dim())
    unsure_if(not (is_contiguous(x) or is_static(x.shape, x.stride())))
    return contiguous(x.shape, x, _int_to_long(x, dtype))


@rule("_softmax", "_log_softmax")
def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Layout | None:
    last = max(x.dim(), 1) - 1
    if type(dim) is int and not -last - 1 <= dim <= last:  # torch's own fakes do not look at it
        allowed = f"[{-last - 1}, {last}], but got {dim}"
        raise IndexError(f"Dimension out of range (expected to be in range of {allowed})")
    axis_of(dim, x.dim())
    return None if half_to_float or not x.dtype.is_floating_point else contiguous(x.shape, x)


@rule("_safe_softmax")
def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Layout | None:
    return _softmax(x, dim, False) if dtype is None and is_row_major(x) else None
