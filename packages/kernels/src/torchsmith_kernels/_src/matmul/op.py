"""The operators ``torchsmith::matmul`` and its activation's backward, and the public function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.matmul import reference, run
from torchsmith_kernels._src.matmul.reference import ACTIVATIONS
from torchsmith_kernels.errors import ArgumentTypeError, DtypeError, ShapeError

NAME = "matmul"


def _check(
    input: Tensor, other: Tensor, bias: Tensor | None, residual: Tensor | None
) -> tuple[Any, ...]:
    """Raises for arguments that do not fit; returns the result's shape."""
    check.dtype(NAME, "input", input, check.FLOATING)
    if other.dtype != input.dtype:
        raise DtypeError(
            op=NAME,
            argument="other",
            given=other.dtype,
            accepted=f"{str(input.dtype).removeprefix('torch.')}, which is `input`'s",
        )
    check.device(NAME, "other", other, input)
    shape = _shape(input, other)
    for argument, tensor, expected, is_ in (
        ("bias", bias, (other.size(-1),), "one element per column of `other`"),
        ("residual", residual, shape, "the shape of the result"),
    ):
        if tensor is not None:
            check.dtype(NAME, argument, tensor, check.FLOATING)
            check.device(NAME, argument, tensor, input)
            check.shape(NAME, argument, tensor, expected, is_)
    return shape


_broadcast: Callable[..., Any] = torch.broadcast_shapes  # untyped in torch


def _shape(input: Tensor, other: Tensor) -> tuple[Any, ...]:
    if input.dim() == 0:
        raise ShapeError(op=NAME, argument="input", given=(), accepted="it must have rows, [*, K]")
    if other.dim() < 2:
        raise ShapeError(
            op=NAME,
            argument="other",
            given=tuple(other.shape),
            accepted="it must have two dimensions, [K, N], or more",
        )
    if other.size(-2) != input.size(-1):
        raise ShapeError(
            op=NAME,
            argument="other",
            given=tuple(other.shape),
            accepted=f"it must have as many rows as `input` {tuple(input.shape)} has columns, "
            f"{input.size(-1)}",
        )
    if other.dim() == 2:
        return (*input.shape[:-1], other.size(-1))
    rows = () if input.dim() == 1 else (input.size(-2),)
    try:
        batch = _broadcast(input.shape[:-2], other.shape[:-2])
    except RuntimeError as error:
        raise ShapeError(
            op=NAME,
            argument="other",
            given=tuple(other.shape),
            accepted=f"its leading dimensions must broadcast with `input`'s {tuple(input.shape)}",
        ) from error
    return (*batch, *rows, other.size(-1))


def _rows(tensor: Tensor) -> Tensor:
    """``[*, N]`` as ``[M, N]``."""
    if tensor.dim() == 2:
        return tensor
    return tensor.unsqueeze(0) if tensor.dim() == 1 else tensor.flatten(0, -2)


