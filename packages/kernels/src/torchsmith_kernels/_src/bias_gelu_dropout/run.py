"""Launching the kernels of bias + GELU + dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.bias_gelu_dropout.config import (
    PARTIALS_COLUMNS,
    PARTIALS_ROWS,
    WIDEST,
    Config,
    case_of,
    table,
)
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.pointwise.config import tile
from torchsmith_kernels._src.sizes import as_rows, ceil_div, compute_dtype, new_like

_KERNELS = "torchsmith_kernels._src.bias_gelu_dropout.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")
partials_kernel = launch.Kernel(_KERNELS, "partials_kernel")

_known: tables.Remembered[launch.Prepared] = tables.Remembered()


def _grid(rows: int, width: int, config: Config, device: torch.device) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, tiles side by side, and how many groups share the rows."""
    height, columns, programs = tile(rows, width, config.block, WIDEST)
    across = programs // ceil_div(rows, height)
    wanted = config.per_sm * launch.sm_count(device) // across
    return height, columns, across, min(programs // across, max(wanted, 1))


def forward(
    input: Tensor,
    bias: Tensor,
    p: float,
    stream: random.Stream,
    kind: Kind,
    config: Config | None = None,
) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(input)
    if not output.is_contiguous():  # random words follow the order of rows
        return output.copy_(forward(input.contiguous(), bias, p, stream, kind, config))
    seed, *numbers = random.arguments(stream)
    tensors = (input, bias, output) if seed is None else (input, bias, output, seed)
    words = tuple(numbers)
    key = (
        input.dtype, input.device, input.shape, input.stride(), bias.stride(),
        kind, p, seed is None,
    )  # fmt: skip
    prepared = _known.get(key) if config is None else None
    if prepared is not None:
        prepared(*tensors, words=words)
        return output
    if input.numel() == 0:
        return output
    width = input.shape[-1]
    rows = input.numel() // width
    dense, stride = as_rows(input, width, 1)
    shift = bias.contiguous()
    chosen = config
    if chosen is None:
        case = case_of("forward", input.dtype)
        chosen = table.choose(case, launch.capability(input.device))
    height, columns, across, groups = _grid(rows, width, chosen, input.device)
    wide, threshold, scale = random.law(p)
    prepared = launch.Prepared(
        forward_kernel,
        (across * groups, 1, 1),
        (dense, shift, output, seed, *words, threshold, scale, rows, width, stride, groups),
        {
            "KIND": kind,
            "DROP": p != 0,
            "HEIGHT": height,
            "COLUMNS": columns,
            "ALIGNED": columns >= 8 and (rows == 1 or width % 8 == 0),
            "WIDE": wide,
            "STAGES": max(chosen.stages, 1),
            "AHEAD": chosen.stages == 0,
        },
        chosen.num_warps,
    )
    prepared(dense, shift, *tensors[2:], words=words)
    if config is None and dense is input and shift is bias:
        _known.keep(key, prepared)
    return output


def backward(
    grad_output: Tensor,
    input: Tensor,
    bias: Tensor,
    p: float,
    stream: random.Stream,
    kind: Kind,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The backward kernels; ``config`` overrides the table, for tuning."""
    dx, dbias = new_like(input, input.shape), new_like(bias, bias.shape)
    width = input.shape[-1]
    if input.numel() == 0:
        return dx, dbias.zero_()
    rows = input.numel() // width
    input, x_stride = as_rows(input, width, 1)
    grad_output, grad_stride = as_rows(grad_output, width, 1)
    if config is None:
        case = case_of("backward", input.dtype)
        config = table.choose(case, launch.capability(input.device))
    height, columns, across, groups = _grid(rows, width, config, input.device)
    compute = compute_dtype(input.dtype)
    partials = new_like(input, (groups, width), compute)
    wide, threshold, scale = random.law(p)
    backward_kernel(
        (across * groups, 1, 1),
        (
            grad_output,
            input,
            bias.contiguous(),
            dx,
            partials,
            *random.arguments(stream),
            threshold,
            scale,
            rows,
            width,
            grad_stride,
            x_stride,
            groups,
        ),
        {
            "KIND": kind,
            "DROP": p != 0,
            "HEIGHT": height,
            "COLUMNS": columns,
            "ALIGNED": columns >= 8 and (rows == 1 or width % 8 == 0),
            "WIDE": wide,
            "STAGES": max(config.stages, 1),
            "AHEAD": config.stages == 0,
        },
        config.num_warps,
    )
    partials_kernel(
        (ceil_div(width, PARTIALS_COLUMNS), 1, 1),
        (partials, dbias, groups, width),
        {"HEIGHT": PARTIALS_ROWS, "COLUMNS": PARTIALS_COLUMNS},
        4,
    )
    return dx, dbias
