"""The operator ``torchsmith::add_layer_norm`` and the public function."""

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

NAME = "add_layer_norm"


def _forward(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    return forward(NAME, input, residual, normalized_shape, weight, bias, eps)


def _forward_fake(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor]:
    return forward_fake(NAME, input, residual, normalized_shape, weight, bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, _, normalized_shape, weight, bias, eps = inputs
    save(ctx, output[1], normalized_shape, weight, bias, eps)


def _grad(
    ctx: Any, grad_normed: Tensor | None, grad_sum: Tensor | None
) -> tuple[Tensor | None, ...]:
    need_input, need_residual, _, need_weight, need_bias, _ = ctx.needs_input_grad
    needed = need_input or need_residual, need_weight, need_bias
    dx, dw, db = gradients(ctx, grad_normed, grad_sum, True, needed)
    return dx if need_input else None, dx if need_residual else None, None, dw, db, None


op = Op(
    "add_layer_norm(Tensor input, Tensor residual, SymInt[] normalized_shape,"
    " Tensor? weight=None, Tensor? bias=None, float eps=1e-05) -> (Tensor, Tensor)",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def add_layer_norm(
    input: Tensor,
    residual: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> tuple[Tensor, Tensor]:
    """``layer_norm(input + residual)`` together with the sum, in one pass over memory.

    The sum is rounded to the inputs' dtype before it is normalized, so that the results equal
    those of the two steps; see ``layer_norm`` for the formula.

    Deterministic. Under autocast both results are float32. Memory: the results; backward keeps the
    sum and ``weight`` only. The gradients of ``input`` and ``residual`` are one tensor.

    Args:
        input: floating point tensor of shape ``[*, *normalized_shape]``.
        residual: what is added, of ``input``'s shape and dtype.
        normalized_shape: the last dimensions of ``input``, over which the mean is taken.
        weight: optional scale of shape ``normalized_shape``, of any floating dtype.
        bias: optional offset of shape ``normalized_shape``, of any floating dtype.
        eps: added to the variance.

    Returns:
        ``(normed, sum)``, contiguous tensors of ``input``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ShapeError: ``residual`` has another shape than ``input``, or ``input``, ``weight`` or
            ``bias`` do not end in ``normalized_shape``.
        DtypeError: a tensor is not floating point, or ``residual`` has another dtype than
            ``input``.
        DeviceError: a tensor lies on another device than ``input``.
    """
    shape = check_types(NAME, input, residual, normalized_shape, weight, bias, eps)
    result: tuple[Tensor, Tensor] = op(input, residual, shape, weight, bias, eps)
    return result
