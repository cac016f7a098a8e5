"""Choosing and launching the group norm kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.group_norm.config import MOST, Config, case, table
from torchsmith_kernels._src.sizes import ceil_div, new_like, next_power_of_2

_KERNELS = "torchsmith_kernels._src.group_norm.kernel"
_TILES = "torchsmith_kernels._src.group_norm.tiles"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
forward_loop_kernel = launch.Kernel(_KERNELS, "forward_loop_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")
backward_loop_kernel = launch.Kernel(_KERNELS, "backward_loop_kernel")
column_sums_kernel = launch.Kernel(_KERNELS, "column_sums_kernel")
moments_kernel = launch.Kernel(_TILES, "moments_kernel")
merge_moments_kernel = launch.Kernel(_TILES, "merge_moments_kernel")
normalize_kernel = launch.Kernel(_TILES, "normalize_kernel")
grad_sums_kernel = launch.Kernel(_TILES, "grad_sums_kernel")
merge_sums_kernel = launch.Kernel(_TILES, "merge_sums_kernel")
grad_kernel = launch.Kernel(_TILES, "grad_kernel")

#: Channels of an element are found by a multiplication in float32, exact for groups below this.
_EXACT = 2**21
_MERGE = 1024
_SUM_ROWS, _SUM_COLUMNS = 64, 32


def channels_last(input: Tensor) -> bool:
    """Whether ``input`` has torch's memory format of that name (and is not contiguous)."""
    if input.is_contiguous():
        return False
    dims = input.dim()
    if dims == 4:
        return input.is_contiguous(memory_format=torch.channels_last)
    return dims == 5 and input.is_contiguous(memory_format=torch.channels_last_3d)


def memory_format(input: Tensor) -> torch.memory_format:
    """The layout of the result for ``input``."""
    if not channels_last(input):
        return torch.contiguous_format
    return torch.channels_last if input.dim() == 4 else torch.channels_last_3d


def _chosen(kernel: str, elements: int, like: Tensor, config: Config | None) -> Config:
    if config is not None:
        return config
    return table.choose(case(kernel, elements, like.dtype), launch.capability(like.device))


def _shared(input: Tensor, groups: int, size: int) -> bool:
    """Whether several programs share a group: there are too few groups, or they are huge."""
    count = input.shape[0] * groups
    return size > MOST["forward"] and (count < launch.sm_count(input.device) or size > _EXACT)


