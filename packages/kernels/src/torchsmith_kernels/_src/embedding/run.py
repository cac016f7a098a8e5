"""Launching the embedding kernels.

The backward pass has four stages: a stable sort of the indices, as for other sums by an index,
``pieces`` (where runs of equal indices begin, cut at every 32nd
position), ``sum`` (one sum per piece, in parallel) and ``combine`` (the pieces of long runs). All
sums have a fixed order, and no run is the work of one program alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.embedding.config import LENGTH, Config, case, table
from torchsmith_kernels._src.sizes import as_rows, ceil_div, row_stride
from torchsmith_kernels._src.sum_rows.run import ordered

_KERNELS = "torchsmith_kernels._src.embedding.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
pieces_kernel = launch.Kernel(_KERNELS, "pieces_kernel")
sum_kernel = launch.Kernel(_KERNELS, "sum_kernel")
combine_kernel = launch.Kernel(_KERNELS, "combine_kernel")

_COMBINE_ROWS, _COMBINE_COLUMNS = 32, 128
#: Launch and shape of the result.
_plans: tables.Remembered[tuple[launch.Plan, tuple[int, ...]]] = tables.Remembered()


def forward(input: Tensor, weight: Tensor, config: Config | None = None) -> Tensor:
    """``weight[input]``; ``config`` overrides the table, for tuning."""
    shape, device = input.shape, weight.device
    key = (shape, input.dtype, weight.shape, weight.stride(), weight.dtype, device, config)
    known = _plans.get(key)
    if known is None:
        rows, width = weight.shape
        count = input.numel()
        if count == 0 or width == 0:
            return torch.empty((*shape, width), dtype=weight.dtype, device=device)
        if row_stride(weight, width, 1) is None:
            return forward(input, weight.contiguous(), config)
        known = _plan(count, rows, width, weight, config), (*shape, width)
        _plans.keep(key, known)
    plan, size = known
    output = torch.empty(size, dtype=weight.dtype, device=device)
    plan(input if input.is_contiguous() else input.contiguous(), weight, output)
    return output


def _plan(count: int, rows: int, width: int, weight: Tensor, config: Config | None) -> launch.Plan:
    if config is None:
        chosen = case("forward", width, weight.dtype)
        config = table.choose(chosen, launch.capability(weight.device))
    blocks = ceil_div(width, config.columns)
    return launch.Plan(
        forward_kernel,
        (ceil_div(count, config.rows) * blocks, 1, 1),
        (count, rows, width, row_stride(weight, width, 1) or 0, blocks),
        {"ROWS": config.rows, "COLUMNS": config.columns},
        config.num_warps,
    )


def backward(
    grad_output: Tensor, input: Tensor, rows: int, padding_idx: int, config: Config | None = None
) -> Tensor:
    """Sums of ``grad_output`` per index; ``config`` overrides the table, for tuning."""
    width, count = grad_output.shape[-1], input.numel()
    dtype, device = grad_output.dtype, grad_output.device
    result = torch.zeros((rows, width), dtype=dtype, device=device)
    if result.numel() == 0 or count == 0:
        return result
    grad_output, stride = as_rows(grad_output, width, 1)
    keys, order = ordered(input, rows, padding_idx)
    lengths = torch.empty(count, dtype=torch.int32, device=device)
    blocks = ceil_div(count, LENGTH)
    pieces_kernel(
        (ceil_div(blocks, 4), 1, 1),
        (keys, lengths, count, rows),
        {"BLOCKS": 4, "LENGTH": LENGTH},
    )
    if config is None:
        config = table.choose(case("backward", width, dtype), launch.capability(device))
    partial = torch.empty((2 * blocks, width), dtype=torch.float32, device=device)
    column_blocks = ceil_div(width, config.columns)
    sum_kernel(
        (ceil_div(count, config.rows) * column_blocks, 1, 1),
        (
            grad_output,
            order,
            keys,
            lengths,
            result,
            partial,
            count,
            width,
            stride,
            column_blocks,
        ),
        {"ROWS": config.rows, "COLUMNS": config.columns, "LENGTH": LENGTH},
        config.num_warps,
    )
    if blocks > 1:
        column_blocks = ceil_div(width, _COMBINE_COLUMNS)
        combine_kernel(
            ((blocks - 1) * column_blocks, 1, 1),
            (keys, result, partial, count, rows, width, column_blocks),
            {"ROWS": _COMBINE_ROWS, "COLUMNS": _COMBINE_COLUMNS, "LENGTH": LENGTH},
        )
    return result
