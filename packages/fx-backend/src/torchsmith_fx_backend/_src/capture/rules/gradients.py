"""Backward forms as formulas: what autograd calls for the operators of the other files.

The last arithmetic takes its operands in the order in which eager's iterator gets them, because
that decides about the strides of a gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torchsmith_guards import holds, is_contiguous

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Rule,
    Tensor,
    add,
    aten,
    count,
    counting,
    div,
    exp,
    float_rule,
    full,
    laid_by,
    mul,
    packed,
    row_major,
    rule,
    scalar,
    sub,
    to,
    total,
    up,
    view,
    where,
)


def _rsub(m: Mode, number: float, x: Tensor) -> Tensor:
    return add(m, m.tensor(aten.neg.default, x), number)


def _below(m: Mode, x: Tensor, bound: float, below: Any, above: Any) -> Tensor:
    """Whether ``x`` is below. A CPU's vectors ask whether it is not above: so is NaN to them."""
    if x.device.type != "cpu":
        return m.tensor(below, x, bound)
    return m.tensor(aten.logical_not.default, m.tensor(above, x, bound))


# ------------------------------------------------------------------------------- activations


@float_rule(aten.sigmoid_backward.default)
def _sigmoid(m: Mode, grad: Tensor, result: Tensor) -> Any:
    out = up(m, result)
    return mul(m, mul(m, grad, _rsub(m, 1.0, out)), out)


@float_rule(aten.tanh_backward.default)
def _tanh(m: Mode, grad: Tensor, result: Tensor) -> Any:
    out = up(m, result)
    return mul(m, grad, _rsub(m, 1.0, mul(m, out, out)))


@float_rule(aten.gelu_backward.default)
def _gelu(m: Mode, grad: Tensor, x: Tensor, *, approximate: str = "none") -> Any:
    x = up(m, x)
    if approximate == "none":
        below = mul(m, add(m, m.tensor(aten.erf.default, mul(m, x, math.sqrt(0.5))), 1.0), 0.5)
        density = exp(m, mul(m, mul(m, x, x), -0.5))
        slope = add(m, below, mul(m, mul(m, x, density), 1 / math.sqrt(2 * math.pi)))
    elif approximate == "tanh":
        beta, kappa = math.sqrt(2 / math.pi), 0.044715
        square = mul(m, x, x)
        inner = mul(m, add(m, x, mul(m, mul(m, x, square), kappa)), beta)
        bend = m.tensor(aten.tanh.default, inner)
        left = mul(m, add(m, bend, 1.0), 0.5)
        steep = mul(m, add(m, mul(m, square, 3 * kappa), 1.0), beta)
        right = mul(m, mul(m, mul(m, x, 0.5), _rsub(m, 1.0, mul(m, bend, bend))), steep)
        slope = add(m, left, right)
    else:
        return NotImplemented
    return mul(m, grad, slope)


@float_rule(aten.silu_backward.default)
def _silu(m: Mode, grad: Tensor, x: Tensor) -> Any:
    x = up(m, x)
    gate = m.tensor(aten.sigmoid.default, x)
    return mul(m, mul(m, grad, gate), add(m, mul(m, x, _rsub(m, 1.0, gate)), 1.0))


@float_rule(aten.hardswish_backward.default)
def _hardswish(m: Mode, grad: Tensor, x: Tensor) -> Any:
    x = up(m, x)
    middle = mul(m, grad, add(m, div(m, x, 3.0), 0.5))
    upper = where(m, _below(m, x, 3.0, aten.lt.Scalar, aten.ge.Scalar), middle, grad)
    slope = where(m, m.tensor(aten.le.Scalar, x, -3.0), scalar(m, 0.0, grad), upper)
    return laid_by(m, slope, grad, x)


@float_rule(aten.hardtanh_backward.default)
def _hardtanh(m: Mode, grad: Tensor, x: Tensor, low: float, high: float) -> Any:
    x = up(m, x)
    above, below = m.tensor(aten.gt.Scalar, x, low), m.tensor(aten.lt.Scalar, x, high)
    inside = m.tensor(aten.logical_and.default, above, below)
    return laid_by(m, where(m, inside, grad, scalar(m, 0.0, grad)), grad, x)


@float_rule(aten.hardsigmoid_backward.default)
def _hardsigmoid(m: Mode, grad: Tensor, x: Tensor) -> Any:
    return mul(m, _hardtanh(m, grad, x, -3.0, 3.0), 1 / 6)


@rule(aten.threshold_backward.default)
def _threshold(m: Mode, grad: Tensor, x: Tensor, threshold: float) -> Any:
    if grad.dtype not in FLOATS or grad.dtype != x.dtype:
        return NotImplemented
    return where(m, m.tensor(aten.le.Scalar, x, threshold), scalar(m, 0.0, grad), grad)