def operands(input: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """The operands as ``[M, K] @ [K, N]``, or ``[B, M, K] @ [B, K, N]`` for a batch of others."""
    if other.dim() == 2:
        return _rows(input), other
    if input.dim() == 1:
        input = input.unsqueeze(0)
    batch = _broadcast(input.shape[:-2], other.shape[:-2])
    a = input.expand(*batch, *input.shape[-2:]).reshape(-1, *input.shape[-2:])
    b = other.expand(*batch, *other.shape[-2:]).reshape(-1, *other.shape[-2:])
    return a, b


def _forward(
    input: Tensor,
    other: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    scale: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    seen = run.key(input, other, bias, activation, residual, scale, save)
    plan = run.plans.get(seen)
    if plan is None:
        shape = _check(input, other, bias, residual)
        if (
            input.dtype is torch.float64
            or not launch.usable(input.device, NAME)
            or 0 in shape
            or input.size(-1) == 0
        ):
            result, pre = reference.forward(input, other, bias, activation, residual, scale)
            return result, pre if save else input.new_empty(0)
        given = (input, other, bias, residual)
        input, other = operands(input, other)
        if residual is not None:
            residual = residual.reshape(*input.shape[:-1], other.size(-1))
        if bias is not None and bias.stride(0) != 1:
            bias = bias.contiguous()
        plan = run.plan(input, other, activation, residual, scale, save, shape)
        if run.fused_by_library(input, other, bias, activation, residual, save):
            plan = replace(plan, fused_by_library=True)
        if not plan.config.library and _same_memory(given, (input, other, bias, residual)):
            run.plans.keep(seen, plan)
    out, saved = run.execute(plan, input, other, bias, residual, scale)
    return out, input.new_empty(0) if saved is None else saved


def _same_memory(given: Sequence[Tensor | None], used: Sequence[Tensor | None]) -> bool:
    """Whether nothing had to be copied."""
    return all(
        a is b or (a is not None and b is not None and a.data_ptr() == b.data_ptr())
        for a, b in zip(given, used, strict=True)
    )


def _forward_fake(
    input: Tensor,
    other: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    scale: float,
    save: bool,
) -> tuple[Tensor, Tensor]:
    shape = _check(input, other, bias, residual)
    return input.new_empty(shape), input.new_empty(shape if save else (0,))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, other, bias, activation, residual, scale, save = inputs
    result, pre = output
    ctx.mark_non_differentiable(pre)
    ctx.set_materialize_grads(False)
    if activation == "relu" and residual is None and not save:
        # Where the result is positive, so is what ReLU was applied to.
        pre = result
    ctx.save_for_backward(input, other, bias, pre)
    ctx.activation, ctx.scale = activation, scale
    ctx.residual_dtype = None if residual is None else residual.dtype


def _grad(ctx: Any, grad_output: Tensor | None, grad_pre: Tensor | None) -> tuple[Any, ...]:
    input, other, bias, pre = ctx.saved_tensors
    activation, scale = ctx.activation, ctx.scale
    if grad_output is None:
        return (None,) * 7
    wants_input, wants_other, wants_bias, _, wants_residual, _, _ = ctx.needs_input_grad
    grad = grad_output
    if activation is not None:
        if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
            exact = reference.before_activation(input, other, bias, scale)
            grad = reference.activation_gradient(grad.to(exact.dtype), exact, activation)
            grad = grad.to(input.dtype)
        else:
            if pre.shape != grad.shape:  # not saved: compute it anew
                pre = op(input, other, bias, None, None, scale, False)[0]
            grad = gradient_op(grad, pre, activation)
    grad_input = grad_other = grad_bias = None
    if wants_input or wants_other:
        grad_input, grad_other = _products(grad, input, other, scale, wants_input, wants_other)
    if wants_bias:
        grad_bias = _rows(grad).sum(0).to(bias.dtype)
    grad_residual = grad_output.to(ctx.residual_dtype) if wants_residual else None
    return grad_input, grad_other, grad_bias, None, grad_residual, None, None


def _products(
    grad: Tensor, input: Tensor, other: Tensor, scale: float, wants_input: bool, wants_other: bool
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients of the operands: products by cuBLAS."""
    grad_input = grad_other = None
    if other.dim() == 2:
        rows = _rows(grad)
        if wants_input:
            grad_input = _scaled(rows, other.t(), scale).view(input.shape)
        if wants_other:
            grad_other = _scaled(_rows(input).t(), rows, scale)
        return grad_input, grad_other
    if input.dim() == 1:
        grad, rows = grad.unsqueeze(-2), input.unsqueeze(0)
    else:
        rows = input
    if scale != 1:
        grad = grad * scale
    if wants_input:
        grad_input = torch.matmul(grad, other.mT).sum_to_size(rows.shape).view(input.shape)
    if wants_other:
        grad_other = torch.matmul(rows.mT, grad).sum_to_size(other.shape)
    return grad_input, grad_other


def _scaled(a: Tensor, b: Tensor, scale: float) -> Tensor:
    """``scale * (a @ b)``, rounded once."""
    if scale == 1:
        return torch.mm(a, b)
    return torch.addmm(a.new_empty(1), a, b, beta=0, alpha=scale)


def _gradient(grad_output: Tensor, pre: Tensor, activation: str) -> Tensor:
    if pre.dtype is torch.float64 or not launch.usable(pre.device, NAME):
        grad = grad_output.to(torch.promote_types(pre.dtype, torch.float32))
        found = reference.activation_gradient(grad, pre.to(grad.dtype), activation)
        return found.to(pre.dtype).contiguous()
    return run.activation_gradient(grad_output, pre, activation)


def _gradient_fake(grad_output: Tensor, pre: Tensor, activation: str) -> Tensor:
    return pre.new_empty(pre.shape)


def _gradient_setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    grad_output, pre, activation = inputs
    ctx.save_for_backward(grad_output, pre)
    ctx.activation = activation


gradient_op = Op(
    "matmul_activation_backward(Tensor grad_output, Tensor pre, str activation) -> Tensor",
    kernel=_gradient,
    fake=_gradient_fake,
)
op = Op(
    "matmul(Tensor input, Tensor other, Tensor? bias, str? activation, Tensor? residual, "
    "float scale, bool save) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="lower",
)


def matmul(
    input: Tensor,
    other: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    residual: Tensor | None = None,
    *,
    scale: float = 1.0,
) -> Tensor:
    """Matrix product and epilogue: ``activation(scale * (input @ other) + bias) + residual``.

    The epilogue works on the float32 sums in this order and rounds once, so a result in low
    precision is at least as exact as separate ops. float32 products are those of eager: exact
    unless ``torch.backends.cuda.matmul.allow_tf32``; they are cuBLAS's, with the epilogue in one
    kernel of its own.

    Without activation and residual this is ``torch.matmul`` or ``torch.addmm``: cuBLAS is as fast
    as any kernel there, and has a bias built in; in low precision it has bias with
    ``"gelu_tanh"`` as well, used where no gradient is needed. Otherwise a Triton kernel runs; on
    Hopper, where shapes and addresses suit it, a persistent one over tensor descriptors. A long K
    with few tiles is split, and the parts are summed in order.

    Deterministic. Memory: the result; split sums take a float32 result per part. Where a gradient
    is needed and there is an activation, forward also stores what the activation is applied to, in
    ``input``'s dtype (ReLU without a residual uses the result instead). Backward computes the
    activation's gradient in one kernel and the products with cuBLAS.

    Args:
        input: ``[*, M, K]``, ``[M, K]`` or ``[K]``, floating point; any strides.
        other: ``[K, N]``, or ``[*, K, N]`` with leading dimensions that broadcast as in
            ``torch.matmul``; any strides, so ``weight.t()`` needs no copy.
        bias: ``[N]``, any floating dtype.
        activation: None, ``"relu"``, ``"gelu"``, ``"gelu_tanh"``, ``"silu"`` or
            ``"relu_squared"`` (``max(x, 0) ** 2``).
        residual: a tensor of the result's shape, any floating dtype and strides; added last.
        scale: factor of the product.

    Returns:
        A contiguous tensor ``[*, M, N]`` of ``input``'s dtype.

    Raises:
        ArgumentTypeError: an argument is of the wrong type, or ``activation`` is not one of these.
        DtypeError: a tensor is not floating point, or ``other`` has another dtype than ``input``.
        ShapeError: shapes do not fit.
        DeviceError: tensors are on different devices.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "other", other)
    check.is_tensor(NAME, "bias", bias, optional=True)
    check.is_tensor(NAME, "residual", residual, optional=True)
    check.is_number(NAME, "scale", scale)
    if activation not in ACTIVATIONS:
        words = ", ".join(repr(word) for word in ACTIVATIONS)
        raise ArgumentTypeError(
            op=NAME, argument="activation", given=repr(activation), accepted=f"it must be {words}"
        )
    if activation is None and residual is None:
        found = _without_kernel(input, other, bias, scale)
        if found is not None:
            return found
    # ReLU needs no more than its result, see `_setup_context`.
    save = (
        activation is not None
        and (activation != "relu" or residual is not None)
        and torch.is_grad_enabled()
        and (
            input.requires_grad or other.requires_grad or (bias is not None and bias.requires_grad)
        )
    )
    result: Tensor = op(input, other, bias, activation, residual, float(scale), save)[0]
    return result


def _without_kernel(
    input: Tensor, other: Tensor, bias: Tensor | None, scale: float
) -> Tensor | None:
    """What one call of cuBLAS computes, or None."""
    kind = input.device.type
    if kind == "meta" or torch.is_autocast_enabled(kind):
        return None
    shape = _check(input, other, bias, None)
    if bias is None and scale == 1:
        return torch.matmul(input, other)
    if bias is None or other.dim() != 2 or bias.dtype != input.dtype:
        return None
    return torch.addmm(bias, _rows(input), other, alpha=scale).view(shape)
