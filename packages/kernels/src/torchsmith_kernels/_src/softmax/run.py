"""Choosing and launching the softmax kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.sizes import as_rows, ceil_div, new_like, next_power_of_2
from torchsmith_kernels._src.softmax.config import LONG, Case, Config, table

_FORWARD = "torchsmith_kernels._src.softmax.kernel"
_BACKWARD = "torchsmith_kernels._src.softmax.kernel_backward"
plain_kernel = launch.Kernel(_FORWARD, "plain_kernel")
tile_kernel = launch.Kernel(_FORWARD, "tile_kernel")
loop_kernel = launch.Kernel(_FORWARD, "loop_kernel")
part_kernel = launch.Kernel(_FORWARD, "part_kernel")
apply_kernel = launch.Kernel(_FORWARD, "apply_kernel")
plain_backward_kernel = launch.Kernel(_BACKWARD, "plain_backward_kernel")
tile_backward_kernel = launch.Kernel(_BACKWARD, "tile_backward_kernel")
loop_backward_kernel = launch.Kernel(_BACKWARD, "loop_backward_kernel")
rows_backward_kernel = launch.Kernel(_BACKWARD, "rows_backward_kernel")
part_backward_kernel = launch.Kernel(_BACKWARD, "part_backward_kernel")
apply_backward_kernel = launch.Kernel(_BACKWARD, "apply_backward_kernel")

#: Offsets within a line are 32 bits wide below this; a tile may reach beyond the line's end.
WIDE = 2**31 - 2**17
#: Lines shorter than this are not shared by programs.
SHARED = 32769
MOST_SPLITS = 128


@dataclass(frozen=True, slots=True)
class Lines:
    """A shape as lines to sum over: ``outer * inner`` lines of ``count`` elements."""

    lines: int
    count: int
    inner: int
    wide: bool

    @property
    def columns(self) -> bool:
        """Whether elements of a line are ``inner`` apart."""
        return self.inner > 1


@lru_cache(4096)
def lines_of(shape: tuple[int, ...], dim: int) -> Lines:
    """How a softmax along ``dim`` sees a tensor of ``shape`` that has elements."""
    if not shape:
        return Lines(1, 1, 1, False)
    count, inner = shape[dim], prod(shape[dim + 1 :])
    lines = prod(shape) // count
    return Lines(lines, count, inner, max(count * inner, lines) >= WIDE)


@dataclass(frozen=True, slots=True)
class MaskPlan:
    """Where a mask's elements are: see ``mask_start`` and ``read_mask`` in ``lines``."""

    sizes: tuple[int, int]
    strides: tuple[int, int, int]
    step: int
    kind: int


@lru_cache(4096)
def _plan(shape: tuple[int, ...], strides: tuple[int, ...], dim: int) -> MaskPlan | None:
    """For a mask that is expanded to ``shape``; None if its lines take more than three indices."""
    groups: list[tuple[int, int]] = []
    for axis, (size, stride) in enumerate(zip(shape, strides, strict=True)):
        if axis == dim or size == 1:
            continue
        if groups and groups[-1][1] == stride * size:
            groups[-1] = (groups[-1][0] * size, stride)
        else:
            groups.append((size, stride))
    if len(groups) > 3:
        return None
    padded = [(1, 0)] * (3 - len(groups)) + groups
    step = strides[dim] if shape else 0
    kind = step if step in (0, 1) else 2
    (_, stride0), (size1, stride1), (size2, stride2) = padded
    return MaskPlan((size1, size2), (stride0, stride1, stride2), step, kind)


_NO_MASK = MaskPlan((1, 1), (0, 0, 0), 0, 0)


def _place_mask(mask: Tensor | None, shape: torch.Size, dim: int) -> tuple[Tensor | None, MaskPlan]:
    if mask is None:
        return None, _NO_MASK
    mask = mask.expand(shape)
    plan = _plan(tuple(shape), mask.stride(), dim)
    if plan is None:
        mask = mask.contiguous()
        plan = _plan(tuple(shape), mask.stride(), dim)
        assert plan is not None  # a contiguous tensor's lines take two indices
    return mask, plan


