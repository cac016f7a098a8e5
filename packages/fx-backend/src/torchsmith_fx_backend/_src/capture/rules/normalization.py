"""Softmax and the norms: reductions along rows with pointwise work around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchsmith_guards import holds, is_contiguous, layout_of

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Rule,
    Tensor,
    add,
    affine,
    aten,
    count,
    div,
    exp,
    laid,
    mul,
    normalize,
    packed,
    rsqrt,
    rule,
    scalar,
    sub,
    to,
    total,
    up,
    view,
    where,
)


def _exponentials(m: Mode, x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """x - max, its exponential, and the sum of that, along ``dim``."""
    shifted = sub(m, x, m.call(aten.amax.default, x, [dim], True))
    powers = exp(m, shifted)
    return shifted, powers, total(m, powers, [dim])


@rule(aten._softmax.default)
def _softmax(m: Mode, x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dtype not in FLOATS or holds(x.shape, 0) or not is_contiguous(x := packed(m, x)):
        return NotImplemented
    _, powers, norm = _exponentials(m, up(m, x), dim)
    return to(m, div(m, powers, norm), torch.float32 if half_to_float else x.dtype)


@rule(aten._log_softmax.default)
def _log_softmax(m: Mode, x: Tensor, dim: int, half_to_float: bool) -> Any:
    if x.dtype not in FLOATS or holds(x.shape, 0) or not is_contiguous(x := packed(m, x)):
        return NotImplemented
    shifted, _, norm = _exponentials(m, up(m, x), dim)
    result = sub(m, shifted, m.call(aten.log.default, norm))
    return to(m, result, torch.float32 if half_to_float else x.dtype)


def _in_dtype(formula: Rule) -> Rule:
    return lambda m, x, dim, dtype=None: formula(
        m, to(m, x, dtype) if dtype in FLOATS else x, dim, False
    )


rule(aten.softmax.int)(_in_dtype(_softmax))
rule(aten.log_softmax.int)(_in_dtype(_log_softmax))


@rule(aten.logsumexp.default)
def _logsumexp(m: Mode, x: Tensor, dim: Sequence[int], keepdim: bool = False) -> Any:
    if x.dtype not in FLOATS or holds(x.shape, 0) or not x.dim():
        return NotImplemented
    wide = up(m, x)
    dims = [d % x.dim() for d in dim]
    peak = m.call(aten.amax.default, wide, dims, True)
    # An infinite peak must not turn into inf - inf.
    infinite = m.call(aten.isinf.default, peak)
    peak = where(m, infinite, scalar(m, 0.0, wide), peak)
    norm = total(m, exp(m, sub(m, wide, peak)), dims)
    result = add(m, m.call(aten.log.default, norm), peak)
    if not keepdim:
        kept = [n for axis, n in enumerate(result.shape) if axis not in dims]
        result = view(m, result, kept)
    return to(m, result, x.dtype)


def _has_rows(x: Tensor, shape: Sequence[Any]) -> bool:
    """Whether a formula over rows of this shape gives eager's layout."""
    if x.dtype not in FLOATS or holds(x.shape, 0) or not shape or not is_contiguous(x):
        return False
    return list(x.shape[-len(shape) :]) == list(shape)


def _layer_norm_parts(
    m: Mode, x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor] | None:
    rank = len(shape)
    if not _has_rows(x, shape):
        return None
    result, mean, scale = normalize(m, up(m, x), range(x.dim() - rank, x.dim()), eps)
    return to(m, affine(m, result, weight, bias), x.dtype), mean, scale


