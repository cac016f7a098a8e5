"""The operator ``torchsmith::rms_norm`` and the public function."""

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

NAME = "rms_norm"


def _forward(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Tensor:
    return forward(NAME, input, None, normalized_shape, weight, None, eps)[0]


def _forward_fake(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float | None
) -> Tensor:
    return forward_fake(NAME, input, None, normalized_shape, weight, None)[0]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, normalized_shape, weight, eps = inputs
    save(ctx, input, normalized_shape, weight, None, eps)


def _grad(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
    need_input, _, need_weight, _ = ctx.needs_input_grad
    dx, dw, _ = gradients(ctx, grad_output, None, False, (need_input, need_weight, False))
    return dx, None, dw, None


op = Op(
    "rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None)"
    " -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Root mean square layer normalization over the last dimensions.

    ``input * rsqrt(mean(input ** 2) + eps) * weight``, computed in float32 for low precision, as
    ``torch.nn.functional.rms_norm`` (Zhang and Sennrich, 2019, https://arxiv.org/abs/1910.07467).

    Deterministic. Under autocast it runs in float32. Memory: the result; backward keeps ``input``
    and ``weight`` only, and computes the deviation anew.

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
    shape = check_types(NAME, input, input, normalized_shape, weight, None, eps)
    result: Tensor = op(input, shape, weight, eps)
    return result
