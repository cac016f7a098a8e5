"""Losses of two tensors as formulas; those that check their input's values stay whole."""

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
    where,
)

_NONE, _MEAN, _SUM = range(3)


def _distance(m: Mode, x: Tensor, target: Tensor) -> Tensor | None:
    """``x - target`` in the type that it is computed in."""
    if x.dtype not in FLOATS or target.dtype != x.dtype:
        return None
    return sub(m, up(m, x), up(m, target))


def _reduced(m: Mode, loss: Tensor, reduction: int, dtype: torch.dtype) -> Tensor:
    if reduction != _NONE:
        dims = axes(loss, None)
        number = count(loss, dims)
        loss = total(m, loss, dims, keepdim=False) if dims else loss
        loss = div(m, loss, number) if reduction == _MEAN else loss
    return to(m, loss, dtype)


@rule(aten.mse_loss.default)
def _mse_loss(m: Mode, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Any:
    d = _distance(m, x, target)
    return NotImplemented if d is None else _reduced(m, mul(m, d, d), reduction, x.dtype)


@rule(aten.smooth_l1_loss.default)
def _smooth_l1_loss(
    m: Mode, x: Tensor, target: Tensor, reduction: int = _MEAN, beta: float = 1.0
) -> Any:
    d = _distance(m, x, target)
    if d is None or beta <= 0:
        return NotImplemented
    size = m.tensor(aten.abs.default, d)
    near = div(m, mul(m, mul(m, size, 0.5), size), beta)
    far = sub(m, size, 0.5 * beta)
    loss = where(m, m.tensor(aten.lt.Scalar, size, beta), near, far)
    return _reduced(m, loss, reduction, x.dtype)


@rule(aten.huber_loss.default)
def _huber_loss(
    m: Mode, x: Tensor, target: Tensor, reduction: int = _MEAN, delta: float = 1.0
) -> Any:
    d = _distance(m, x, target)
    if d is None or delta <= 0:
        return NotImplemented
    size = m.tensor(aten.abs.default, d)
    near = mul(m, mul(m, size, 0.5), size)
    far = mul(m, sub(m, size, 0.5 * delta), delta)
    loss = where(m, m.tensor(aten.le.Scalar, size, delta), near, far)
    return _reduced(m, loss, reduction, x.dtype)
