"""Launching the embedding kernels; the backward pass sums rows by index."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.embedding.config import Config, case, table
from torchsmith_kernels._src.sizes import ceil_div, row_stride
from torchsmith_kernels._src.sum_rows import run as sum_rows

_KERNELS = "torchsmith_kernels._src.embedding.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")

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


def backward(grad_output: Tensor, input: Tensor, rows: int, padding_idx: int) -> Tensor:
    """Sums of ``grad_output`` per index."""
    found = sum_rows.sort(input, rows, padding_idx, wrap=False, checked=False)
    return sum_rows.total(grad_output.reshape(input.numel(), grad_output.shape[-1]), *found)