@float_rule(aten.leaky_relu_backward.default)
def _leaky_relu(m: Mode, grad: Tensor, x: Tensor, slope: float, is_result: bool) -> Any:
    return where(m, m.tensor(aten.gt.Scalar, up(m, x), 0), grad, mul(m, grad, slope))


@float_rule(aten.elu_backward.default)
def _elu(
    m: Mode, grad: Tensor, alpha: Any, scale: Any, inner: Any, is_result: bool, x: Tensor
) -> Any:
    x = up(m, x)
    if is_result:
        below = mul(m, mul(m, grad, inner), add(m, x, alpha * scale))
    else:
        below = mul(m, mul(m, grad, inner * alpha * scale), exp(m, mul(m, x, inner)))
    curved = _below(m, x, 0, aten.le.Scalar, aten.gt.Scalar)
    return laid_by(m, where(m, curved, below, mul(m, grad, scale)), grad, x)


@float_rule(aten.softplus_backward.default)
def _softplus(m: Mode, grad: Tensor, x: Tensor, beta: float, threshold: float) -> Any:
    scaled = mul(m, up(m, x), beta)
    power = exp(m, scaled)
    soft = div(m, mul(m, grad, power), add(m, power, 1.0))
    return laid_by(m, where(m, m.tensor(aten.gt.Scalar, scaled, threshold), grad, soft), grad, x)


@rule(aten._prelu_kernel_backward.default)
def _prelu(m: Mode, grad: Tensor, x: Tensor, weight: Tensor) -> Any:
    if not _plain(grad, x, weight) or not (grad.dtype == x.dtype == weight.dtype):
        return NotImplemented
    wide, slope = up(m, x), up(m, grad)
    positive, zero = m.tensor(aten.gt.Scalar, wide, 0), scalar(m, 0.0, wide)
    inner = where(m, positive, slope, mul(m, up(m, weight), slope))
    own = where(m, positive, zero, mul(m, wide, slope))
    return to(m, inner, x.dtype), to(m, own, x.dtype)


# ------------------------------------------------------------------------- softmax and norms


def _plain(*tensors: Tensor) -> bool:
    """Whether a formula over rows gives eager's layout: all is contiguous and has elements."""
    return all(x.dtype in FLOATS and is_contiguous(x) and not holds(x.shape, 0) for x in tensors)


