"""Rules of pooling over static sizes, windows and adaptive ones, and of windows as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    contiguous,
    fits,
    holds,
    image_layout,
    is_contiguous,
    is_static,
    rule,
    spread,
    unsure_if,
)


def _pool_layout(size: list[int], x: torch.Tensor, count: int) -> Layout:
    if count == 2:
        return image_layout(size, x)
    unsure_if(not is_contiguous(x))
    return contiguous(size, x)  # may be of four axes, but is no image


def _with_indices(values: Layout) -> Layouts:
    return [values, (*values[:2], torch.int64, *values[3:])]


def _register(count: int) -> None:
    """The rules of pooling over ``count`` spatial dimensions."""

    @rule(f"max_pool{count}d_with_indices")
    def _max_pool(x: torch.Tensor, *window: Any, **named: Any) -> Layouts:
        return _with_indices(_pool_layout(_pooled(count, x, *window, **named), x, count))

    @rule(f"avg_pool{count}d")
    def _avg_pool(
        x: torch.Tensor,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Layout | None:
        size = _pooled(count, x, kernel_size, stride, padding, (1,), ceil_mode)
        unknown = (
            count == 3 and x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16)
        )
        return None if divisor_override == 0 or unknown else _pool_layout(size, x, count)

    @rule(f"_adaptive_avg_pool{count}d")
    def _adaptive_avg_pool(x: torch.Tensor, output_size: Sequence[Any]) -> Layout:
        unsure_if(x.dim() not in (count + 1, count + 2) or len(output_size) != count or not fits(x))
        unsure_if(not is_static(output_size) or min(output_size) < 1)
        return _pool_layout([*x.shape[:-count], *output_size], x, count)

    @rule(f"adaptive_max_pool{count}d")
    def _adaptive_max_pool(x: torch.Tensor, output_size: Sequence[Any]) -> Layouts:
        return _with_indices(_adaptive_avg_pool(x, output_size))


for _count in (2, 3):
    _register(_count)


def _pooled(
    count: int,
    x: torch.Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> list[int]:
    unsure_if(x.dim() not in (count + 1, count + 2) or not fits(x))
    kernels, pads, gaps = (spread(n, count) for n in (kernel_size, padding, dilation))
    steps = spread(stride, count) if stride else kernels
    size = list(x.shape[:-count])
    for extent, kernel, step, pad, gap in zip(x.shape[-count:], kernels, steps, pads, gaps):
        unsure_if(step < 1 or kernel < 1 or gap < 1 or not 0 <= 2 * pad <= kernel)
        room = extent + 2 * pad - gap * (kernel - 1) - 1
        unsure_if(room < 0)
        number = -(-room // step) + 1 if ceil_mode else room // step + 1
        if ceil_mode and (number - 1) * step >= extent + pad:
            number -= 1  # the last window must start inside the input or its left padding
        size.append(number)
    return size


@rule("im2col")
def _columns(
    x: torch.Tensor, kernel_size: Sequence[int], dilation: Sequence[int],
    padding: Sequence[int], stride: Sequence[int],
) -> Layout | None:  # fmt: skip
    """Row-major, whatever the image's layout is."""
    unsure_if(x.dim() not in (3, 4) or not x.dtype.is_floating_point or holds(x.shape, 0))
    windows: Any = 1
    for extent, *numbers in zip(x.shape[-2:], kernel_size, dilation, padding, stride):
        kernel, gap, pad, step = numbers
        least = extent if type(extent) is int else 2
        unsure_if(least + 2 * pad - gap * (kernel - 1) < 1 or min(kernel, gap, step, pad + 1) < 1)
        windows = windows * ((extent + 2 * pad - gap * (kernel - 1) - 1) // step + 1)
    rows = x.shape[-3] * (kernel_size[0] * kernel_size[1])
    return contiguous((*x.shape[:-3], rows, windows), x)
