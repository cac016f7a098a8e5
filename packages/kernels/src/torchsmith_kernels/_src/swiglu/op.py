"""The operators ``torchsmith::swiglu`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.gated import checks, reference, run
from torchsmith_kernels._src.swiglu.config import table

NAME = "swiglu"


def _forward(gate: Tensor, up: Tensor) -> Tensor:
    checks.tensors(NAME, gate, up)
    if launch.usable(gate.device, NAME):
        return run.forward(gate, up, "silu", table)
    return torch.empty_like(gate).copy_(reference.forward(gate, up, "silu"))


def _forward_fake(gate: Tensor, up: Tensor) -> Tensor:
    checks.tensors(NAME, gate, up)
    return torch.empty_like(gate)


def _backward(grad_output: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    if launch.usable(gate.device, NAME):
        return run.backward(grad_output, gate, up, "silu", table)
    dgate, dup = reference.backward(grad_output, gate, up, "silu")
    return torch.empty_like(gate).copy_(dgate), torch.empty_like(gate).copy_(dup)


def _backward_fake(grad_output: Tensor, gate: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(gate), torch.empty_like(gate)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    gate, up = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        return reference.backward(grad_output, gate, up, "silu")
    result: tuple[Tensor, Tensor] = backward_op(grad_output, gate, up)
    return result


backward_op = Op(
    "swiglu_backward(Tensor grad_output, Tensor gate, Tensor up) -> (Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    "swiglu(Tensor gate, Tensor up) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """SwiGLU, ``silu(gate) * up`` (Shazeer, 2020, https://arxiv.org/abs/2002.05202).

    Low precision is computed in float32 and rounded once. Deterministic. Memory: the result;
    backward keeps ``gate`` and ``up`` only and computes both gradients in one pass. Halves of one
    tensor, as of ``both.chunk(2, -1)``, are read where they are.

    Args:
        gate: floating point tensor of any shape.
        up: tensor of the same shape, dtype and device.

    Returns:
        A tensor of ``gate``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument is not a tensor.
        DtypeError: ``gate`` is not floating point, or ``up`` has another dtype.
        DeviceError: ``up`` is on another device.
        ShapeError: the shapes differ.
    """
    check.is_tensor(NAME, "gate", gate)
    check.is_tensor(NAME, "up", up)
    result: Tensor = op(gate, up)
    return result
