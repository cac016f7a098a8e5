"""The operator ``torchsmith::layer_norm`` and the public function."""

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

NAME = "layer_norm"


def _forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    return forward(NAME, input, None, normalized_shape, weight, bias, eps)[0]


def _forward_fake(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Tensor:
    return forward_fake(NAME, input, None, normalized_shape, weight, bias)[0]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, normalized_shape, weight, bias, eps = inputs
    save(ctx, input, normalized_shape, weight, bias, eps)


def _grad(ctx: Any, grad_output: Tensor | None) -> tuple[Tensor | None, ...]:
    need_input, _, need_weight, need_bias, _ = ctx.needs_input_grad
    needed = need_input, need_weight, need_bias
    dx, dw, db = gradients(ctx, grad_output, None, True, needed)
    return dx, None, dw, db, None


op = Op(
    "layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None,"
    " float eps=1e-05) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
    autocast="float32",
)


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Layer normalization over the last dimensions.

    ``(input - m) * rsqrt(mean((input - m) ** 2) + eps) * weight + bias`` with ``m = mean(input)``,
    computed in float32 for low precision, as ``torch.nn.functional.layer_norm`` (Ba et al., 2016,
    https://arxiv.org/abs/1607.06450).

    Deterministic. Under autocast it runs in float32. Memory: the result; backward keeps ``input``
    and ``weight`` only, and computes mean and deviation anew.

    Args:
        input: floating point tensor of shape ``[*, *normalized_shape]``.
        normalized_shape: the last dimensions of ``input``, over which the mean is taken.
        weight: optional scale of shape ``normalized_shape``, of any floating dtype.
        bias: optional offset of shape ``normalized_shape``, of any floating dtype.
        eps: added to the variance.

    Returns:
        A contiguous tensor of ``input``'s shape and dtype.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ShapeError: ``input``, ``weight`` or ``bias`` do not end in ``normalized_shape``.
        DtypeError: a tensor is not floating point.
        DeviceError: ``weight`` or ``bias`` lies on another device than ``input``.
    """
    shape = check_types(NAME, input, input, normalized_shape, weight, bias, eps)
    result: Tensor = op(input, shape, weight, bias, eps)
    return result
