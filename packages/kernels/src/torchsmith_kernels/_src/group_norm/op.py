"""The operators ``torchsmith::group_norm`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.group_norm import reference, run
from torchsmith_kernels._src.sizes import compute_dtype
from torchsmith_kernels.errors import ArgumentTypeError, ArgumentValueError, ShapeError

NAME = "group_norm"


def _check(input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None) -> None:
    check.dtype(NAME, "input", input, check.FLOATING)
    if input.dim() < 2:
        raise ShapeError(
            op=NAME,
            argument="input",
            given=tuple(input.shape),
            accepted="it must have at least 2 dimensions, batch and channels",
        )
    channels = input.shape[1]
    if num_groups <= 0 or channels % num_groups:
        raise ArgumentValueError(
            op=NAME,
            argument="num_groups",
            given=num_groups,
            accepted=f"it must divide the number of channels, {channels}",
        )
    for name, vector in (("weight", weight), ("bias", bias)):
        if vector is not None and not (
            vector.shape == (channels,)
            and vector.dtype in check.FLOATING
            and vector.device == input.device
        ):
            check.dtype(NAME, name, vector, check.FLOATING)
            check.device(NAME, name, vector, input)
            check.shape(NAME, name, vector, (channels,), "one value per channel")


def _outputs(input: Tensor, num_groups: int) -> tuple[Tensor, Tensor, Tensor]:
    y = torch.empty_like(input, memory_format=run.memory_format(input))
    shape = (input.shape[0], num_groups)
    mean = torch.empty(shape, dtype=compute_dtype(input.dtype), device=input.device)
    return y, mean, torch.empty_like(mean)


def _kernels_run(input: Tensor) -> bool:
    return input.dtype is not torch.float64 and launch.usable(input.device, NAME)


def _forward(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(input, num_groups, weight, bias)
    if input.numel() == 0:
        return _outputs(input, num_groups)
    if _kernels_run(input):
        return run.forward(input, num_groups, weight, bias, eps)
    y, mean, rstd = reference.forward(input, num_groups, weight, bias, eps)
    return y.contiguous(memory_format=run.memory_format(input)), mean, rstd


def _forward_fake(
    input: Tensor, num_groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    _check(input, num_groups, weight, bias)
    return _outputs(input, num_groups)


def _backward_outputs(
    input: Tensor, weight: Tensor | None, affine: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(input, memory_format=run.memory_format(input))
    dtype = compute_dtype(input.dtype) if weight is None else weight.dtype
    shape = (input.shape[1],) if affine else (0,)
    dw = torch.empty(shape, dtype=dtype, device=input.device)
    return dx, dw, torch.empty_like(dw)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    eps: float,
    affine: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if input.numel() and _kernels_run(input):
        return run.backward(grad_output, input, mean, rstd, weight, affine)
    dx, dw, db = _backward_outputs(input, weight, affine)
    if input.numel() == 0:
        return dx, dw.zero_(), db.zero_()
    groups = mean.shape[1]
    found = reference.backward(grad_output, input, weight, groups, eps)
    dx.copy_(found[0])
    if affine:
        dw.copy_(found[1])
        db.copy_(found[2])
    return dx, dw, db


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    eps: float,
    affine: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward_outputs(input, weight, affine)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, _, weight, bias, ctx.eps = inputs
    _, mean, rstd = output
    ctx.bias_dtype = None if bias is None else bias.dtype
    ctx.save_for_backward(input, mean, rstd, weight)
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)


def _grad(ctx: Any, grad_output: Tensor | None, *unused: Any) -> tuple[Tensor | None, ...]:
    if grad_output is None:
        return None, None, None, None, None
    input, mean, rstd, weight = ctx.saved_tensors
    need_input, _, need_weight, need_bias, _ = ctx.needs_input_grad
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        dx, dw, db = reference.backward(grad_output, input, weight, mean.shape[1], ctx.eps)
    else:
        affine = need_weight or need_bias
        dx, dw, db = backward_op(grad_output, input, mean, rstd, weight, ctx.eps, affine)
    return (
        dx if need_input else None,
        None,
        dw.to(weight.dtype) if need_weight else None,
        db.to(ctx.bias_dtype) if need_bias else None,
        None,
    )


backward_op = Op(
    "group_norm_backward(Tensor grad_output, Tensor input, Tensor mean, Tensor rstd, "
    "Tensor? weight, float eps, bool affine) -> (Tensor, Tensor, Tensor)",
    kernel=_backward,
    fake=_backward_fake,
)
op = Op(
    "group_norm(Tensor input, int num_groups, Tensor? weight, Tensor? bias, float eps) "
    "-> (Tensor, Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Group normalization (Wu and He, 2018, https://arxiv.org/abs/1803.08494).

    ``(input - m) * rsqrt(v + eps) * weight + bias``, where ``m`` and ``v`` are mean and variance
    over ``channels / num_groups`` neighbouring channels and all further dimensions of a sample.
    Computed in float32 for low precision, the variance from differences (in registers, or by
    Welford's method), and rounded once. Deterministic, gradients of ``weight`` and ``bias``
    included. Under autocast it runs in float32.

    Memory: the result; backward keeps ``input``, ``weight``, and mean and deviation of each group.

    Args:
        input: floating point tensor ``[batch, channels, *]``.
        num_groups: groups of channels; divides the number of channels.
        weight: optional scale per channel.
        bias: optional offset per channel.
        eps: added to the variance.

    Returns:
        A tensor of ``input``'s shape and dtype: in the memory format channels last (of 4 or 5
        dimensions) where ``input`` is, else contiguous.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentValueError: ``num_groups`` does not divide the channels.
        ShapeError: ``input`` has fewer than 2 dimensions, or ``weight`` or ``bias`` do not fit it.
        DtypeError: a tensor is not floating point.
        DeviceError: ``weight`` or ``bias`` is on another device than ``input``.
    """
    if not (
        isinstance(input, Tensor)
        and (weight is None or isinstance(weight, Tensor))
        and (bias is None or isinstance(bias, Tensor))
        and isinstance(eps, float)
    ):
        check.is_tensor(NAME, "input", input)
        check.is_tensor(NAME, "weight", weight, optional=True)
        check.is_tensor(NAME, "bias", bias, optional=True)
        check.is_number(NAME, "eps", eps)
    if not isinstance(num_groups, int):
        raise ArgumentTypeError(
            op=NAME,
            argument="num_groups",
            given=f"of type {type(num_groups).__name__}",
            accepted="it must be an int",
        )
    result: Tensor = op(input, num_groups, weight, bias, eps)[0]
    return result
