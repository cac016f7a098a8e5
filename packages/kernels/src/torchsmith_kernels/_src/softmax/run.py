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

_KERNELS = "torchsmith_kernels._src.softmax.kernel"
tile_kernel = launch.Kernel(_KERNELS, "tile_kernel")
loop_kernel = launch.Kernel(_KERNELS, "loop_kernel")
part_kernel = launch.Kernel(_KERNELS, "part_kernel")
apply_kernel = launch.Kernel(_KERNELS, "apply_kernel")
tile_backward_kernel = launch.Kernel(_KERNELS, "tile_backward_kernel")
loop_backward_kernel = launch.Kernel(_KERNELS, "loop_backward_kernel")
part_backward_kernel = launch.Kernel(_KERNELS, "part_backward_kernel")
apply_backward_kernel = launch.Kernel(_KERNELS, "apply_backward_kernel")

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
    """Where a mask's elements are: see ``_mask_base`` and ``_masked`` in the kernels."""

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
    if lines.columns:
        return tensor.contiguous(), 0
    return as_rows(tensor, lines.count, tensor.dim() - dim)


@lru_cache(4096)
def _case(kernel: str, lines: Lines, dtype: torch.dtype, device: torch.device) -> Case:
    """The class of a problem; few lines must be long ones to be shared."""
    units, enough = lines.lines, 2 * launch.sm_count(device)
    if lines.columns:
        units = ceil_div(units, 128 // dtype.itemsize)
    few = units < enough and lines.count >= (SHARED if not lines.columns else 256)
    width = min(next_power_of_2(lines.count), LONG)
    layout = "columns" if lines.columns else "rows"
    return Case(kernel, layout, width, few and width > 0, dtype)


def _splits(lines: Lines, config: Config, device: torch.device) -> tuple[int, int]:
    """Programs per line and elements for each, so that there are four for each multiprocessor."""
    programs = ceil_div(lines.lines, config.lines)
    wanted = ceil_div(4 * launch.sm_count(device), programs)
    blocks = ceil_div(lines.count, config.block)
    part = ceil_div(blocks, min(wanted, MOST_SPLITS)) * config.block
    return ceil_div(lines.count, part), part


def _constants(
    lines: Lines, mask: Tensor | None, plan: MaskPlan, dtype: torch.dtype | None
) -> dict[str, Any]:
    constants: dict[str, Any] = {
        "COLUMNS": lines.columns,
        "MASK": 0 if mask is None else 1 if mask.dtype is torch.bool else 2,
        "STEP": plan.kind,
    }
    if dtype is not None:
        constants["DTYPE"] = launch.triton_dtype(dtype)
    constants["WIDE"] = lines.wide or lines.count * plan.step >= WIDE
    return constants


def forward(
    input: Tensor,
    dim: int,
    dtype: torch.dtype,
    mask: Tensor | None,
    scale: float,
    log: bool,
    config: Config | None = None,
) -> Tensor:
    """The result, contiguous, of type ``dtype``; ``config`` overrides the table, for tuning.

    Args:
        input: a tensor with elements.
        dim: from 0 on.
        dtype: of the result.
        mask: boolean or floating point, broadcastable.
        scale: the factor.
        log: whether to return logarithms.
        config: see above.
    """
    shape, device = input.shape, input.device
    lines = lines_of(tuple(shape), dim)
    output = torch.empty(shape, dtype=dtype, device=device)
    input, stride = _rows(input, lines, dim)
    mask, plan = _place_mask(mask, shape, dim)
    case = _case("forward", lines, input.dtype, device)
    if config is None:
        config = table.choose(case, launch.capability(device))
    sizes = (lines.lines, lines.count, lines.inner, stride, float(scale))
    places = (*plan.sizes, *plan.strides, plan.step)
    common = _constants(lines, mask, plan, dtype)
    common["LINES"], common["BLOCK"] = config.lines, config.block
    programs = ceil_div(lines.lines, config.lines)
    if config.block >= lines.count:
        tile_kernel(
            (programs, 1, 1),
            (input, output, mask, *sizes, *places),
            {"LOG": log, **common},
            config.num_warps,
        )
        return output
    common["STAGES"] = config.num_stages
    if case.few:
        splits, part = _splits(lines, config, device)
        if splits > 1:
            statistics = new_like(output, (2, splits, lines.lines), torch.float32)
            part_kernel(
                (programs, splits, 1),
                (input, statistics, mask, *sizes, *places, part),
                common,
                config.num_warps,
            )
            apply_kernel(
                (programs, splits, 1),
                (input, output, statistics, mask, *sizes, *places, part),
                {"LOG": log, **common, "SPLITS": next_power_of_2(splits)},
                config.num_warps,
            )
            return output
    loop_kernel(
        (programs, 1, 1),
        (input, output, mask, *sizes, *places),
        {"LOG": log, **common},
        config.num_warps,
    )
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
    """The gradient of the input, contiguous; see ``reference.backward`` and ``forward``."""
    shape, device = output.shape, output.device
    lines = lines_of(tuple(shape), dim)
    grad_input = torch.empty(shape, dtype=dtype, device=device)
    output, stride = _rows(output, lines, dim)
    grad_output, grad_stride = _rows(grad_output, lines, dim)
    mask, plan = _place_mask(mask, shape, dim)
    case = _case("backward", lines, output.dtype, device)
    if config is None:
        config = table.choose(case, launch.capability(device))
    sizes = (lines.lines, lines.count, lines.inner, grad_stride, stride)
    places = (float(scale), *plan.sizes, *plan.strides, plan.step)
    common = _constants(lines, mask, plan, None)
    common["LINES"], common["BLOCK"] = config.lines, config.block
    programs = ceil_div(lines.lines, config.lines)
    if config.block >= lines.count:
        tile_backward_kernel(
            (programs, 1, 1),
            (grad_output, output, grad_input, mask, *sizes, *places),
            {"LOG": log, **common},
            config.num_warps,
        )
        return grad_input
    common["STAGES"] = config.num_stages
    if case.few:
        splits, part = _splits(lines, config, device)
        if splits > 1:
            statistics = new_like(output, (splits, lines.lines), torch.float32)
            chosen = ("COLUMNS", "WIDE", "LINES", "BLOCK", "STAGES")
            part_backward_kernel(
                (programs, splits, 1),
                (grad_output, output, statistics, *sizes, part),
                {"LOG": log, **{name: common[name] for name in chosen}},
                config.num_warps,
            )
            apply_backward_kernel(
                (programs, splits, 1),
                (grad_output, output, grad_input, statistics, mask, *sizes, *places, part),
                {"LOG": log, **common, "SPLITS": next_power_of_2(splits)},
                config.num_warps,
            )
            return grad_input
    loop_backward_kernel(
        (programs, 1, 1),
        (grad_output, output, grad_input, mask, *sizes, *places),
        {"LOG": log, **common},
        config.num_warps,
    )
    return grad_input
