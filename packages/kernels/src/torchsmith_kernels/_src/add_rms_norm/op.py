"""The operator ``torchsmith::add_rms_norm`` and the public function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.row_norm.op import (
    check_types,
    forward,
    forward_fake,
    gradients,
    save,
)

NAME = "add_rms_norm"


def _forward(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    return forward(NAME, input, residual, normalized_shape, weight, None, eps)


def _forward_fake(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    return forward_fake(NAME, input, residual, normalized_shape, weight, None)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, normalized_shape, weight, eps = inputs
    save(ctx, output[1], normalized_shape, weight, None, eps)


def _grad(
    ctx: Any, grad_normed: Tensor | None, grad_sum: Tensor | None
) -> tuple[Tensor | None, ...]:
    need_input, need_residual, _, need_weight, _ = ctx.needs_input_grad
    needed = need_input or need_residual, need_weight, False
    dx, dw, _ = gradients(ctx, grad_normed, grad_sum, False, needed)
    return dx if need_input else None, dx if need_residual else None, None, dw, None


op = Op(
    "add_rms_norm(Tensor input, Tensor residual, SymInt[] normalized_shape, Tensor? weight=None,"
    " float? eps=None) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def add_rms_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> tuple[Tensor, Tensor]:
    """``rms_norm(input + residual)`` together with the sum, in one pass over memory.

    The sum is rounded to the inputs' dtype before it is normalized, so that the results equal
    those of the two steps; see ``rms_norm`` for the formula.

    Deterministic. Under autocast both results are float32. Memory: the results; backward keeps the
    sum and ``weight`` only. The gradients of ``input`` and ``residual`` are one tensor.

    Args:
        input: floating point tensor of shape ``[*, *normalized_shape]``.
        residual: what is added, of ``input``'s shape and dtype.
        normalized_shape: the last dimensions of ``input``, over which the mean is taken.
        weight: optional scale of shape ``normalized_shape``, of any floating dtype.
        eps: added to the mean; None stands for the epsilon of the type that is computed in.

    Returns:
        ``(normed, sum)``, contiguous tensors of ``input``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ShapeError: ``residual`` has another shape than ``input``, or ``input`` or ``weight`` do
            not end in ``normalized_shape``.
        DtypeError: a tensor is not floating point, or ``residual`` has another dtype than
            ``input``.
        DeviceError: ``residual`` or ``weight`` lies on another device than ``input``.
    """
    shape = check_types(NAME, input, residual, normalized_shape, weight, None, eps)
    result: tuple[Tensor, Tensor] = op(input, residual, shape, weight, eps)
    return result
