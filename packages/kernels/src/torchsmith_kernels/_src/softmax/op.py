"""The operators of softmax and log-softmax with their backwards, and the public functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.softmax import reference, run
from torchsmith_kernels.errors import (
    ArgumentTypeError,
    DimensionError,
    DtypeError,
    ShapeError,
)

_MASKS = (torch.bool, *check.FLOATING)


def _dim(name: str, input: Tensor, dim: int) -> int:
    """``dim`` counted from the front."""
    rank = max(input.dim(), 1)
    if not -rank <= dim < rank:
        raise DimensionError(
            op=name,
            argument="dim",
            given=dim,
            accepted=f"for this input it must be from {-rank} to {rank - 1}",
        )
    return dim % rank


def _check(
    name: str, input: Tensor, dim: int, dtype: torch.dtype | None, mask: Tensor | None
) -> int:
    if dtype is None:
        check.dtype(name, "input", input, check.FLOATING)
    elif dtype not in check.FLOATING:
        raise DtypeError(
            op=name, argument="dtype", given=dtype, accepted="float16, bfloat16, float32, float64"
        )
    if mask is not None:
        check.dtype(name, "mask", mask, _MASKS)
        check.device(name, "mask", mask, input)
        trailing = input.shape[max(0, input.dim() - mask.dim()) :]
        if mask.dim() > input.dim() or any(
            a not in (1, b) for a, b in zip(mask.shape, trailing, strict=True)
        ):
            raise ShapeError(
                op=name,
                argument="mask",
                given=tuple(mask.shape),
                accepted=f"it must be broadcastable to the shape of `input`, {tuple(input.shape)}",
            )
    return _dim(name, input, dim)


_KERNEL_TYPES = (torch.bfloat16, torch.float16, torch.float32)


def _kernels_take(tensor: Tensor, dtype: torch.dtype, mask: Tensor | None, name: str) -> bool:
    """Whether the kernels compute this; float64 and integers are left to plain PyTorch."""
    return (
        launch.usable(tensor.device, name)
        and dtype in _KERNEL_TYPES
        and tensor.dtype in _KERNEL_TYPES
        and (mask is None or mask.dtype is not torch.float64)
    )


def _float32(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Under autocast the result is float32 unless another type is asked for, as of eager."""
    input, dim, dtype, mask, scale = args
    if dtype is None and input.dtype in (torch.float16, torch.bfloat16):
        dtype = torch.float32
    return input, dim, dtype, mask, scale


