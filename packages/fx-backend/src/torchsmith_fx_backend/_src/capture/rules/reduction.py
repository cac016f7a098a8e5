"""Means, variances and norms as sums; maxima with positions as two reductions."""

from __future__ import annotations

from typing import Any

import torch
from torchsmith_guards import holds

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Rule,
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
from torchsmith_fx_backend._src.capture.torch_private import OpOverload


@rule(aten.sum.default)
def _sum(m: Mode, x: Tensor, *, dtype: torch.dtype | None = None) -> Any:
    return m.call(aten.sum.dim_IntList, x, axes(x, None), False, dtype=dtype)


@rule(aten.dot.default, aten.vdot.default)
def _dot(m: Mode, x: Tensor, y: Tensor) -> Any:
    """On a GPU, where the library takes two launches."""
    if x.dtype not in FLOATS or x.dtype != y.dtype or x.device.type == "cpu":
        return NotImplemented
    return to(m, total(m, mul(m, up(m, x), up(m, y)), [0], False), x.dtype)


@rule(aten.mean.default, aten.mean.dim)
def _mean(
    m: Mode, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
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
    if type(freedom) in (int, float) or correction not in (None, 0, 1):
        freedom = torch.sym_max(freedom, 0)  # type: ignore[no-untyped-call]
    variance = div(m, squares, freedom)
    if not keepdim:
        mean = m.call(aten.view.default, mean, list(variance.shape))
    return variance, mean


def _spread(root: bool, several: bool) -> Rule:
    def formula(
        m: Mode, x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False
    ) -> Any:
        parts = _variance(m, x, dim, correction, keepdim)
        if parts is None:
            return NotImplemented
        variance, mean = parts
        found = to(m, m.tensor(aten.sqrt.default, variance) if root else variance, x.dtype)
        return (found, to(m, mean, x.dtype)) if several else found

    return formula


rule(aten.var.correction)(_spread(root=False, several=False))
rule(aten.std.correction)(_spread(root=True, several=False))
rule(aten.var_mean.correction)(_spread(root=False, several=True))
rule(aten.std_mean.correction)(_spread(root=True, several=True))


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


def _extreme(best: OpOverload) -> Rule:
    def formula(m: Mode, x: Tensor) -> Any:
        if holds(x.shape, 0) or x.dtype is torch.bool:
            return NotImplemented
        return m.call(best, x, axes(x, None), False)

    return formula


def _extreme_along(best: OpOverload, where: OpOverload, result: Any) -> Rule:
    def formula(m: Mode, x: Tensor, dim: int, keepdim: bool = False) -> Any:
        if holds(x.shape, 0) or x.dtype not in FLOATS or not x.dim():
            return NotImplemented
        return result((m.call(best, x, [dim], keepdim), m.call(where, x, dim, keepdim)))

    return formula


@rule(aten.aminmax.default)
def _aminmax(m: Mode, x: Tensor, *, dim: int | None = None, keepdim: bool = False) -> Any:
    if holds(x.shape, 0) or x.dtype is torch.bool:
        return NotImplemented
    least, most = (
        m.call(op, x, axes(x, dim), keepdim) for op in (aten.amin.default, aten.amax.default)
    )
    return torch.return_types.aminmax((least, most))


for _name in ("max", "min"):
    _best, _where = getattr(aten, f"a{_name}").default, getattr(aten, f"arg{_name}").default
    rule(getattr(aten, _name).default)(_extreme(_best))
    rule(getattr(aten, _name).dim)(
        _extreme_along(_best, _where, getattr(torch.return_types, _name))
    )
