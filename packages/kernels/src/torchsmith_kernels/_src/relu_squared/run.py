"""Launching the squared ReLU kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.relu_squared.config import Case, Config, table
from torchsmith_kernels._src.sizes import ceil_div, compute_dtype

_KERNELS = "torchsmith_kernels._src.relu_squared.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")


def forward(input: Tensor, config: Config | None = None) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(input)
    if input.stride() != output.stride():
        input = torch.empty_like(input).copy_(input)
    if config is None:
        config = table.choose(Case("forward", input.dtype), launch.capability(input.device))
    count = input.numel()
    forward_kernel(
        (ceil_div(count, config.block), 1, 1),
        (input, output, count),
        {
            "COMPUTE": launch.triton_dtype(compute_dtype(input.dtype)),
            "BLOCK": config.block,
        },
        config.num_warps,
    )
    return output


def backward(grad_output: Tensor, input: Tensor, config: Config | None = None) -> Tensor:
    """The backward kernel; ``config`` overrides the table, for tuning."""
    grad_input = torch.empty_like(input)
    if input.stride() != grad_input.stride():
        input = torch.empty_like(input).copy_(input)
    if grad_output.stride() != grad_input.stride():
        grad_output = torch.empty_like(input).copy_(grad_output)
    if config is None:
        config = table.choose(Case("backward", input.dtype), launch.capability(input.device))
    count = input.numel()
    backward_kernel(
        (ceil_div(count, config.block), 1, 1),
        (grad_output, input, grad_input, count),
        {
            "COMPUTE": launch.triton_dtype(compute_dtype(input.dtype)),
            "BLOCK": config.block,
        },
        config.num_warps,
    )
    return grad_input
