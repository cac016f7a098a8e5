"""What the operators of row normalization share: checks, fake results, gradients."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.row_norm import reference, run
from torchsmith_kernels._src.sizes import new_like
from torchsmith_kernels.errors import ArgumentTypeError, ShapeError


def check_types(
    op: str,
    input: object,
    residual: object,
    normalized_shape: object,
    weight: object,
    bias: object,
    eps: object,
) -> tuple[int | torch.SymInt, ...]:
    """``normalized_shape`` as ints; raises unless every argument has an accepted type."""
    if (
        isinstance(input, Tensor)
        and input.layout is torch.strided
        and isinstance(normalized_shape, tuple)
        and len(normalized_shape) == 1
        and type(normalized_shape[0]) is int
        and (weight is None or isinstance(weight, Tensor))
        and (bias is None or isinstance(bias, Tensor))
        and isinstance(residual, Tensor)
        and isinstance(eps, float)
    ):
        return normalized_shape  # nearly all calls; what follows costs microseconds
    check.is_tensor(op, "input", input)
    if op.startswith("add_"):
        check.is_tensor(op, "residual", residual)
    accepted = "it must be a tuple or list of ints"
    if not isinstance(normalized_shape, list | tuple):
        given = f"of type {type(normalized_shape).__name__}"
        raise ArgumentTypeError(op=op, argument="normalized_shape", given=given, accepted=accepted)
    try:  # integers of NumPy count as well
        sizes = tuple(
            n if isinstance(n, int | torch.SymInt) else index(n) for n in normalized_shape
        )
    except TypeError:
        raise ArgumentTypeError(
            op=op, argument="normalized_shape", given=repr(normalized_shape), accepted=accepted
        ) from None
    check.is_tensor(op, "weight", weight, optional=True)
    check.is_tensor(op, "bias", bias, optional=True)
    check.is_number(op, "eps", eps, optional=op.endswith("rms_norm"))
    return sizes


def _check(
    op: str,
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
) -> None:
    """Raises unless the arguments fit together; cheap enough for every call."""
    wanted, shape = tuple(normalized_shape), input.shape
    count = len(wanted)
    if count == 0:
        raise ArgumentTypeError(
            op=op,
            argument="normalized_shape",
            given="empty",
            accepted="it must name at least the last dimension of `input`",
        )
    if shape[-count:] != wanted:
        raise ShapeError(
            op=op,
            argument="input",
            given=tuple(shape),
            accepted=f"its last dimensions must be `normalized_shape` {wanted}",
        )
    check.dtype(op, "input", input, check.FLOATING)
    if residual is not None:
        _check_tensor(op, "residual", residual, input, shape, "the shape of `input`")
        if residual.dtype is not input.dtype:
            check.dtype(op, "residual", residual, (input.dtype,))
    if weight is not None:
        _check_tensor(op, "weight", weight, input, wanted, "`normalized_shape`")
    if bias is not None:
        _check_tensor(op, "bias", bias, input, wanted, "`normalized_shape`")


def _check_tensor(
    op: str, argument: str, tensor: Tensor, input: Tensor, shape: tuple[int, ...], is_: str
) -> None:
    if tensor.shape != shape:
        check.shape(op, argument, tensor, shape, is_)
    if tensor.dtype is not input.dtype:
        check.dtype(op, argument, tensor, check.FLOATING)
    if tensor.device != input.device:
        check.device(op, argument, tensor, input)


def _kernels_run(op: str, input: Tensor) -> bool:
    # The kernels compute in float32.
    return input.dtype is not torch.float64 and launch.usable(input.device, op)


def forward(
    op: str,
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
) -> tuple[Tensor, Tensor]:
    """The normalized tensor and what was normalized, which without ``residual`` is no new one."""
    _check(op, input, residual, normalized_shape, weight, bias)
    mean = op.endswith("layer_norm")
    value = reference.default_eps(input.dtype) if eps is None else eps
    if _kernels_run(op, input):
        return run.forward(op, input, residual, normalized_shape, weight, bias, value, mean)
    total = reference.add(input, residual)
    return reference.forward(total, normalized_shape, weight, bias, value, mean), total


def forward_fake(
    op: str,
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Two results as those of ``forward``, without data."""
    _check(op, input, residual, normalized_shape, weight, bias)
    return new_like(input, input.shape), new_like(input, input.shape)


