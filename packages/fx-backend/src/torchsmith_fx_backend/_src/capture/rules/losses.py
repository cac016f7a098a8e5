"""Losses of two tensors as formulas; those that check their input's values stay whole."""

from __future__ import annotations

from typing import Any

import torch

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


def _bent(huber: bool) -> Rule:
    """Squares near zero and lines far away, which meet at ``bend``; Huber's is steeper by that."""

    def loss(m: Mode, x: Tensor, target: Tensor, reduction: int = _MEAN, bend: float = 1.0) -> Any:
        d = _distance(m, x, target)
        if d is None or not bend > 0:
            return NotImplemented
        size = m.tensor(aten.abs.default, d)
        near, far = mul(m, mul(m, size, 0.5), size), sub(m, size, 0.5 * bend)
        near, far = (near, mul(m, far, bend)) if huber else (div(m, near, bend), far)
        is_near = m.tensor(aten.le.Scalar if huber else aten.lt.Scalar, size, bend)
        return _reduced(m, where(m, is_near, near, far), reduction, x.dtype)

    return loss


rule(aten.smooth_l1_loss.default)(_bent(huber=False))
rule(aten.huber_loss.default)(_bent(huber=True))
