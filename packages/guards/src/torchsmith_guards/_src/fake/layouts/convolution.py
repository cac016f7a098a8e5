"""Rules of convolutions over static sizes.

Kernels answer in channels-last order when input or weight is in it, but for types that libraries
do not take so, and for choices that depend on more than layouts: these are left to torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    channels_last_strides,
    contiguous,
    contiguous_strides,
    fits,
    holds,
    is_channels_last,
    is_static,
    rule,
    same_sizes,
    spread,
    unsure_if,
    wanted,
)


@rule("convolution")
def _convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *settings: Any, **named: Any
) -> Layout:
    size = _size(x, weight, *settings, **named)
    unsure_if(not fits(x, bias))
    unsure_if(bias is not None and tuple(bias.shape) != (size[1],))
    return _image(size, x, weight)


@rule("convolution_backward")
def _convolution_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *settings: Any
) -> Layouts:
    unsure_if(not fits(x, grad, weight) or not fits(weight) or x.dim() not in (3, 4, 5))
    gradients = [_image(list(t.shape), x, weight) for t in (x, weight)]
    return wanted([*gradients, contiguous(grad.shape[1:2], x)], settings[-1])


def _size(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> list[int]:
    """The size of the result, if the arguments go together."""
    rank = x.dim() - 2
    unsure_if(rank not in (1, 2, 3) or weight.dim() != x.dim() or not fits(x, weight))
    unsure_if(not is_static(weight.shape, weight.stride(), (groups,)) or groups < 1)
    channels = weight.shape[0] if transposed else weight.shape[1] * groups
    unsure_if(holds(weight.shape, 0) or x.shape[1] != channels or weight.shape[0] % groups)
    steps, pads, gaps = spread(stride, rank), spread(padding, rank), spread(dilation, rank)
    more = spread(output_padding, rank)
    size = [x.shape[0], weight.shape[1] * groups if transposed else weight.shape[0]]
    for n, kernel, step, pad, gap, extra in zip(
        x.shape[2:], weight.shape[2:], steps, pads, gaps, more
    ):
        unsure_if(step < 1 or gap < 1 or pad < 0 or not 0 <= extra < max(step, gap))
        reach = gap * (kernel - 1) + 1
        if transposed:
            extent = (n - 1) * step - 2 * pad + reach + extra
        else:
            extent = (n + 2 * pad - reach) // step + 1
        unsure_if(extent < 1)
        size.append(extent)
    return size


def _image(size: list[int], x: torch.Tensor, weight: torch.Tensor) -> Layout:
    if x.dim() != 4:
        rows = all(same_sizes(t.stride(), contiguous_strides(t.shape)) for t in (x, weight))
        unsure_if(not rows)  # along axes of one, too
        return contiguous(size, x)
    if not (is_channels_last(x) or is_channels_last(weight)):
        return contiguous(size, x)
    unsure_if(not _keeps_channels_last(x))
    return tuple(size), channels_last_strides(size), x.dtype, x.device, 0


def _keeps_channels_last(x: torch.Tensor) -> bool:
    """Whether the libraries of the device answer as ``x`` is laid out, whatever the other sizes."""
    if x.device.type == "cpu":
        return x.dtype in (torch.float32, torch.bfloat16)
    cudnn = torch.backends.cudnn
    if x.device.type != "cuda" or not torch.cuda.is_available() or torch.version.hip is not None:
        return False
    on = cudnn.is_available() and cudnn.enabled  # type: ignore[no-untyped-call]
    if not on or cudnn.deterministic:
        return False
    wide = torch.cuda.get_device_capability(x.device) >= (8, 0)
    known = (torch.float32, torch.float16, torch.bfloat16) if wide else (torch.float32,)
    return x.dtype in known and math.prod(x.shape) < 2**30
