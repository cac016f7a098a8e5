"""Launching the kernels of gated activations."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.pointwise.config import Case, Config, case_of, tile
from torchsmith_kernels._src.pointwise.layout import plan
from torchsmith_kernels._src.tables import Table

_KERNELS = "torchsmith_kernels._src.gated.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")

Configs = Table[Case, Config]


def forward(
    gate: Tensor, up: Tensor, kind: Kind, table: Configs, config: Config | None = None
) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(gate)
    layout = plan(output, gate, up)
    rows, width = layout.rows, layout.width
    if config is None:
        case = case_of("forward", gate.dtype, rows == 1)
        config = table.choose(case, launch.capability(gate.device))
    height, columns, programs = tile(rows, width, config.block)
    forward_kernel(
        (programs, 1, 1),
        (*layout.inputs, output, rows, width, *layout.strides),
        {
            "KIND": kind,
            "FLAT": rows == 1,
            "HEIGHT": height,
            "COLUMNS": columns,
        },
        config.num_warps,
    )
    return output


def backward(
    grad_output: Tensor,
    gate: Tensor,
    up: Tensor,
    kind: Kind,
    table: Configs,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The backward kernel; ``config`` overrides the table, for tuning."""
    dgate, dup = torch.empty_like(gate), torch.empty_like(gate)
    layout = plan(dgate, grad_output, gate, up)
    rows, width = layout.rows, layout.width
    if config is None:
        case = case_of("backward", gate.dtype, rows == 1)
        config = table.choose(case, launch.capability(gate.device))
    height, columns, programs = tile(rows, width, config.block)
    backward_kernel(
        (programs, 1, 1),
        (*layout.inputs, dgate, dup, rows, width, *layout.strides),
        {
            "KIND": kind,
            "FLAT": rows == 1,
            "HEIGHT": height,
            "COLUMNS": columns,
        },
        config.num_warps,
    )
    return dgate, dup
