"""The operators ``torchsmith::cross_entropy`` and its backward: logits are ``[rows, classes]``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.cross_entropy import reference, run
from torchsmith_kernels._src.dispatch import Op

NAME = "cross_entropy"


def _with_kernels(input: Tensor) -> bool:
    return (
        input.dtype is not torch.float64
        and input.shape[1] > 0
        and launch.usable(input.device, NAME)
    )


def _forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    settings = (label_smoothing, z_loss, softcap)
    dtype = dtype or input.dtype
    if _with_kernels(input):
        return run.forward(input, target, weight, ignore_index, reduction, *settings, dtype)
    with torch.no_grad():
        loss = reference.forward(input, target, weight, ignore_index, reduction, *settings)
    return loss.to(dtype), _saved(input, reduction).zero_()


def _forward_fake(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    dtype: torch.dtype | None,
) -> tuple[Tensor, Tensor]:
    shape = (input.shape[0],) if reduction == "none" else ()
    loss = torch.empty(shape, dtype=dtype or input.dtype, device=input.device)
    return loss, _saved(input, reduction)


def _saved(input: Tensor, reduction: str) -> Tensor:
    size = run.saved_size(input.shape[0], reduction)
    return torch.empty(size, dtype=torch.float32, device=input.device)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    saved: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    settings = (ignore_index, reduction, label_smoothing, z_loss, softcap)
    if _with_kernels(input):
        return run.backward(grad_output, input, target, weight, saved, *settings)
    return reference.backward(grad_output, input, target, weight, *settings).contiguous()


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    saved: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    return torch.empty_like(input, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, target, weight, *settings, _ = inputs
    _, saved = output
    ctx.mark_non_differentiable(saved)
    ctx.set_materialize_grads(False)
    ctx.settings = tuple(settings)
    ctx.save_for_backward(input, target, weight, saved)


def _grad(ctx: Any, grad_output: Tensor | None, _: object) -> tuple[Tensor | None, ...]:
    nothing = (None,) * 8
    if grad_output is None:
        return (None, *nothing)
    input, target, weight, saved = ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        gradient = reference.backward(grad_output, input, target, weight, *ctx.settings)
    else:
        gradient = backward_op(grad_output, input, target, weight, saved, *ctx.settings)
    return (gradient, *nothing)


_SETTINGS = "int ignore_index, str reduction, float label_smoothing, float z_loss, float? softcap"

backward_op = Op(
    "cross_entropy_backward(Tensor grad_output, Tensor input, Tensor target, Tensor? weight, "
    f"Tensor saved, {_SETTINGS}) -> Tensor",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    f"cross_entropy(Tensor input, Tensor target, Tensor? weight, {_SETTINGS}, "
    "ScalarType? dtype) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)