def _rows(tensor: Tensor, lines: Lines, dim: int) -> tuple[Tensor, int]:
    """``tensor`` where the kernels can read it, and the distance of its rows."""
    if tensor.is_contiguous():
        return tensor, lines.count
    if lines.columns:
        return tensor.contiguous(), 0
    return as_rows(tensor, lines.count, tensor.dim() - dim)


@lru_cache(4096)
def _case(
    kernel: str, shape: torch.Size, dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Lines, Case]:
    """A problem as lines, and its class; few lines must be long ones to be shared."""
    lines = lines_of(tuple(shape), dim)
    units, shared = lines.lines, SHARED
    if lines.columns:
        units, shared = ceil_div(units, 128 // dtype.itemsize), 256
    few = units < 2 * launch.sm_count(device) and lines.count >= shared
    width = min(next_power_of_2(lines.count), LONG)
    return lines, Case(kernel, "columns" if lines.columns else "rows", width, few, dtype)


def _splits(lines: Lines, config: Config, device: torch.device) -> tuple[int, int]:
    """Programs per line and elements for each, so that there are four for each multiprocessor."""
    programs = ceil_div(lines.lines, config.lines)
    wanted = ceil_div(4 * launch.sm_count(device), programs)
    blocks = ceil_div(lines.count, config.block)
    part = ceil_div(blocks, min(wanted, MOST_SPLITS)) * config.block
    return ceil_div(lines.count, part), part


@lru_cache(4096)
def _plain_constants(lines: Lines, config: Config, log: bool) -> dict[str, Any]:
    return {
        "LOG": log,
        "COLUMNS": lines.columns,
        "WIDE": lines.wide,
        "CHECKED": config.block != lines.count or lines.lines % config.lines != 0,
        "LINES": config.lines,
        "BLOCK": config.block,
    }


def _constants(
    lines: Lines, mask: Tensor | None, plan: MaskPlan, config: Config, log: bool
) -> dict[str, Any]:
    return {
        "LOG": log,
        "COLUMNS": lines.columns,
        "MASK": 0 if mask is None else 1 if mask.dtype is torch.bool else 2,
        "STEP": plan.kind,
        "WIDE": lines.wide or lines.count * plan.step >= WIDE,
        "LINES": config.lines,
        "BLOCK": config.block,
    }


def _limits(config: Config) -> tuple[int, int, int | None]:
    """The last arguments of a launch that loops: loops pipeline by ``STAGES`` alone."""
    return config.num_warps, 3, config.registers or None


def _only(constants: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: constants[name] for name in names}


def forward(
    input: Tensor,
    dim: int,
    dtype: torch.dtype,
    mask: Tensor | None,
    scale: float,
    log: bool,
    config: Config | None = None,
) -> Tensor:
    """The result, contiguous, of type ``dtype``.

    Args:
        input: a tensor with elements.
        dim: from 0 on.
        dtype: of the result.
        mask: boolean or floating point, broadcastable.
        scale: the factor.
        log: whether to return logarithms.
        config: overrides the table, for tuning.
    """
    shape, device = input.shape, input.device
    lines, case = _case("forward", shape, dim, input.dtype, device)
    if config is None:
        config = table.choose(case, launch.capability(device))
    output = torch.empty(shape, dtype=dtype, device=device)
    input, stride = _rows(input, lines, dim)
    programs = ceil_div(lines.lines, config.lines)
    whole = config.block >= lines.count and not config.twice
    sizes: tuple[Any, ...] = (lines.lines, lines.count, lines.inner, stride)
    if whole and mask is None and scale == 1.0:
        constants = _plain_constants(lines, config, log)
        plain_kernel((programs, 1, 1), (input, output, *sizes), constants, config.num_warps)
        return output
    mask, plan = _place_mask(mask, shape, dim)
    sizes = (*sizes, float(scale), *plan.sizes, *plan.strides, plan.step)
    constants = _constants(lines, mask, plan, config, log)
    if whole:
        args = (input, output, mask, *sizes)
        tile_kernel((programs, 1, 1), args, constants, config.num_warps)
        return output
    group = 16 // input.itemsize
    if lines.columns:
        group = max(1, config.lines * config.block // (32 * config.num_warps) // group)
    looping = {"TAIL": lines.count % config.block != 0, "STAGES": config.num_stages}
    adding = {"GROUP": group, **looping}
    splits, part = _splits(lines, config, device) if case.few else (1, 0)
    if splits == 1:
        args = (input, output, mask, *sizes)
        loop_kernel((programs, 1, 1), args, {**constants, **adding}, *_limits(config))
        return output
    statistics = new_like(output, (2, splits, lines.lines), torch.float32)
    args = (input, output, statistics, mask, *sizes, part)
    grid = (programs, splits, 1)
    chosen = _only(constants, "COLUMNS", "MASK", "STEP", "WIDE", "LINES", "BLOCK")
    part_kernel(grid, args, {**chosen, **adding}, *_limits(config))
    apply_kernel(grid, args, {**constants, **looping}, *_limits(config))
    return output


def backward(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    dtype: torch.dtype,
    mask: Tensor | None,
    scale: float,
    log: bool,
    config: Config | None = None,
) -> Tensor:
    """The gradient of the input, contiguous, of type ``dtype``.

    Args:
        grad_output: gradient of the output.
        output: the forward's result, with elements.
        dim: from 0 on.
        dtype: element type of the input.
        mask: the boolean mask.
        scale: the factor.
        log: whether ``output`` holds logarithms.
        config: overrides the table, for tuning.
    """
    shape, device = output.shape, output.device
    lines, case = _case("backward", shape, dim, output.dtype, device)
    if config is None:
        config = table.choose(case, launch.capability(device))
    grad_input = torch.empty(shape, dtype=dtype, device=device)
    output, stride = _rows(output, lines, dim)
    grad_output, grad_stride = _rows(grad_output, lines, dim)
    programs = ceil_div(lines.lines, config.lines)
    whole = config.block >= lines.count and not config.twice
    base: tuple[Any, ...] = (lines.lines, lines.count, lines.inner, grad_stride, stride)
    if whole and mask is None and scale == 1.0:
        plain_backward_kernel(
            (programs, 1, 1),
            (grad_output, output, grad_input, *base),
            _plain_constants(lines, config, log),
            config.num_warps,
        )
        return grad_input
    splits, part = _splits(lines, config, device) if case.few and not whole else (1, 0)
    plain = mask is None and scale == 1.0 and not lines.columns
    if not whole and splits == 1 and plain and config.num_stages == config.lines == 1:
        constants = {
            "LOG": log,
            "WIDE": lines.wide,
            "TAIL": lines.count % config.block != 0,
            "BLOCK": config.block,
        }
        args = (grad_output, output, grad_input, lines.count, grad_stride, stride)
        # The last, partial block takes more registers, which the limit would spill.
        limits = (config.num_warps,) if constants["TAIL"] else _limits(config)
        rows_backward_kernel((programs, 1, 1), args, constants, *limits)
        return grad_input
    mask, plan = _place_mask(mask, shape, dim)
    sizes = (*base, float(scale), *plan.sizes, *plan.strides, plan.step)
    constants = _constants(lines, mask, plan, config, log)
    if whole:
        args = (grad_output, output, grad_input, mask, *sizes)
        tile_backward_kernel((programs, 1, 1), args, constants, config.num_warps)
        return grad_input
    looping = {"TAIL": lines.count % config.block != 0, "STAGES": config.num_stages}
    if splits == 1:
        args = (grad_output, output, grad_input, mask, *sizes)
        loop_backward_kernel((programs, 1, 1), args, {**constants, **looping}, *_limits(config))
        return grad_input
    grid = (programs, splits, 1)
    statistics = new_like(output, (splits, lines.lines), torch.float32)
    chosen = _only(constants, "LOG", "COLUMNS", "WIDE", "LINES", "BLOCK")
    args = (grad_output, output, statistics, *base, part)
    part_backward_kernel(grid, args, {**chosen, **looping}, *_limits(config))
    args = (grad_output, output, grad_input, statistics, mask, *sizes, part)
    apply_backward_kernel(grid, args, {**constants, **looping}, *_limits(config))
    return grad_input
