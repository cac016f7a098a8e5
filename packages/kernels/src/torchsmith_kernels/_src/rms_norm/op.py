"""The operators ``torchsmith::rms_norm`` and ``torchsmith::rms_norm_backward``.

On CUDA, and on the CPU under Triton's interpreter, the Triton kernels run; elsewhere the reference
does, with the same autograd formula. The result is always contiguous, as eager's is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from torchsmith_kernels._src import dispatch, launch, private
from torchsmith_kernels._src.rms_norm import reference
from torchsmith_kernels._src.rms_norm.run import backward_triton, forward_triton, new_like
from torchsmith_kernels.errors import ArgumentTypeError, DeviceError, DtypeError, ShapeError

NAME = "rms_norm"
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_ACCEPTED = "float16, bfloat16, float32 and float64"


def check(input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None) -> None:
    """Raises unless the arguments fit together; cheap enough for every call."""
    count = len(normalized_shape)
    if count == 0:
        raise ArgumentTypeError(
            op=NAME,
            argument="normalized_shape",
            given="empty",
            accepted="it must name at least the last dimension of `input`",
        )
    shape = input.shape
    if len(shape) < count or any(shape[i - count] != normalized_shape[i] for i in range(count)):
        raise ShapeError(
            op=NAME,
            argument="input",
            given=tuple(shape),
            accepted=f"its last dimensions must be `normalized_shape` {tuple(normalized_shape)}",
        )
    if input.dtype not in DTYPES:
        raise DtypeError(op=NAME, argument="input", given=input.dtype, accepted=_ACCEPTED)
    if weight is None:
        return
    if weight.dim() != count or any(weight.shape[i] != normalized_shape[i] for i in range(count)):
        raise ShapeError(
            op=NAME,
            argument="weight",
            given=tuple(weight.shape),
            accepted=f"it must be `normalized_shape` {tuple(normalized_shape)}",
        )
    if weight.dtype not in DTYPES:
        raise DtypeError(op=NAME, argument="weight", given=weight.dtype, accepted=_ACCEPTED)
    if weight.device != input.device:
        raise DeviceError(op=NAME, argument="weight", given=weight.device, accepted=input.device)


def _eps(input: Tensor, eps: float | None) -> float:
    return reference.default_eps(input.dtype) if eps is None else eps


def _forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    check(input, normalized_shape, weight)
    run = forward_triton if launch.usable(input.device, NAME) else reference.forward
    return run(input, normalized_shape, weight, _eps(input, eps))


def _forward_fake(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    check(input, normalized_shape, weight)
    return torch.empty(input.shape, dtype=input.dtype, device=input.device)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    value = _eps(input, eps)
    if launch.usable(input.device, NAME):
        return backward_triton(
            grad_output, input, normalized_shape, weight, value, need_input, need_weight
        )
    grad_input, grad_weight = reference.backward(
        grad_output, input, normalized_shape, weight, value
    )
    return (
        grad_input if need_input else input.new_empty(0),
        grad_weight if need_weight and grad_weight is not None else _absent(input, weight),
    )


def _backward_fake(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    grad_input = new_like(input, input.shape if need_input else (0,))
    if weight is None or not need_weight:
        return grad_input, _absent(input, weight)
    return grad_input, new_like(weight, weight.shape)


def _absent(input: Tensor, weight: Tensor | None) -> Tensor:
    return new_like(input if weight is None else weight, (0,))


op = dispatch.define(
    "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None)"
    " -> Tensor",
    cpu=_forward,
    cuda=_forward,
    fake=_forward_fake,
)
backward_op = dispatch.define(
    "rms_norm_backward(Tensor grad_output, Tensor input, SymInt[] normalized_shape,"
    " Tensor? weight, float? eps, bool need_input, bool need_weight) -> (Tensor, Tensor)",
    cpu=_backward,
    cuda=_backward,
    fake=_backward_fake,
)


class _RMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,
        normalized_shape: Sequence[int],
        weight: Tensor | None,
        eps: float | None,
    ) -> Tensor:
        ctx.save_for_backward(input, weight)
        ctx.normalized_shape, ctx.eps = normalized_shape, eps
        with private.below_autograd():
            result: Tensor = op(input, normalized_shape, weight, eps)
            return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        input, weight = ctx.saved_tensors
        need_input, _, need_weight, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            # create_graph=True: the same formula in differentiable operations.
            grad_input, grad_weight = reference.backward(
                grads[0], input, ctx.normalized_shape, weight, _eps(input, ctx.eps)
            )
        else:
            grad_input, grad_weight = backward_op(
                grads[0], input, ctx.normalized_shape, weight, ctx.eps, need_input, need_weight
            )
        return (
            grad_input if need_input else None,
            None,
            grad_weight if need_weight else None,
            None,
        )


class _RMSNormUnderTransforms(_RMSNorm):
    """The same with the separate ``setup_context`` that ``torch.func`` needs; it costs 13 us."""

    @staticmethod
    def forward(*args: Any) -> Tensor:
        with private.below_autograd():
            result: Tensor = op(*args)
            return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        input, normalized_shape, weight, eps = inputs
        ctx.save_for_backward(input, weight)
        ctx.normalized_shape, ctx.eps = normalized_shape, eps


# Both are untyped in torch.
_apply: Any = cast(Any, _RMSNorm).apply
_apply_under_transforms: Any = cast(Any, _RMSNormUnderTransforms).apply


def _autograd(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    if torch.is_grad_enabled() and (
        input.requires_grad or (weight is not None and weight.requires_grad)
    ):
        result: Tensor = _apply(input, normalized_shape, weight, eps)
        return result
    with private.below_autograd():
        result = op(input, normalized_shape, weight, eps)
        return result


dispatch.autograd(NAME, _autograd)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Root mean square layer normalization over the last dimensions.

    ``input * rsqrt(mean(input ** 2) + eps) * weight``, computed in float32 for low precision, as
    ``torch.nn.functional.rms_norm`` (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467).

    Args:
        input: floating point tensor of shape ``[*, *normalized_shape]``.
        normalized_shape: the last dimensions of ``input``, over which the mean is taken.
        weight: optional scale of shape ``normalized_shape``, of any floating dtype.
        eps: added to the mean; None stands for the epsilon of the type that is computed in.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ShapeError: ``input`` or ``weight`` do not end in ``normalized_shape``.
        DtypeError: a tensor is not floating point.
        DeviceError: ``weight`` lies on another device than ``input``.
    """
    if type(input) is not Tensor and not isinstance(input, Tensor):
        raise ArgumentTypeError(
            op=NAME, argument="input", given=type(input).__name__, accepted="it must be a tensor"
        )
    if not isinstance(normalized_shape, list | tuple):
        raise ArgumentTypeError(
            op=NAME,
            argument="normalized_shape",
            given=type(normalized_shape).__name__,
            accepted="it must be a tuple or list of ints",
        )
    if weight is not None and not isinstance(weight, Tensor):
        raise ArgumentTypeError(
            op=NAME, argument="weight", given=type(weight).__name__,
            accepted="it must be a tensor or None",
        )  # fmt: skip
    if eps is not None and not isinstance(eps, float | int):
        raise ArgumentTypeError(
            op=NAME,
            argument="eps",
            given=type(eps).__name__,
            accepted="it must be a number or None",
        )
    if private.transforms_active():
        # torch.func sees an autograd.Function only from outside of the dispatcher.
        result: Tensor = _apply_under_transforms(input, normalized_shape, weight, eps)
    else:
        result = op(input, normalized_shape, weight, eps)
    return result
