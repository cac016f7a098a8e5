"""Rules of images at other sizes: interpolation, padding by mirroring, shuffles of pixels, grids.

What other devices do with channels-last images is left to torch, but for nearest neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    alike,
    contiguous,
    fits,
    holds,
    image_layout,
    is_channels_last,
    is_contiguous,
    is_static,
    less,
    rule,
    same_sizes,
    unsure_if,
)

_UPSAMPLING = """
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d
    upsample_bicubic2d upsample_trilinear3d
""".split()


def _resampled(size: Sequence[Any], x: torch.Tensor) -> Layout:
    """The layout of ``x`` with the sizes ``size``, the first of which may be a symbol."""
    unsure_if(not alike(x) or not is_static(x.stride(), x.shape[1:], size[1:]) or holds(x.shape, 0))
    unsure_if(min(size[1:]) < 1 or holds(size[:1], 0))
    if not is_channels_last(x):
        unsure_if(x.dim() >= 5 and not is_contiguous(x))
        return contiguous(size, x)
    unsure_if(x.device.type != "cpu")
    return image_layout(size, x)


@rule("upsample_nearest2d", "_upsample_nearest_exact2d")
def _nearest(x: torch.Tensor, output_size: Sequence[Any], *scales: Any) -> Layout | None:
    if x.device.type != "cuda" or not is_channels_last(x):
        return _upsample(x, output_size, *scales)
    size = (*x.shape[:2], *output_size)
    return image_layout(size, x) if fits(x) and is_static(size) and min(size) > 0 else None


@rule(*(name for name in _UPSAMPLING if "nearest" not in name or not name.endswith("2d")))
def _upsample(x: torch.Tensor, output_size: Sequence[Any], *_: Any) -> Layout | None:
    return _resampled((*x.shape[:2], *output_size), x) if x.dim() == len(output_size) + 2 else None


@rule(*(f"{name}_backward" for name in _UPSAMPLING if "cubic" not in name))
def _upsample_backward(
    grad: torch.Tensor, output_size: Sequence[Any], input_size: Sequence[Any], *_: Any
) -> Layout | None:
    fitting = same_sizes(grad.shape, (*input_size[:2], *output_size))
    return _resampled(tuple(input_size), grad) if fitting else None


@rule("upsample_bicubic2d_backward")
def _bicubic_backward(grad: torch.Tensor, *sizes: Any) -> Layout | None:
    return None if is_channels_last(grad) else _upsample_backward(grad, *sizes)


def _padded(count: int, x: torch.Tensor, padding: Sequence[int]) -> Layout:
    unsure_if(x.dim() not in (count + 1, count + 2))
    unsure_if(len(padding) != 2 * count or not is_static(padding))
    unsure_if(min(padding) < 0 or not alike(x) or holds(x.shape, 0))
    unsure_if(not is_contiguous(x) and x.device.type != "cpu")
    size = list(x.shape)
    for i in range(count):
        unsure_if(not less(max(padding[2 * i : 2 * i + 2]), size[-1 - i]))
        size[-1 - i] += sum(padding[2 * i : 2 * i + 2])
    return image_layout(size, x, suggested=True)


for _count in (1, 2, 3):
    rule(f"reflection_pad{_count}d replication_pad{_count}d")(partial(_padded, _count))


@rule("channel_shuffle native_channel_shuffle")
def _channel_shuffle(x: torch.Tensor, groups: int) -> Layout:
    unsure_if(not alike(x) or x.device.type != "cpu" or x.dim() < 3 or holds(x.shape, 0))
    unsure_if(not is_static((x.shape[1], groups)) or groups < 1 or x.shape[1] % groups)
    return image_layout(x.shape, x, suggested=True)


@rule("pixel_shuffle")
def _pixel_shuffle(x: torch.Tensor, factor: int) -> Layout:
    unsure_if(x.dim() < 3 or not fits(x) or factor < 1 or x.shape[-3] % factor**2)
    *batch, channels, height, width = x.shape
    return _resampled((*batch, channels // factor**2, height * factor, width * factor), x)


@rule("pixel_unshuffle")
def _pixel_unshuffle(x: torch.Tensor, factor: int) -> Layout:
    unsure_if(x.dim() < 3 or not fits(x) or factor < 1)
    unsure_if(x.shape[-2] % factor or x.shape[-1] % factor)
    *batch, channels, height, width = x.shape
    return _resampled((*batch, channels * factor**2, height // factor, width // factor), x)


@rule("grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(x: torch.Tensor, grid: torch.Tensor, *_: Any) -> Layout:
    count = x.dim() - 2
    unsure_if(count not in (2, 3) or not fits(x, grid) or not fits(grid) or not is_contiguous(x))
    unsure_if(grid.dim() != x.dim() or grid.shape[0] != x.shape[0] or grid.shape[-1] != count)
    return contiguous((*x.shape[:2], *grid.shape[1:-1]), x)


@rule("affine_grid_generator")
def _affine_grid(theta: torch.Tensor, size: Sequence[Any], align_corners: bool = False) -> Layout:
    count = len(size) - 2
    unsure_if(count not in (2, 3) or not alike(theta) or holds(size, 0))
    unsure_if(not same_sizes(theta.shape, (size[0], count, count + 1)))
    return contiguous((size[0], *size[2:], count), theta)
