"""Losses of two tensors as formulas; those that check their input's values stay whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.rules.activation import log_sigmoid
from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Rule,
    Tensor,
    add,
    aten,
    axes,
    count,
    div,
    exp,
    mul,
    rule,
    scalar,
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


def _stretches(small: Sequence[Any], large: Sequence[Any]) -> bool:
    """Whether a tensor of no more dimensions takes another's sizes."""
    return all(a == 1 or a == b for a, b in zip(reversed(small), reversed(large)))


@rule(aten.binary_cross_entropy_with_logits.default)
def _binary_cross_entropy(
    m: Mode,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    pos_weight: Tensor | None = None,
    reduction: int = _MEAN,
) -> Any:
    tensors = [t for t in (x, target, weight, pos_weight) if t is not None]
    if x.dtype not in FLOATS or any(t.dtype != x.dtype for t in tensors) or x.shape != target.shape:
        return NotImplemented
    if any(t.dim() > x.dim() or not _stretches(t.shape, x.shape) for t in tensors):
        return NotImplemented  # eager multiplies in place
    wide, aim, one = up(m, x), up(m, target), scalar(m, 1.0, up(m, target))
    log = log_sigmoid(m, wide)
    if pos_weight is not None:
        log = mul(m, log, add(m, mul(m, sub(m, up(m, pos_weight), one), aim), one))
    loss = sub(m, mul(m, sub(m, one, aim), wide), log)
    if weight is not None:
        loss = mul(m, loss, up(m, weight))
    return _reduced(m, loss, reduction, x.dtype)


@rule(aten.soft_margin_loss.default)
def _soft_margin(m: Mode, x: Tensor, target: Tensor, reduction: int = _MEAN) -> Any:
    alike = x.dtype in FLOATS and target.dtype == x.dtype and x.shape == target.shape
    if not alike or reduction == _NONE:  # which is laid out in a way of its own
        return NotImplemented
    power = mul(m, m.tensor(aten.neg.default, up(m, target)), up(m, x))
    loss = m.tensor(aten.log1p.default, exp(m, power))
    return _reduced(m, loss, reduction, x.dtype)


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
