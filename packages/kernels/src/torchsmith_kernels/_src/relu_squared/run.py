"""Launching the squared ReLU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.pointwise.config import Config, case_of, tile
from torchsmith_kernels._src.pointwise.layout import plan
from torchsmith_kernels._src.relu_squared.config import table

_KERNELS = "torchsmith_kernels._src.relu_squared.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")


def _launch(
    kernel: launch.Kernel,
    name: str,
    result: Tensor,
    inputs: tuple[Tensor, ...],
    config: Config | None,
) -> Tensor:
    layout = plan(result, *inputs)
    rows, width = layout.rows, layout.width
    if config is None:
        case = case_of(name, result.dtype, rows == 1)
        config = table.choose(case, launch.capability(result.device))
    height, columns, programs = tile(rows, width, config.block)
    kernel(
        (programs, 1, 1),
        (*layout.inputs, result, rows, width, *layout.strides),
        {
            "FLAT": rows == 1,
            "HEIGHT": height,
            "COLUMNS": columns,
        },
        config.num_warps,
    )
    return result


def forward(input: Tensor, config: Config | None = None) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    return _launch(forward_kernel, "forward", torch.empty_like(input), (input,), config)


def backward(grad_output: Tensor, input: Tensor, config: Config | None = None) -> Tensor:
    """The backward kernel; ``config`` overrides the table, for tuning."""
    inputs = grad_output, input
    return _launch(backward_kernel, "backward", torch.empty_like(input), inputs, config)
