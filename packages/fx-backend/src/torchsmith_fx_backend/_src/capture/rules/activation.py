"""Activation functions as formulas over exp, tanh, erf, sigmoid, comparisons and arithmetic."""

from __future__ import annotations

import math
from typing import Any

from torchsmith_fx_backend._src.capture.rules.registry import (
    Mode,
    Tensor,
    add,
    aten,
    div,
    exp,
    float_rule,
    mul,
    row_major,
    scalar,
    sub,
    where,
)


@float_rule(aten.gelu.default)
def _gelu(m: Mode, x: Tensor, *, approximate: str = "none") -> Any:
    if approximate == "none":
        inner = m.call(aten.erf.default, mul(m, x, math.sqrt(0.5)))
    elif approximate == "tanh":
        cubic = mul(m, mul(m, x, mul(m, x, x)), 0.044715)
        inner = m.call(aten.tanh.default, mul(m, add(m, x, cubic), math.sqrt(2 / math.pi)))
    else:
        return NotImplemented
    return mul(m, mul(m, x, 0.5), add(m, inner, 1.0))


@float_rule(aten.silu.default)
def _silu(m: Mode, x: Tensor) -> Any:
    return mul(m, x, m.call(aten.sigmoid.default, x))


@float_rule(aten.mish.default)
def _mish(m: Mode, x: Tensor) -> Any:
    softplus = where(m, m.call(aten.gt.Scalar, x, 20.0), x, m.call(aten.log1p.default, exp(m, x)))
    return mul(m, x, m.call(aten.tanh.default, softplus))


def _clamp(m: Mode, x: Tensor, low: Any, high: Any) -> Tensor:
    return m.tensor(aten.clamp.default, x, low, high)


@float_rule(aten.hardtanh.default)
def _hardtanh(m: Mode, x: Tensor, min_val: float = -1, max_val: float = 1) -> Any:
    return _clamp(m, x, min_val, max_val)


@float_rule(aten.hardsigmoid.default)
def _hardsigmoid(m: Mode, x: Tensor) -> Any:
    return div(m, _clamp(m, add(m, x, 3.0), 0.0, 6.0), 6.0)


@float_rule(aten.hardswish.default)
def _hardswish(m: Mode, x: Tensor) -> Any:
    return div(m, mul(m, x, _clamp(m, add(m, x, 3.0), 0.0, 6.0)), 6.0)


@float_rule(aten.leaky_relu.default, aten._prelu_kernel.default)
def _leaky_relu(m: Mode, x: Tensor, negative_slope: float | Tensor = 0.01) -> Any:
    return where(m, m.call(aten.gt.Scalar, x, 0), x, mul(m, x, negative_slope))


@float_rule(aten.elu.default)
def _elu(m: Mode, x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    below = mul(m, m.call(aten.expm1.default, mul(m, x, input_scale)), alpha * scale)
    above = x if scale == 1 else mul(m, x, scale)
    return where(m, m.call(aten.lt.Scalar, x, 0), below, above)


@float_rule(aten.softplus.default)
def _softplus(m: Mode, x: Tensor, beta: float = 1, threshold: float = 20) -> Any:
    scaled = mul(m, x, beta)
    soft = div(m, m.call(aten.log1p.default, exp(m, scaled)), beta)
    return where(m, m.call(aten.gt.Scalar, scaled, threshold), x, soft)


def log_sigmoid(m: Mode, x: Tensor) -> Tensor:
    """Eager's formula, which does not overflow."""
    low = m.tensor(aten.minimum.default, x, scalar(m, 0.0, x))
    tail = exp(m, m.tensor(aten.neg.default, m.tensor(aten.abs.default, x)))
    return sub(m, low, m.tensor(aten.log1p.default, tail))


@float_rule(aten.log_sigmoid.default)
def _log_sigmoid(m: Mode, x: Tensor) -> Any:
    return log_sigmoid(m, row_major(m, x) if x.device.type == "cpu" else x)


@float_rule(aten.threshold.default)
def _threshold(m: Mode, x: Tensor, threshold: float, value: float) -> Any:
    return where(m, m.call(aten.le.Scalar, x, threshold), scalar(m, value, x), x)


@float_rule(aten.softshrink.default)
def _softshrink(m: Mode, x: Tensor, lambd: float = 0.5) -> Any:
    zero = where(m, m.call(aten.ne.Tensor, x, x), x, scalar(m, 0.0, x))  # keeps NaN
    negative = where(m, m.call(aten.lt.Scalar, x, -lambd), add(m, x, lambd), zero)
    return where(m, m.call(aten.gt.Scalar, x, lambd), sub(m, x, lambd), negative)


@float_rule(aten.glu.default)
def _glu(m: Mode, x: Tensor, dim: int = -1) -> Any:
    size = x.shape[dim]
    if size % 2:
        return NotImplemented
    first = m.call(aten.slice.Tensor, x, dim, 0, size // 2)
    second = m.call(aten.slice.Tensor, x, dim, size // 2, size)
    return mul(m, first, m.call(aten.sigmoid.default, second))
