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
)


def _reduced(x: torch.Tensor, dim: Any, keepdim: bool) -> tuple[Any, ...] | None:
    rank = x.dim()
    if dim is None or (isinstance(dim, list | tuple) and not dim):
        axes = set(range(rank))
    else:
        dims = dim if isinstance(dim, list | tuple) else [dim]
        found = [axis_of(d, rank) for d in dims]
        if None in found or len(set(found)) != len(found):
            return None
        axes = {a for a in found if a is not None}
    if keepdim:
        return tuple(1 if i in axes else n for i, n in enumerate(x.shape))
    return tuple(n for i, n in enumerate(x.shape) if i not in axes)


def _int_to_long(x: torch.Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (torch.int64 if x.dtype in INTEGRAL else x.dtype)


@rule("sum", "prod", "sum.dim_IntList", "prod.dim_int")
def _sum(
    x: torch.Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Layout | None:
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
) -> Layout | None:
    if not x.dtype.is_floating_point:
        return None
    return contiguous(_reduced(x, dim, keepdim), x)


@rule("var_mean.correction", "std_mean.correction")
def _var_mean(
    x: torch.Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
) -> Layouts | None:
    layout = _var(x, dim, keepdim=keepdim)
    return None if layout is None else [layout, layout]


@rule("amax", "amin", "max", "min")
def _amax(x: torch.Tensor, dim: Any = (), keepdim: bool = False) -> Layout | None:
    return None if holds(x.shape, 0) else contiguous(_reduced(x, dim, keepdim), x)


@rule("max.dim", "min.dim")
def _max_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Layouts | None:
    size = _reduced(x, dim, keepdim)
    if size is None or holds(x.shape, 0):
        return None
    return [contiguous(size, x), contiguous(size, x, torch.int64)]


@rule("argmax", "argmin")
def _argmax(x: torch.Tensor, dim: int | None = None, keepdim: bool = False) -> Layout | None:
    if holds(x.shape, 0) or x.dtype is torch.bool:
        return None
    return contiguous(_reduced(x, dim, keepdim), x, torch.int64)


@rule("any", "all", "any.dim", "all.dim", "any.dims", "all.dims")
def _any(x: torch.Tensor, dim: Any = None, keepdim: bool = False) -> Layout | None:
    if x.dtype is torch.uint8 or (isinstance(dim, list | tuple) and not dim):
        return None
    return contiguous(_reduced(x, dim, keepdim), x, torch.bool)


@rule("logsumexp")
def _logsumexp(x: torch.Tensor, dim: Any, keepdim: bool = False) -> Layout | None:
    if not x.dtype.is_floating_point or not dim:
        return None
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
    if size is None or not x.dtype.is_floating_point or dtype not in (None, x.dtype):
        return None
    return None if holds(x.shape, 0) and not holds(size, 0) else contiguous(size, x)


@rule("norm.ScalarOpt_dim")
def _norm(x: torch.Tensor, p: Any, dim: Any, keepdim: bool = False) -> Layout | None:
    return _vector_norm(x, p, dim, keepdim)


@rule("topk")
def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Layouts | None:
    axis = axis_of(dim, x.dim())
    if axis is None or not x.dim() or type(k) is not int or k < 0 or x.dtype is torch.bool:
        return None
    extent: Any = x.shape[axis]
    if type(extent) is not int or k > extent:
        return None
    size: list[Any] = list(x.shape)
    size[axis] = k
    return [contiguous(size, x), contiguous(size, x, torch.int64)]


@rule("sort", "sort.stable")
def _sort(x: torch.Tensor, *_: Any, **__: Any) -> Layouts | None:
    if not is_row_major(x) or holds(x.shape, 0):
        return None
    return [contiguous(x.shape, x), contiguous(x.shape, x, torch.int64)]


# Scans and softmax.


@rule("cumsum", "cumprod")
def _cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Layout | None:
    if axis_of(dim, x.dim()) is None or not (is_contiguous(x) or is_static(x.shape, x.stride())):
        return None
    return contiguous(x.shape, x, _int_to_long(x, dtype))


@rule("_softmax", "_log_softmax")
def _softmax(x: torch.Tensor, dim: int, half_to_float: bool) -> Layout | None:
    if axis_of(dim, x.dim()) is None:
        if type(dim) is int:  # which torch's own fakes do not look at
            last = max(x.dim(), 1) - 1
            allowed = f"[{-last - 1}, {last}], but got {dim}"
            raise IndexError(f"Dimension out of range (expected to be in range of {allowed})")
        return None
    return None if half_to_float or not x.dtype.is_floating_point else contiguous(x.shape, x)


@rule("_safe_softmax")
def _safe_softmax(x: torch.Tensor, dim: int, dtype: torch.dtype | None = None) -> Layout | None:
    return _softmax(x, dim, False) if dtype is None and is_row_major(x) else None
