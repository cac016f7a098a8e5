"""Launching the squared ReLU kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.pointwise.config import Config
from torchsmith_kernels._src.pointwise.run import run
from torchsmith_kernels._src.relu_squared.config import table

_KERNELS = "torchsmith_kernels._src.relu_squared.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")


def _nothing(*sizes: int) -> tuple[tuple[launch.Argument, ...], dict[str, Any]]:
    return (), {}


def forward(input: Tensor, config: Config | None = None) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(input)
    run(forward_kernel, "forward", table, (input,), (output,), _nothing, config=config)
    return output


def backward(grad_output: Tensor, input: Tensor, config: Config | None = None) -> Tensor:
    """The backward kernel; ``config`` overrides the table, for tuning."""
    grad = torch.empty_like(input)
    inputs = grad_output, input
    run(backward_kernel, "backward", table, inputs, (grad,), _nothing, config=config)
    return grad
