"""Compound arithmetic, selections and factories in terms of simpler ones."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import torch
from torchsmith_guards import is_contiguous, layout_of

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Rule,
    Tensor,
    add,
    aten,
    counting,
    div,
    float_rule,
    full,
    laid,
    mul,
    rule,
    scalar,
    sub,
    to,
    up,
    where,
)


@rule(aten.rsub.Scalar)
def _rsub_scalar(m: Mode, x: Tensor, other: Any, alpha: Any = 1) -> Any:
    if alpha != 1 or x.dtype is torch.bool:
        return NotImplemented
    if x.dtype not in FLOATS and type(other) in (float, torch.SymFloat):
        return NotImplemented  # the negative of an unsigned number is no float's
    return add(m, m.call(aten.neg.default, x), other)


@rule(aten.rsub.Tensor)
def _rsub(m: Mode, x: Tensor, other: Any, *, alpha: Any = 1) -> Any:
    if alpha != 1:
        return NotImplemented
    if not isinstance(other, torch.Tensor):
        return _rsub_scalar(m, x, other)
    return sub(m, other, x)


rule(aten.square.default)(lambda m, x: mul(m, x, x) if x.dtype in FLOATS else NotImplemented)


@rule(aten.pow.Tensor_Scalar)
def _pow(m: Mode, x: Tensor, exponent: Any) -> Any:
    if x.dtype not in FLOATS or type(exponent) not in (int, float):
        return NotImplemented
    if x.dtype is torch.float16 and x.device.type == "cpu" and abs(exponent) == 0.5:
        return NotImplemented  # no root there, but a power: minus infinity gives infinity
    wide = up(m, x)
    if exponent == 2:
        result = mul(m, wide, wide)
    elif exponent == 3:
        result = mul(m, mul(m, wide, wide), wide)
    elif exponent == 0.5:
        result = m.call(aten.sqrt.default, wide)
    elif exponent == -0.5:
        result = m.call(aten.rsqrt.default, wide)
    elif exponent == -1:
        result = m.call(aten.reciprocal.default, wide)
    else:
        return NotImplemented
    return to(m, result, x.dtype)


def _all_float(*tensors: Any) -> bool:
    return all(isinstance(t, torch.Tensor) and t.dtype in FLOATS for t in tensors)


@rule(aten.addcmul.default)
def _addcmul(m: Mode, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Any:
    if not _all_float(x, a, b) or not x.dtype == a.dtype == b.dtype:
        return NotImplemented
    product = mul(m, up(m, a), up(m, b))
    return to(m, add(m, up(m, x), product if value == 1 else mul(m, product, value)), x.dtype)


@rule(aten.addcdiv.default)
def _addcdiv(m: Mode, x: Tensor, a: Tensor, b: Tensor, *, value: Any = 1) -> Any:
    if not _all_float(x, a, b) or not x.dtype == a.dtype == b.dtype:
        return NotImplemented
    scaled = up(m, a) if value == 1 else mul(m, up(m, a), value)
    return to(m, add(m, up(m, x), div(m, scaled, up(m, b))), x.dtype)


@rule(aten.lerp.Scalar)
def _lerp(m: Mode, start: Tensor, end: Tensor, weight: Any) -> Any:
    if not _all_float(start, end) or start.dtype != end.dtype or type(weight) is not float:
        return NotImplemented
    a, b = up(m, start), up(m, end)
    difference = sub(m, b, a)
    if abs(weight) < 0.5:
        result = add(m, a, mul(m, difference, weight))
    else:
        if a.dtype is torch.float32:
            (weight,) = struct.unpack("f", struct.pack("f", weight))
            (other,) = struct.unpack("f", struct.pack("f", 1 - weight))
        else:
            other = 1 - weight
        result = sub(m, b, mul(m, difference, other))
    return to(m, result, start.dtype)


@rule(aten.clamp.Tensor)
def _clamp(m: Mode, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Any:
    if low is not None:
        x = m.call(aten.maximum.default, x, low)
    return x if high is None else m.call(aten.minimum.default, x, high)


def _masked_fill(m: Mode, x: Tensor, mask: Tensor, value: Tensor) -> Any:
    # Eager returns a contiguous tensor of the broadcast shape.
    if not is_contiguous(x) or mask.dim() > x.dim() or mask.dtype is not torch.bool:
        return NotImplemented
    aligned = x.shape[x.dim() - mask.dim() :]
    if any(type(n) is not int or (n != k and n != 1) for n, k in zip(mask.shape, aligned)):
        return NotImplemented
    steps = [s for n, s in zip(mask.shape, mask.stride()) if n != 1 and type(s) is int and s]
    if steps != sorted(steps, reverse=True):
        return NotImplemented  # the selection would be laid out as the mask is
    return where(m, mask, value, x)


@rule(aten.masked_fill.Scalar)
def _masked_fill_scalar(m: Mode, x: Tensor, mask: Tensor, value: Any) -> Any:
    if x.dtype not in (*FLOATS, torch.int64, torch.int32, torch.bool):
        return NotImplemented
    if x.dtype not in FLOATS and type(value) is float:
        return NotImplemented
    return _masked_fill(m, x, mask, scalar(m, value, x))


@rule(aten.masked_fill.Tensor)
def _masked_fill_tensor(m: Mode, x: Tensor, mask: Tensor, value: Tensor) -> Any:
    if value.dim() or value.device != x.device or not torch.can_cast(value.dtype, x.dtype):
        return NotImplemented
    return _masked_fill(m, x, mask, to(m, value, x.dtype))


def _triangle(m: Mode, x: Tensor, diagonal: int, comparison: Any) -> Any:
    if not is_contiguous(x) or x.dim() < 2 or x.dtype.is_complex:
        return NotImplemented
    rows, columns = (counting(m, n, x.device) for n in x.shape[-2:])
    distance = sub(m, columns, m.call(aten.unsqueeze.default, rows, 1))
    keep = m.call(comparison, distance, diagonal)
    return where(m, keep, x, scalar(m, False if x.dtype is torch.bool else 0, x))


rule(aten.tril.default)(lambda m, x, diagonal=0: _triangle(m, x, diagonal, aten.le.Scalar))
rule(aten.triu.default)(lambda m, x, diagonal=0: _triangle(m, x, diagonal, aten.ge.Scalar))


# Factories: all become ``full`` and ``arange.start_step`` with explicit type and device.


Options = dict[str, Any]  # dtype, layout, device and pin_memory, as they are given


def _filled(m: Mode, size: Sequence[Any], value: Any, options: Options) -> Any:
    if not _is_plain(options):
        return NotImplemented
    kind = options.get("dtype") or torch.get_default_dtype()
    return full(m, size, _as_kind(value, kind), kind, _place(options))


def _is_plain(options: Options) -> bool:
    return options.get("layout") in (None, torch.strided) and not options.get("pin_memory")


def _place(options: Options) -> torch.device:
    return torch.device(options.get("device") or "cpu")


def _as_kind(value: Any, dtype: torch.dtype) -> Any:
    if type(value) not in (bool, int, float):
        return value
    if dtype is torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else value


def _filled_like(m: Mode, x: Tensor, value: Any, options: Options) -> Any:
    memory_format = options.pop("memory_format", None)
    if memory_format not in (None, torch.preserve_format, torch.contiguous_format):
        return NotImplemented
    made = _filled_new(m, x, list(x.shape), value, options)
    if is_contiguous(x) or memory_format is torch.contiguous_format or made is NotImplemented:
        return made
    # Nothing of ``x`` is needed: a backward half may not have it.
    found = layout_of(aten.empty_like.default, (x,))
    return laid(m, made, found[1]) if isinstance(found, tuple) else NotImplemented


def _filled_new(m: Mode, x: Tensor, size: Sequence[Any], value: Any, options: Options) -> Any:
    given = {name: option for name, option in options.items() if option is not None}
    return _filled(m, size, value, {"dtype": x.dtype, "device": x.device, **given})


def _constant(value: int) -> tuple[Rule, Rule, Rule]:
    """Tensors of ``value`` by their size, like another, and by their size on another's device."""
    return (
        lambda m, size, **options: _filled(m, size, value, options),
        lambda m, x, **options: _filled_like(m, x, value, options),
        lambda m, x, size, **options: _filled_new(m, x, size, value, options),
    )