def _backward(
    mean: bool,
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor, Tensor, Tensor]:
    op = f"{'' if grad_sum is None else 'add_'}{'layer' if mean else 'rms'}_norm"
    value = reference.default_eps(input.dtype) if eps is None else eps
    arguments = (grad_output, grad_sum, input, normalized_shape, weight, bias, value, mean)
    if _kernels_run(op, input):
        return run.backward(op, *arguments, *needed)
    found = reference.backward(*arguments)
    empty = _backward_fake(input, weight, bias, (False, False, False))
    dx, dw, db = (
        one if need and one is not None else none
        for one, need, none in zip(found, needed, empty, strict=True)
    )
    return dx, dw, db


def _backward_fake(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, needed: tuple[bool, bool, bool]
) -> tuple[Tensor, Tensor, Tensor]:
    def like(tensor: Tensor | None, need: bool) -> Tensor:
        if tensor is None:
            return new_like(input, (0,))
        return new_like(tensor, tensor.shape if need else (0,))

    need_input, need_weight, need_bias = needed
    return like(input, need_input), like(weight, need_weight), like(bias, need_bias)


def _rms_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    needed = need_input, need_weight, False
    return _backward(
        False, grad_output, grad_sum, input, normalized_shape, weight, None, eps, needed
    )[:2]


def _rms_backward_fake(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float | None,
    need_input: bool,
    need_weight: bool,
) -> tuple[Tensor, Tensor]:
    return _backward_fake(input, weight, None, (need_input, need_weight, False))[:2]


def _layer_backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    needed = need_input, need_weight, need_bias
    return _backward(
        True, grad_output, grad_sum, input, normalized_shape, weight, bias, eps, needed
    )


def _layer_backward_fake(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward_fake(input, weight, bias, (need_input, need_weight, need_bias))


rms_norm_backward = Op(
    "rms_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor input,"
    " SymInt[] normalized_shape, Tensor? weight, float? eps, bool need_input, bool need_weight)"
    " -> (Tensor, Tensor)",
    kernel=_rms_backward,
    fake=_rms_backward_fake,
)
layer_norm_backward = Op(
    "layer_norm_backward(Tensor grad_output, Tensor? grad_sum, Tensor input,"
    " SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps, bool need_input,"
    " bool need_weight, bool need_bias) -> (Tensor, Tensor, Tensor)",
    kernel=_layer_backward,
    fake=_layer_backward_fake,
)


def save(
    ctx: Any,
    normalized: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
) -> None:
    """Keeps for ``gradients`` what was normalized and the parameters."""
    ctx.save_for_backward(normalized, weight, bias)
    ctx.normalized_shape, ctx.eps = normalized_shape, eps
    ctx.set_materialize_grads(False)


def gradients(
    ctx: Any,
    grad_output: Tensor | None,
    grad_sum: Tensor | None,
    mean: bool,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of what was normalized, of the weight and of the bias, after ``save``."""
    input, weight, bias = ctx.saved_tensors
    if grad_output is None:  # only the sum was used
        return grad_sum, None, None
    shape, eps = ctx.normalized_shape, ctx.eps
    found: tuple[Tensor | None, ...]
    if torch.is_grad_enabled():  # create_graph=True: the same formula, differentiable
        value = reference.default_eps(input.dtype) if eps is None else eps
        found = reference.backward(grad_output, grad_sum, input, shape, weight, bias, value, mean)
    elif mean:
        found = layer_norm_backward(grad_output, grad_sum, input, shape, weight, bias, eps, *needed)
    else:
        found = (
            *rms_norm_backward(grad_output, grad_sum, input, shape, weight, eps, *needed[:2]),
            None,
        )
    dx, dw, db = (one if need else None for one, need in zip(found, needed, strict=True))
    return dx, dw, db