def _tile(block: int, channels: int, pixels: int, last: bool) -> tuple[int, int]:
    """Channels and pixels of a tile of ``block`` elements."""
    if last:
        wide = min(next_power_of_2(channels), 256, block)
        while wide > 32 and 8 * ceil_div(channels, wide) * wide > 9 * channels:
            wide //= 2  # at most an eighth of the tiles idle
        return wide, min(block // wide, next_power_of_2(pixels))
    long = min(next_power_of_2(pixels), block)
    return min(block // long, next_power_of_2(channels)), long


class _Walk(NamedTuple):
    """How programs share all pixels: tiles of channels, each over spans of pixels.

    Attributes:
        grid: one program for each batch, split and block of channels.
        span: pixels per program, a multiple of the tile's.
        splits: programs for all pixels of a block of channels.
        blocks: blocks of channels.
        constants: the tile, as the kernels take it.
        num_warps: warps per program.
    """

    grid: tuple[int, int, int]
    span: int
    splits: int
    blocks: int
    constants: dict[str, int]
    num_warps: int


def _walk(kernel: str, input: Tensor, pixels: int, last: bool, config: Config | None) -> _Walk:
    """How the programs of ``sums`` or ``apply`` walk over ``input``."""
    batch, channels = input.shape[:2]
    config = _chosen(kernel + ("_last" if last else ""), 0, input, config)
    wide, long = _tile(config.block, channels, pixels, last)
    blocks = ceil_div(channels, wide)
    wanted = ceil_div(8 * launch.sm_count(input.device), batch * blocks)
    span = ceil_div(ceil_div(pixels, wanted), long) * long
    splits = ceil_div(pixels, span)
    constants = {"CHANNELS": wide, "PIXELS": long, "AXIS": 0 if last else 1}
    return _Walk((batch * blocks * splits, 1, 1), span, splits, blocks, constants, config.num_warps)


#: None where several programs share a group.
_plans: tables.Remembered[launch.Plan | None] = tables.Remembered()


def forward(
    input: Tensor,
    groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Result, mean and reciprocal deviation; ``config`` overrides the table, for tuning."""
    last = channels_last(input)
    if not last and not input.is_contiguous():
        input = input.contiguous()
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    y = torch.empty_like(input)
    shape, device = input.shape, input.device
    mean = torch.empty((shape[0], groups), dtype=torch.float32, device=device)
    rstd = torch.empty_like(mean)
    vectors = (
        None if weight is None else weight.dtype,
        None if bias is None else bias.dtype,
    )
    key = (shape, last, input.dtype, device, groups, vectors, eps, config)
    if key in _plans:
        plan = _plans[key]
    else:
        plan = None if last else _plan(input, groups, eps, config)
        _plans.keep(key, plan)
    if plan is None:
        _forward_shared(input, weight, bias, y, mean, rstd, eps, last, config)
    else:
        plan(input, weight, bias, y, mean, rstd)
    return y, mean, rstd


def _plan(input: Tensor, groups: int, eps: float, config: Config | None) -> launch.Plan | None:
    """The launch with one program or less per group, None where it takes several."""
    batch, channels = input.shape[0], input.shape[1]
    count, per_group = batch * groups, channels // groups
    pixels = input.numel() // (batch * channels)
    size = per_group * pixels
    if _shared(input, groups, size):
        return None
    config = _chosen("forward", size, input, config)
    vector = min(pixels & -pixels, 8)
    numbers = (size, groups, per_group, 1.0 / pixels, float(eps))
    if config.block < size:
        return launch.Plan(
            forward_loop_kernel,
            (count, 1, 1),
            numbers,
            {"BLOCK": config.block, "VECTOR": vector, "FLAT": pixels == 1},
            config.num_warps,
        )
    block = max(next_power_of_2(size), vector)
    rows = max(config.block // block, 1)
    return launch.Plan(
        forward_kernel,
        (ceil_div(count, rows), 1, 1),
        (count, *numbers),
        {"ROWS": rows, "BLOCK": block, "VECTOR": vector, "FLAT": pixels == 1},
        config.num_warps,
    )


def _forward_shared(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    y: Tensor,
    mean: Tensor,
    rstd: Tensor,
    eps: float,
    last: bool,
    config: Config | None,
) -> None:
    batch, groups = mean.shape
    channels = input.shape[1]
    pixels = input.numel() // (batch * channels)
    per_group = channels // groups
    grid, span, splits, blocks, constants, warps = _walk("sums", input, pixels, last, config)
    averages = new_like(input, (batch, splits, channels), torch.float32)
    squares = torch.empty_like(averages)
    sums = (input, averages, squares, channels, pixels)
    moments_kernel(grid, (*sums, span, splits, blocks), constants, warps)
    merge_moments_kernel(
        (batch * groups, 1, 1),
        (averages, squares, mean, rstd, groups, per_group, pixels, span, splits, float(eps)),
        {"BLOCK": _MERGE},
    )
    grid, span, splits, blocks, constants, warps = _walk("apply", input, pixels, last, config)
    tensors = (input, weight, bias, y, mean, rstd)
    sizes = (channels, groups, per_group, pixels)
    normalize_kernel(grid, (*tensors, *sizes, span, splits, blocks), constants, warps)


def backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    affine: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias; the last two are empty unless ``affine``."""
    last = channels_last(input)
    layout = memory_format(input)
    input = input.contiguous(memory_format=layout)
    grad_output = grad_output.contiguous(memory_format=layout)
    if weight is not None:
        weight = weight.contiguous()
    dx = torch.empty_like(input)
    batch, groups = mean.shape
    channels = input.shape[1]
    per_group = channels // groups
    pixels = input.numel() // (batch * channels)
    size = per_group * pixels
    if last or _shared(input, groups, size):
        grad_sums, normed_sums = _backward_shared(
            grad_output, input, mean, rstd, weight, dx, pixels, last, config
        )
    else:
        grad_sums = new_like(input, (batch, channels), torch.float32)
        normed_sums = torch.empty_like(grad_sums)
        wide, long = next_power_of_2(per_group), next_power_of_2(pixels)
        config = _chosen("backward", wide * long, input, config)
        tensors = (grad_output, input, weight, mean, rstd, dx, grad_sums, normed_sums)
        if config.block >= wide * long:
            rows = config.block // (wide * long)
            backward_kernel(
                (ceil_div(batch * groups, rows), 1, 1),
                (*tensors, batch * groups, pixels, groups, per_group),
                {"ROWS": rows, "CHANNELS": wide, "PIXELS": long},
                config.num_warps,
            )
        else:
            wide, long = _tile(config.block, per_group, pixels, False)
            backward_loop_kernel(
                (batch * groups, 1, 1),
                (*tensors, pixels, groups, per_group),
                {"CHANNELS": wide, "PIXELS": long},
                config.num_warps,
            )
    if not affine:
        return dx, new_like(mean, (0,)), new_like(mean, (0,))
    dtype = torch.float32 if weight is None else weight.dtype
    grad_bias, grad_weight = _column_sums(
        grad_sums.view(-1, channels), normed_sums.view(-1, channels), dtype
    )
    return dx, grad_weight, grad_bias


def _backward_shared(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    dx: Tensor,
    pixels: int,
    last: bool,
    config: Config | None,
) -> tuple[Tensor, Tensor]:
    batch, groups = mean.shape
    channels = input.shape[1]
    per_group = channels // groups
    grid, span, splits, blocks, constants, warps = _walk("sums", input, pixels, last, config)
    grad_sums = new_like(input, (batch, splits, channels), torch.float32)
    normed_sums = torch.empty_like(grad_sums)
    sums = (grad_output, input, mean, rstd, grad_sums, normed_sums)
    sizes = (channels, groups, per_group, pixels)
    grad_sums_kernel(grid, (*sums, *sizes, span, splits, blocks), constants, warps)
    offsets, slopes = torch.empty_like(mean), torch.empty_like(mean)
    merge_sums_kernel(
        (batch * groups, 1, 1),
        (grad_sums, normed_sums, weight, offsets, slopes, groups, per_group, pixels, splits),
        {"BLOCK": _MERGE},
    )
    grid, span, splits, blocks, constants, warps = _walk("apply", input, pixels, last, config)
    tensors = (grad_output, input, weight, mean, rstd, offsets, slopes, dx)
    grad_kernel(grid, (*tensors, *sizes, span, splits, blocks), constants, warps)
    return grad_sums, normed_sums


def _column_sums(first: Tensor, second: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums over the rows of two matrices, in one step or, for many rows, in two."""
    rows, columns = first.shape
    parts = 1 if rows <= 8 * _SUM_ROWS else min(ceil_div(rows, 4 * _SUM_ROWS), 256)
    kind = dtype if parts == 1 else torch.float32
    sums = new_like(first, (parts, columns), kind), new_like(first, (parts, columns), kind)
    column_sums_kernel(
        (ceil_div(columns, _SUM_COLUMNS), parts, 1),
        (first, second, *sums, rows, columns, ceil_div(rows, parts)),
        {"ROWS": _SUM_ROWS, "COLUMNS": _SUM_COLUMNS},
    )
    if parts > 1:
        return _column_sums(*sums, dtype)
    return sums[0].view(columns), sums[1].view(columns)