@rule(aten._softmax_backward_data.default)
def _softmax(m: Mode, grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if not _plain(grad := row_major(m, grad), result):
        return NotImplemented
    out = up(m, result)
    product = mul(m, up(m, grad), out)
    return to(m, sub(m, product, mul(m, out, total(m, product, [dim]))), dtype)


@rule(aten._log_softmax_backward_data.default)
def _log_softmax(m: Mode, grad: Tensor, result: Tensor, dim: int, dtype: torch.dtype) -> Any:
    if not _plain(grad := row_major(m, grad), result):
        return NotImplemented
    wide = up(m, grad)
    return to(m, sub(m, wide, mul(m, exp(m, up(m, result)), total(m, wide, [dim]))), dtype)


def _through_norm(
    m: Mode, inside: Tensor, centred: Tensor, scale: Tensor, dims: Sequence[int], number: Any
) -> Tensor:
    """The gradient of what was normalised along ``dims`` to ``centred``."""
    average = div(m, total(m, inside, dims), number)
    along = div(m, total(m, mul(m, inside, centred), dims), number)
    return mul(m, sub(m, sub(m, inside, average), mul(m, centred, along)), scale)


@rule(aten.native_layer_norm_backward.default)
def _layer_norm(
    m: Mode,
    grad: Tensor,
    x: Tensor,
    shape: Sequence[Any],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mask: Sequence[bool],
) -> Any:
    rank = x.dim() - len(shape)
    x, grad = packed(m, x), row_major(m, grad)
    if not _plain(x) or not shape or not rank or grad.dtype != x.dtype:
        return NotImplemented
    inner, outer = range(rank, x.dim()), range(rank)
    wide, slope = up(m, x), up(m, grad)
    scale = up(m, rstd)
    centred = mul(m, sub(m, wide, up(m, mean)), scale)
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        inside = slope if weight is None else mul(m, slope, up(m, weight))
        whole = _through_norm(m, inside, centred, scale, inner, count(x, inner))
        results[0] = to(m, whole, x.dtype)
    if mask[1] and weight is not None:
        results[1] = to(m, total(m, mul(m, slope, centred), outer, False), weight.dtype)
    if mask[2] and bias is not None:
        results[2] = to(m, total(m, slope, outer, False), bias.dtype)
    return tuple(results)


@rule(aten.native_group_norm_backward.default)
def _group_norm(
    m: Mode,
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    batch: Any,
    channels: Any,
    area: Any,
    groups: int,
    mask: Sequence[bool],
) -> Any:
    grad = packed(m, grad)
    if not _plain(x, grad) or grad.dtype != x.dtype or type(channels) is not int:
        return NotImplemented
    grouped = [batch, groups, channels // groups, area]
    wide, slope = view(m, up(m, x), grouped), view(m, up(m, grad), grouped)
    column = [batch, groups, 1, 1]
    scale = view(m, up(m, rstd), column)
    centred = mul(m, sub(m, wide, view(m, up(m, mean), column)), scale)
    # Each channel of each image is summed once, for the parameters and for the groups.
    sums = total(m, mul(m, slope, centred), [3]), total(m, slope, [3])
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        along, average = sums
        if weight is not None:
            per_channel = view(m, up(m, weight), [1, groups, channels // groups, 1])
            slope, along, average = (mul(m, x, per_channel) for x in (slope, along, average))
        number = channels // groups * area
        along, average = (div(m, total(m, x, [2]), number) for x in (along, average))
        whole = mul(m, sub(m, sub(m, slope, average), mul(m, centred, along)), scale)
        results[0] = to(m, view(m, whole, list(x.shape)), x.dtype)
    kind = x.dtype if weight is None else weight.dtype
    for place, each in enumerate(sums, start=1):
        if mask[place]:
            results[place] = to(m, view(m, total(m, each, [0]), [channels]), kind)
    return tuple(results)


# ------------------------------------------------------------------- convolutions over rows

MOST_OF_ROW = 8  # taps


def rows_alone(x: Tensor, weight: Tensor, *settings: Any) -> bool:
    """Whether each result of a convolution over rows is of one row and a few weights; ``settings``
    are stride, padding, dilation, whether it is transposed, room behind it, and groups."""
    *lists, transposed, _, groups = settings
    numbers = (*weight.shape, groups, *(n for each in lists for n in each))
    return (
        not transposed
        and x.dim() == weight.dim() == 3
        and x.dtype == weight.dtype
        and x.dtype in FLOATS
        and all(type(n) is int for n in numbers)
        and weight.shape[1] == 1
        and weight.shape[0] % groups == 0 < weight.shape[0]
        and weight.shape[2] <= MOST_OF_ROW
    )


@rule(aten.convolution_backward.default)
def _convolution(m: Mode, grad: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> Any:
    biases, (step, *_), (before, *_), (apart, *_), *_, groups, mask = settings
    empty = holds((*x.shape, *grad.shape), 0)
    if mask[2] and x.device.type != "cpu" and grad.dtype in FLOATS and not empty:
        own = to(m, total(m, up(m, grad), [0, *range(2, grad.dim())], False), grad.dtype)
        given = grad, x, weight, biases, *settings[1:-1], [*mask[:2], False]
        convolution = aten.convolution_backward.default
        return (*(m.call(convolution, *given)[:2] if any(mask[:2]) else (None, None)), own)
    if not rows_alone(x, weight, *settings[1:-1]) or empty or grad.dtype != x.dtype:
        return NotImplemented
    if x.device.type == "cpu" and not is_contiguous(x):  # the library is faster by a half
        return NotImplemented
    taps = weight.shape[2]
    room = apart * (taps - 1) - before  # on both sides of the gradient, for its taps
    if step != 1 or room < 0 or weight.shape[0] != groups:
        return NotImplemented
    results: list[Tensor | None] = [None, None, None]
    if mask[0]:
        turned = m.tensor(aten.flip.default, weight, [2])
        given = grad, turned, None, [1], [room], [apart], False, [0], groups
        results[0] = m.tensor(aten.convolution.default, *given)
    slope = up(m, grad)
    if mask[1]:
        wide = m.tensor(aten.constant_pad_nd.default, x, [before, before], 0.0)
        starts = range(0, apart * taps, apart)
        parts = (m.tensor(aten.slice.Tensor, wide, 2, n, n + grad.shape[2]) for n in starts)
        sums = [total(m, mul(m, slope, up(m, part)), [0, 2]) for part in parts]
        own = view(m, m.tensor(aten.cat.default, sums, 2), weight.shape)
        results[1] = to(m, own, x.dtype)
    if mask[2]:
        results[2] = to(m, total(m, slope, [0, 2], False), x.dtype)
    return tuple(results)


# ------------------------------------------------------------------------------------ losses


@rule(aten.mse_loss_backward.default)
def _mse(m: Mode, grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Any:
    if x.dtype not in FLOATS or not (x.dtype == target.dtype == grad.dtype):
        return NotImplemented
    distance = mul(m, sub(m, up(m, x), up(m, target)), 2.0)
    return row_major(m, to(m, mul(m, distance, _of_each(m, grad, x, reduction)), x.dtype))


def _of_each(m: Mode, grad: Tensor, x: Tensor, reduction: int) -> Tensor:
    """The gradient of each element's loss, where ``grad`` is that of the loss: of a mean a share,
    divided as a tensor, since there may be no elements."""
    wide = up(m, grad)
    return div(m, wide, count(x, range(x.dim()))) if reduction == 1 else wide


def _bent(huber: bool) -> Rule:
    def backward(
        m: Mode, grad: Tensor, x: Tensor, target: Tensor, reduction: int, bend: float
    ) -> Any:
        if x.dtype not in FLOATS or not (x.dtype == target.dtype == grad.dtype) or not bend > 0:
            return NotImplemented
        slope = m.tensor(aten.clamp.default, sub(m, up(m, x), up(m, target)), -bend, bend)
        slope = slope if huber else div(m, slope, bend)
        return row_major(m, to(m, mul(m, slope, _of_each(m, grad, x, reduction)), x.dtype))

    return backward


rule(aten.smooth_l1_loss_backward.default)(_bent(huber=False))
rule(aten.huber_loss_backward.default)(_bent(huber=True))


@rule(aten.binary_cross_entropy_backward.default)
def _bce(
    m: Mode,
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = 1,
) -> Any:
    if weight is not None or x.dtype not in FLOATS or not (x.dtype == target.dtype == grad.dtype):
        return NotImplemented
    wide = up(m, x)
    spread = mul(m, sub(m, scalar(m, 1.0, wide), wide), wide)
    spread = m.tensor(aten.clamp_min.default, spread, 1e-12)
    each = _of_each(m, grad, x, reduction)
    return to(m, div(m, mul(m, sub(m, wide, up(m, target)), each), spread), x.dtype)


@rule(aten.nll_loss_backward.default)
@rule(aten.nll_loss2d_backward.default)
def _nll(
    m: Mode,
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignored: int,
    weights: Tensor,
) -> Any:
    if not _plain(x) or x.dim() < 2 or target.dtype is not torch.int64 or grad.dtype != x.dtype:
        return NotImplemented
    per_class = [x.shape[1]] + [1] * (x.dim() - 2)
    classes = view(m, counting(m, x.shape[1], x.device), per_class)
    column = m.tensor(aten.unsqueeze.default, target, 1)
    hit = m.tensor(aten.eq.Tensor, classes, column)
    hit = m.tensor(aten.logical_and.default, hit, m.tensor(aten.ne.Scalar, column, ignored))
    slope = m.tensor(aten.neg.default, up(m, grad))
    if reduction == 0:
        slope = m.tensor(aten.unsqueeze.default, slope, 1)
    elif reduction == 1:
        slope = div(m, slope, up(m, weights))
    if weight is not None:
        slope = mul(m, slope, view(m, up(m, weight), per_class))
    return to(m, where(m, hit, slope, scalar(m, 0.0, slope)), x.dtype)


# ------------------------------------------------------------------------- moves and dropout


@rule(aten.native_dropout_backward.default)
def _dropout(m: Mode, grad: Tensor, mask: Tensor, scale: float) -> Any:
    if grad.dtype not in FLOATS or mask.dtype is not torch.bool:
        return NotImplemented
    kept = mul(m, up(m, grad), to(m, mask, up(m, grad).dtype))
    return to(m, mul(m, kept, scale), grad.dtype)


@rule(aten.select_backward.default)
def _select(m: Mode, grad: Tensor, sizes: Sequence[Any], dim: int, index: Any) -> Any:
    empty = full(m, list(sizes), 0, grad.dtype, grad.device)
    return m.call(aten.select_scatter.default, empty, grad, dim, index)


@rule(aten.slice_backward.default)
def _slice(
    m: Mode, grad: Tensor, sizes: Sequence[Any], dim: int, start: Any, end: Any, step: Any
) -> Any:
    empty = full(m, list(sizes), 0, grad.dtype, grad.device)
    return m.call(aten.slice_scatter.default, empty, grad, dim, start, end, step)


@rule(aten._efficientzerotensor.default)
def _efficientzerotensor(
    m: Mode, size: Sequence[Any], *, device: Any = "cpu", **options: Any
) -> Tensor:
    # What forward mode takes for a tangent that is not there: no memory that a kernel could read.
    return full(m, size, 0, options.get("dtype") or torch.get_default_dtype(), device)