def _make(log: bool) -> tuple[Op, Op]:
    """The operator and its backward, for softmax or its logarithm."""
    name = "log_softmax" if log else "softmax"

    def forward(
        input: Tensor, dim: int, dtype: torch.dtype | None, mask: Tensor | None, scale: float
    ) -> Tensor:
        dim = _check(name, input, dim, dtype, mask)
        result = dtype or input.dtype
        if input.numel() == 0:
            return torch.empty(input.shape, dtype=result, device=input.device)
        if _kernels_take(input, result, mask, name):
            return run.forward(input, dim, result, mask, scale, log)
        output = reference.forward(input, dim, dtype, mask, scale, log)
        return output.contiguous()

    def forward_fake(
        input: Tensor, dim: int, dtype: torch.dtype | None, mask: Tensor | None, scale: float
    ) -> Tensor:
        _check(name, input, dim, dtype, mask)
        return torch.empty(input.shape, dtype=dtype or input.dtype, device=input.device)

    def backward(
        grad_output: Tensor,
        output: Tensor,
        dim: int,
        dtype: torch.dtype,
        mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        dim = _dim(backward_op.name, output, dim)
        if output.numel() == 0:
            return torch.empty(output.shape, dtype=dtype, device=output.device)
        if _kernels_take(output, dtype, mask, name):
            return run.backward(grad_output, output, dim, dtype, mask, scale, log)
        grad_input = reference.backward(grad_output, output, dim, dtype, mask, scale, log)
        return grad_input.contiguous()

    def backward_fake(
        grad_output: Tensor,
        output: Tensor,
        dim: int,
        dtype: torch.dtype,
        mask: Tensor | None,
        scale: float,
    ) -> Tensor:
        return torch.empty(output.shape, dtype=dtype, device=output.device)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        input, dim, _, mask, scale = inputs
        boolean = mask is not None and mask.dtype is torch.bool
        ctx.save_for_backward(output, mask if boolean else None)
        ctx.dim, ctx.dtype, ctx.scale = dim, input.dtype, scale
        ctx.mask = None if mask is None else (mask.shape, mask.dtype)

    def grad(ctx: Any, grad_output: Tensor) -> tuple[Any, ...]:
        output, mask = ctx.saved_tensors
        grad_input: Tensor | None = None
        grad_mask: Tensor | None = None
        if ctx.needs_input_grad[0]:
            args = (grad_output, output, ctx.dim, ctx.dtype, mask, ctx.scale)
            if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
                grad_input = reference.backward(*args, log)
            else:
                grad_input = backward_op(*args)
        if ctx.needs_input_grad[3]:
            # Summed over the dimensions along which the mask was broadcast.
            shape, dtype = ctx.mask
            compute = torch.promote_types(output.dtype, torch.float32)
            added = reference.backward(grad_output, output, ctx.dim, compute, None, 1.0, log)
            grad_mask = added.sum_to_size(shape).to(dtype)
        return grad_input, None, None, grad_mask, None

    backward_op = Op(
        f"{name}_backward(Tensor grad_output, Tensor output, int dim, ScalarType dtype, "
        "Tensor? mask=None, float scale=1.0) -> Tensor",
        kernel=backward,
        fake=backward_fake,
    )
    op = Op(
        f"{name}(Tensor input, int dim, ScalarType? dtype=None, Tensor? mask=None, "
        "float scale=1.0) -> Tensor",
        kernel=forward,
        fake=forward_fake,
        setup_context=setup_context,
        backward=grad,
        autocast=_float32,
    )
    return op, backward_op


softmax_op, softmax_backward_op = _make(log=False)
log_softmax_op, log_softmax_backward_op = _make(log=True)


def _call(
    name: str,
    op: Callable[..., Any],
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    check.is_tensor(name, "input", input)
    if mask is not None:
        check.is_tensor(name, "mask", mask, optional=True)
    if type(scale) is not float:
        check.is_number(name, "scale", scale)
        scale = float(scale)
    if type(dim) is not int and not isinstance(dim, torch.SymInt):
        raise ArgumentTypeError(
            op=name,
            argument="dim",
            given=f"of type {type(dim).__name__}",
            accepted="it must be an int",
        )
    if dtype is not None and not isinstance(dtype, torch.dtype):
        raise ArgumentTypeError(
            op=name,
            argument="dtype",
            given=f"of type {type(dtype).__name__}",
            accepted="it must be a torch.dtype or None",
        )
    result: Tensor = op(input, dim, dtype, mask, scale)
    return result


def softmax(
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Softmax along ``dim``, optionally of scaled and masked scores.

    ``y = exp(z - max(z)) / sum(exp(z - max(z)))`` with ``z = input * scale + mask``. Computed in
    float32 and rounded once (float64 in float64, by plain PyTorch). Lines that fit into registers
    are read once; longer ones twice, with the running maximum and sum of Milakov and Gimelshein
    (2018, https://arxiv.org/abs/1805.02867). When there are few, several programs share each
    line. Deterministic. Memory: the result, and for few long lines two numbers per 4096 elements;
    backward keeps the result and a boolean mask.

    Args:
        input: floating point tensor of any shape; of any type if ``dtype`` is given.
        dim: the dimension that sums to one.
        dtype: what ``input`` is cast to before anything else, and the type of the result; the
            cast happens inside of the kernel.
        mask: broadcastable to ``input``. Boolean: False takes an element out, as in
            ``scaled_dot_product_attention``. Floating point: added after scaling, in float32. A
            line without any element gives NaN, and zero as the gradient of masked elements.
        scale: factor of ``input``.

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        DtypeError: ``input``, ``mask`` or ``dtype`` is of an unsupported type.
        DeviceError: ``mask`` is on another device.
        ShapeError: ``mask`` cannot be broadcast to ``input``.
        DimensionError: ``input`` has no dimension ``dim``.
    """
    return _call("softmax", softmax_op, input, dim, dtype, mask, scale)


def log_softmax(
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    *,
    mask: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """Logarithm of the softmax along ``dim``: ``z - max(z) - log(sum(exp(z - max(z))))``.

    Everything else is as of ``softmax``; masked elements give minus infinity.

    Args:
        input: see ``softmax``.
        dim: see ``softmax``.
        dtype: see ``softmax``.
        mask: see ``softmax``.
        scale: see ``softmax``.

    Returns:
        A contiguous tensor of ``input``'s shape.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        DtypeError: ``input``, ``mask`` or ``dtype`` is of an unsupported type.
        DeviceError: ``mask`` is on another device.
        ShapeError: ``mask`` cannot be broadcast to ``input``.
        DimensionError: ``input`` has no dimension ``dim``.
    """
    return _call("log_softmax", log_softmax_op, input, dim, dtype, mask, scale)