rule(aten.scalar_tensor.default)(lambda m, value, **options: _filled(m, (), value, options))
rule(aten.full_like.default)(lambda m, x, value, **options: _filled_like(m, x, value, options))
rule(aten.new_full.default)(
    lambda m, x, size, value, **options: _filled_new(m, x, size, value, options)
)
for _name, _number in (("zeros", 0), ("ones", 1)):
    for _kind, _rule in zip(("{}", "{}_like", "new_{}"), _constant(_number)):
        rule(getattr(aten, _kind.format(_name)).default)(_rule)


@rule(aten.fill.Scalar)
def _fill(m: Mode, x: Tensor, value: Any) -> Any:
    if not is_contiguous(x):
        return NotImplemented
    return full(m, x.shape, _as_kind(value, x.dtype), x.dtype, x.device)


rule(aten.zero.default)(lambda m, x: _fill(m, x, 0))


def _arange(m: Mode, start: Any, end: Any, options: Options) -> Any:
    if not _is_plain(options):
        return NotImplemented
    dtype = options.get("dtype")
    if dtype is None:
        floating = {type(start), type(end)} & {float, torch.SymFloat}
        dtype = torch.get_default_dtype() if floating else torch.int64
    place = {"device": _place(options), "pin_memory": False}
    return m.call(aten.arange.start_step, start, end, 1, dtype=dtype, **place)


rule(aten.arange.default)(lambda m, end, **options: _arange(m, 0, end, options))
rule(aten.arange.start)(lambda m, start, end, **options: _arange(m, start, end, options))


@rule(aten.xlogy.Tensor)
def _xlogy(m: Mode, x: Any, y: Any) -> Any:
    if not _all_float(x, y) or x.dtype != y.dtype:
        return NotImplemented
    a, b = up(m, x), up(m, y)
    product = mul(m, a, m.tensor(aten.log.default, b))
    known = m.tensor(aten.eq.Tensor, b, b)
    none = m.tensor(aten.logical_and.default, m.tensor(aten.eq.Scalar, a, 0), known)
    return to(m, where(m, none, scalar(m, 0.0, product), product), x.dtype)


@float_rule(aten.logit.default)
def _logit(m: Mode, x: Tensor, eps: float | None = None) -> Any:
    if eps is not None:
        x = m.tensor(aten.clamp.default, x, eps, 1 - eps)
    return m.call(aten.log.default, div(m, x, sub(m, scalar(m, 1.0, x), x)))


@float_rule(aten.sinc.default)
def _sinc(m: Mode, x: Tensor) -> Any:
    angle = mul(m, x, math.pi)
    wave = div(m, m.tensor(aten.sin.default, angle), angle)
    return where(m, m.tensor(aten.eq.Scalar, x, 0), scalar(m, 1.0, x), wave)


float_rule(aten.rad2deg.default)(lambda m, x: mul(m, x, 180 / math.pi))
float_rule(aten.deg2rad.default)(lambda m, x: mul(m, x, math.pi / 180))