@rule(aten._weight_norm_interface.default)
def _weight_norm(m: Mode, v: Tensor, g: Tensor, dim: int = 0) -> Any:
    wide = v.dtype in (torch.float32, torch.float64) and g.dtype == v.dtype
    if not wide or dim not in (0, v.dim() - 1):
        return NotImplemented
    others = [d for d in range(v.dim()) if d != dim]
    norms = m.call(aten.sqrt.default, total(m, mul(m, v, v), others))
    return mul(m, v, div(m, g, norms)), norms


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
    if not _has_rows(x, normalized_shape):
        return NotImplemented
    # Of a row with an infinity, eager's kernel on a GPU makes NaN throughout where the row's length
    # keeps it from reading vectors (it finds a mean first). Elsewhere, and on the CPU, all but the
    # infinity becomes zero, as here: that kernel is not followed.
    wide = up(m, x)
    dims = range(x.dim() - rank, x.dim())
    mean_square = div(m, total(m, mul(m, wide, wide), dims), count(wide, dims))
    floor = torch.finfo(wide.dtype).eps if eps is None else eps
    result = affine(m, mul(m, wide, rsqrt(m, add(m, mean_square, floor))), weight, None)
    return to(m, result, x.dtype)


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
    if x.dtype not in FLOATS or holds(x.shape, 0) or x.dim() < 2:
        return NotImplemented
    if not is_contiguous(x := packed(m, x)):  # images that lie channels-last
        return NotImplemented
    channels = x.shape[1]
    if type(channels) is not int or channels % num_groups:
        return NotImplemented
    # Channels stay a dimension of their own: so the views are ones of channels-last images, too.
    sizes = [x.shape[0], num_groups, channels // num_groups, *x.shape[2:]]
    grouped = view(m, up(m, x), sizes)
    result, _, _ = normalize(m, grouped, range(2, len(sizes)), eps)
    result = view(m, result, list(x.shape))
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    return to(m, affine(m, result, weight, bias, per_channel), x.dtype)


@rule(aten.native_group_norm.default)
def _native_group_norm(
    m: Mode,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    batch: Any,
    channels: Any,
    area: Any,
    groups: int,
    eps: float,
) -> Any:
    if not is_contiguous(x) or holds(x.shape, 0) or type(channels) is not int:
        return NotImplemented
    if x.dtype not in (torch.float32, torch.float64):
        return NotImplemented  # the type of the statistics differs between devices
    wide = view(m, x, [batch, groups, channels // groups * area])
    normal, mean, scale = normalize(m, wide, [2], eps)
    per_channel = [1, channels] + [1] * (x.dim() - 2)
    result = affine(m, view(m, normal, list(x.shape)), weight, bias, per_channel)
    return result, view(m, mean, [batch, groups]), view(m, scale, [batch, groups])


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
    if x.dtype not in FLOATS or holds(x.shape, 0):
        return NotImplemented
    if training and (running_mean is None or running_var is None):
        plain = aten._native_batch_norm_legit.no_stats
        return m.call(plain, x, weight, bias, True, momentum, eps)[0]
    if training:
        return _native_batch_norm(
            m, x, weight, bias, running_mean, running_var, True, momentum, eps
        )[0]
    if running_mean is None or running_var is None or x.dim() < 2:
        return NotImplemented
    found = layout_of(aten._native_batch_norm_legit.no_stats, (x, None, None, True, momentum, eps))
    first = found[0] if isinstance(found, list) else None
    if not isinstance(first, tuple) and x.device.type == "cpu":
        return NotImplemented
    # Eager folds the four vectors into one factor and one offset per channel.
    scale = rsqrt(m, add(m, up(m, running_var), eps))
    if weight is not None:
        scale = mul(m, scale, up(m, weight))
    offset = mul(m, up(m, running_mean), scale)
    offset = sub(m, up(m, bias), offset) if bias is not None else m.call(aten.neg.default, offset)
    per_channel = [1, x.shape[1]] + [1] * (x.dim() - 2)
    result = mul(m, up(m, x), view(m, scale, per_channel))
    result = to(m, add(m, result, view(m, offset, per_channel)), x.dtype)
    return laid(m, result, first[1]) if isinstance(first, tuple) else result


@rule(aten.native_batch_norm.default)
def _native_batch_norm(m: Mode, x: Tensor, weight: Any, bias: Any, *statistics: Any) -> Any:
    running_mean, running_var, training, *_ = statistics
    if not training or running_mean is None or running_var is None:
        return NotImplemented
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
