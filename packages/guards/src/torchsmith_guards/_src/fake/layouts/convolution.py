"""Rules of convolutions and pooling over static sizes.

Kernels answer in channels-last order when their input is in it (for convolutions on the CPU: input
or weight). What other devices' libraries choose for channels-last inputs is left to torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    channels_last_strides,
    contiguous,
    holds,
    is_channels_last,
    is_contiguous,
    is_static,
    rule,
)


def _spread(values: Sequence[int], count: int) -> list[int] | None:
    """One number for each spatial dimension."""
    if not is_static(values) or len(values) not in (1, count):
        return None
    return list(values) * (count if len(values) == 1 else 1)


@rule("convolution")
def _convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Layout | None:
    rank = x.dim() - 2
    if transposed or rank not in (1, 2) or weight.dim() != x.dim() or x.dtype != weight.dtype:
        return None
    if not is_static(x.shape, x.stride(), weight.shape, weight.stride(), (groups,)):
        return None
    if x.device != weight.device or not x.dtype.is_floating_point or groups < 1:
        return None
    if bias is not None and (bias.dtype != x.dtype or tuple(bias.shape) != weight.shape[:1]):
        return None
    if holds(x.shape, 0) or holds(weight.shape, 0) or x.shape[1] != weight.shape[1] * groups:
        return None
    if weight.shape[0] % groups:
        return None
    steps, pads, gaps = _spread(stride, rank), _spread(padding, rank), _spread(dilation, rank)
    if steps is None or pads is None or gaps is None:
        return None
    size = [x.shape[0], weight.shape[0]]
    for i in range(rank):
        reach = gaps[i] * (weight.shape[2 + i] - 1) + 1
        extent = x.shape[2 + i] + 2 * pads[i] - reach
        if extent < 0 or steps[i] < 1 or gaps[i] < 1 or pads[i] < 0:
            return None
        size.append(extent // steps[i] + 1)
    return _image(size, x, weight)


def _image(size: list[int], x: torch.Tensor, weight: torch.Tensor) -> Layout | None:
    if x.dim() == 3:
        return contiguous(size, x) if is_contiguous(x) and is_contiguous(weight) else None
    if not (is_channels_last(x) or is_channels_last(weight)):
        return contiguous(size, x)
    if x.device.type != "cpu" or x.dtype is not torch.float32:
        return None
    return tuple(size), channels_last_strides(size), x.dtype, x.device, 0


@rule("max_pool2d_with_indices")
def _max_pool2d(x: torch.Tensor, *window: Any, **named: Any) -> Layouts | None:
    size = _pooled(x, *window, **named)
    values = None if size is None else _pool_layout(size, x)
    return None if values is None else [values, (*values[:2], torch.int64, *values[3:])]


@rule("avg_pool2d")
def _avg_pool2d(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Layout | None:
    size = _pooled(x, kernel_size, stride, padding, (1,), ceil_mode)
    return None if size is None or divisor_override == 0 else _pool_layout(size, x)


@rule("_adaptive_avg_pool2d")
def _adaptive_avg_pool2d(x: torch.Tensor, output_size: Sequence[Any]) -> Layout | None:
    if x.dim() not in (3, 4) or len(output_size) != 2 or not x.dtype.is_floating_point:
        return None
    if not is_static(x.shape, x.stride(), output_size) or min(output_size) < 1:
        return None
    return None if holds(x.shape, 0) else _pool_layout([*x.shape[:-2], *output_size], x)


def _pooled(
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[int] | None:
    if x.dim() not in (3, 4) or not x.dtype.is_floating_point or holds(x.shape, 0):
        return None
    if not is_static(x.shape, x.stride()):
        return None
    kernels, pads, gaps = _spread(kernel_size, 2), _spread(padding, 2), _spread(dilation, 2)
    steps = _spread(stride, 2) if stride else kernels
    if kernels is None or steps is None or pads is None or gaps is None:
        return None
    size = list(x.shape[:-2])
    for i in range(2):
        extent = x.shape[i - 2]
        if steps[i] < 1 or kernels[i] < 1 or gaps[i] < 1 or not 0 <= 2 * pads[i] <= kernels[i]:
            return None
        room = extent + 2 * pads[i] - gaps[i] * (kernels[i] - 1) - 1
        if room < 0:
            return None
        count = -(-room // steps[i]) + 1 if ceil_mode else room // steps[i] + 1
        if ceil_mode and (count - 1) * steps[i] >= extent + pads[i]:
            count -= 1  # the last window must start inside the input or its left padding
        size.append(count)
    return size


def _pool_layout(size: list[int], x: torch.Tensor) -> Layout | None:
    if x.dim() == 4 and is_channels_last(x):
        return tuple(size), channels_last_strides(size), x.dtype, x.device, 0
    return contiguous(size, x) if is_contiguous(x) else None
