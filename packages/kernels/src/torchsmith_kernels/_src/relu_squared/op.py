"""The operators ``torchsmith::relu_squared`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.relu_squared import reference, run

NAME = "relu_squared"


def _forward(input: Tensor) -> Tensor:
    check.dtype(NAME, "input", input, check.FLOATING)
    if launch.usable(input.device, NAME):
        return run.forward(input)
    return reference.forward(input)


def _forward_fake(input: Tensor) -> Tensor:
    check.dtype(NAME, "input", input, check.FLOATING)
    return torch.empty_like(input)


def _backward(grad_output: Tensor, input: Tensor) -> Tensor:
    if launch.usable(input.device, NAME):
        return run.backward(grad_output, input)
    return torch.empty_like(input).copy_(reference.backward(grad_output, input))


def _backward_fake(grad_output: Tensor, input: Tensor) -> Tensor:
    return torch.empty_like(input)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _grad(ctx: Any, grad_output: Tensor) -> Tensor:
    (input,) = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        return reference.backward(grad_output, input)
    result: Tensor = backward_op(grad_output, input)
    return result


backward_op = Op(
    "relu_squared_backward(Tensor grad_output, Tensor input) -> Tensor",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    "relu_squared(Tensor input) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def relu_squared(input: Tensor) -> Tensor:
    """Squared ReLU, ``max(input, 0) ** 2`` (So et al., 2021, https://arxiv.org/abs/2109.08668).

    Low precision is computed in float32 and rounded once. Deterministic. Memory: the result;
    backward keeps ``input`` only.

    Args:
        input: floating point tensor of any shape.

    Returns:
        A tensor of ``input``'s shape and dtype.

    Raises:
        ArgumentTypeError: ``input`` is not a tensor.
        DtypeError: ``input`` is not floating point.
    """
    check.is_tensor(NAME, "input", input)
    result: Tensor = op(input)
    return result
