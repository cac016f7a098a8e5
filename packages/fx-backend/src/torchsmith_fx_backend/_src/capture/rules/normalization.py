"""Softmax and the norms: reductions along rows with pointwise work around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchsmith_guards import is_contiguous

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Tensor,
    add,
    aten,
    count,
    div,
    exp,
    mul,
    rsqrt,
    rule,
    sub,
    to,
    total,
    up,
    view,
)


def _exponentials(m: Mode, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x - max, its exponential, and the sum of that, along ``dim``."""
    shifted = sub(m, x, m.call(aten.amax.default, x, [dim], True))
    powers = exp(m, shifted)
    return shifted, powers, total(m, powers, [dim])


def _is_empty(x: Tensor) -> bool:
    return any(type(n) is int and n == 0 for n in x.shape)


@rule(aten.softmax.int)
def _softmax_int(m: Mode, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _softmax(m, to(m, x, dtype) if dtype in FLOATS else x, dim, False)


@rule(aten._softmax.default)
def _softmax(m: Mode, x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dtype not in FLOATS or _is_empty(x) or not is_contiguous(x):
        return NotImplemented
    _, powers, norm = _exponentials(m, up(m, x), dim)
    return to(m, div(m, powers, norm), torch.float32 if half_to_float else x.dtype)


@rule(aten.log_softmax.int)
def _log_softmax_int(m: Mode, x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Any:
    return _log_softmax(m, to(m, x, dtype) if dtype in FLOATS else x, dim, False)


@rule(aten._log_softmax.default)
def _log_softmax(m: Mode, x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dtype not in FLOATS or _is_empty(x) or not is_contiguous(x):
        return NotImplemented
    shifted, _, norm = _exponentials(m, up(m, x), dim)
    result = sub(m, shifted, m.call(aten.log.default, norm))
    return to(m, result, torch.float32 if half_to_float else x.dtype)


@rule(aten.logsumexp.default)
def _logsumexp(m: Mode, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    if x.dtype not in FLOATS or _is_empty(x) or not x.dim():
        return NotImplemented
    wide = up(m, x)
    dims = [d % x.dim() for d in dim]
    peak = m.call(aten.amax.default, wide, dims, True)
    # An infinite peak must not turn into inf - inf.
    infinite = m.call(aten.isinf.default, peak)
    zero = m.call(
        aten.full.default, [], 0.0, dtype=wide.dtype, device=wide.device, pin_memory=False
    )
    peak = m.call(aten.where.self, infinite, zero, peak)
    norm = total(m, exp(m, sub(m, wide, peak)), dims)
    result = add(m, m.call(aten.log.default, norm), peak)
    if not keepdim:
        kept = [n for axis, n in enumerate(result.shape) if axis not in dims]
        result = view(m, result, kept)
    return to(m, result, x.dtype)


def _normalize(
    m: Mode, wide: Tensor, dims: Sequence[int], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """(x - mean) / sqrt(var + eps), the mean, and the reciprocal of the root."""
    number = count(wide, dims)
    mean = div(m, total(m, wide, dims), number)
    centred = sub(m, wide, mean)
    variance = div(m, total(m, mul(m, centred, centred), dims), number)
    scale = rsqrt(m, add(m, variance, eps))
    return mul(m, centred, scale), mean, scale


def _layer_norm_parts(
    m: Mode, x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    rank = len(shape)
    if x.dtype not in FLOATS or _is_empty(x) or not rank or not is_contiguous(x):
        return None
    result, mean, scale = _normalize(m, up(m, x), range(x.dim() - rank, x.dim()), eps)
    if weight is not None:
        result = mul(m, result, up(m, weight))
    if bias is not None:
        result = add(m, result, up(m, bias))
    return to(m, result, x.dtype), mean, scale


@rule(aten.layer_norm.default)
def _layer_norm(
    m: Mode,
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:
    if list(x.shape[-len(normalized_shape) :]) != list(normalized_shape):
        return NotImplemented
    parts = _layer_norm_parts(m, x, normalized_shape, weight, bias, eps)
    return NotImplemented if parts is None else parts[0]


@rule(aten.native_layer_norm.default)
def _native_layer_norm(
    m: Mode,
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented  # the type of the statistics differs between devices
    if list(x.shape[-len(normalized_shape) :]) != list(normalized_shape):
        return NotImplemented
    parts = _layer_norm_parts(m, x, normalized_shape, weight, bias, eps)
    return NotImplemented if parts is None else parts


@rule(aten.rms_norm.default)
def _rms_norm(
    m: Mode,
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    rank = len(normalized_shape)
    if x.dtype not in FLOATS or _is_empty(x) or not rank or not is_contiguous(x):
        return NotImplemented
    if list(x.shape[-rank:]) != list(normalized_shape):
        return NotImplemented
    wide = up(m, x)
    dims = range(x.dim() - rank, x.dim())
    mean_square = div(m, total(m, mul(m, wide, wide), dims), count(wide, dims))
    floor = torch.finfo(wide.dtype).eps if eps is None else eps
    result = mul(m, wide, rsqrt(m, add(m, mean_square, floor)))
    if weight is not None:
        result = mul(m, result, up(m, weight))
    kind = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return to(m, result, kind)


@rule(aten.group_norm.default)
def _group_norm(
    m: Mode,
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:
    if x.dtype not in FLOATS or _is_empty(x) or not is_contiguous(x) or x.dim() < 2:
        return NotImplemented
    channels = x.shape[1]
    if type(channels) is not int or channels % num_groups:
        return NotImplemented
    # Channels stay a dimension of their own: so the views are ones of channels-last images, too.
    sizes = [x.shape[0], num_groups, channels // num_groups, *x.shape[2:]]
    grouped = view(m, up(m, x), sizes)
    result, _, _ = _normalize(m, grouped, range(2, len(sizes)), eps)
    result = view(m, result, list(x.shape))
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    if weight is not None:
        result = mul(m, result, view(m, up(m, weight), per_channel))
    if bias is not None:
        result = add(m, result, view(m, up(m, bias), per_channel))
    return to(m, result, x.dtype)


@rule(aten.batch_norm.default)
def _batch_norm(
    m: Mode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn_enabled: bool = True,
) -> Any:
    if x.dtype not in FLOATS or _is_empty(x):
        return NotImplemented
    if training and (running_mean is None or running_var is None):
        plain = aten._native_batch_norm_legit.no_stats
        return m.call(plain, x, weight, bias, True, momentum, eps)[0]
    if training:
        statistics = running_mean, running_var, True, momentum, eps
        return _native_batch_norm(m, x, weight, bias, *statistics)[0]
    if running_mean is None or running_var is None or x.dim() < 2:
        return NotImplemented
    # Eager folds the four vectors into one factor and one offset per channel.
    scale = rsqrt(m, add(m, up(m, running_var), eps))
    if weight is not None:
        scale = mul(m, scale, up(m, weight))
    offset = mul(m, up(m, running_mean), scale)
    if bias is not None:
        offset = sub(m, up(m, bias), offset)
    else:
        offset = m.call(aten.neg.default, offset)
    per_channel = [1, x.shape[1]] + [1] * (x.dim() - 2)
    result = mul(m, up(m, x), view(m, scale, per_channel))
    return to(m, add(m, result, view(m, offset, per_channel)), x.dtype)


@rule(aten.native_batch_norm.default)
def _native_batch_norm(
    m: Mode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if not training or running_mean is None or running_var is None:
        return NotImplemented
    statistics = running_mean, running_var, True, momentum, eps
    return m.call(aten._native_batch_norm_legit.default, x, weight, bias, *statistics)


@rule(aten.native_batch_norm_backward.default)
def _native_batch_norm_backward(
    m: Mode,
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    mean: Tensor | None,
    inverse: Tensor | None,
    training: bool,
    eps: float,
    wanted: list[bool],
) -> Any:
    if not training or (running_mean is None and running_var is None):
        return NotImplemented
    saved = mean, inverse, True, eps, wanted  # running statistics are not read in training
    return m.call(aten.native_batch_norm_backward.default, grad, x, weight, None, None, *saved)
