"""Launching the kernels of gated activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.pointwise.config import Config
from torchsmith_kernels._src.pointwise.run import Configs, run

_KERNELS = "torchsmith_kernels._src.gated.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")


def forward(
    gate: Tensor, up: Tensor, kind: Kind, table: Configs, config: Config | None = None
) -> Tensor:
    """The forward kernel; ``config`` overrides the table, for tuning."""

    def extra(*sizes: int) -> tuple[tuple[launch.Argument, ...], dict[str, Any]]:
        return (), {"KIND": kind}

    output = torch.empty_like(gate)
    run(forward_kernel, "forward", table, (gate, up), (output,), extra, (kind,), config=config)
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

    def extra(*sizes: int) -> tuple[tuple[launch.Argument, ...], dict[str, Any]]:
        return (), {"KIND": kind}

    grads = torch.empty_like(gate), torch.empty_like(gate)
    inputs = grad_output, gate, up
    run(backward_kernel, "backward", table, inputs, grads, extra, (kind,), config=config)
    return grads
