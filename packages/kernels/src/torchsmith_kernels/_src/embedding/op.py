"""The operators ``torchsmith::embedding`` and its backward, and the public function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.embedding import reference, run
from torchsmith_kernels.errors import ArgumentTypeError, ArgumentValueError, ShapeError

NAME = "embedding"
INDICES = (torch.int32, torch.int64)
NO_PADDING = -1


def _check(input: Tensor, weight: Tensor) -> None:
    if (
        input.dtype in INDICES
        and weight.dtype in check.FLOATING
        and weight.dim() == 2
        and input.device == weight.device
    ):
        return
    check.dtype(NAME, "input", input, INDICES)
    check.dtype(NAME, "weight", weight, check.FLOATING)
    if weight.dim() != 2:
        raise ShapeError(
            op=NAME,
            argument="weight",
            given=tuple(weight.shape),
            accepted="it must have 2 dimensions, rows and columns",
        )
    check.device(NAME, "input", input, weight)


def _kernels_run(tensor: Tensor) -> bool:
    return tensor.dtype is not torch.float64 and launch.usable(tensor.device, NAME)


def _forward(input: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
    _check(input, weight)
    if _kernels_run(weight):
        return run.forward(input, weight)
    return reference.forward(input, weight)


def _forward_fake(input: Tensor, weight: Tensor, padding_idx: int) -> Tensor:
    _check(input, weight)
    return weight.new_empty((*input.shape, weight.shape[1]))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    input, weight, ctx.padding_idx = inputs
    ctx.rows = weight.shape[0]
    ctx.save_for_backward(input)


def _grad(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    (input,) = ctx.saved_tensors
    return None, backward_op(grad_output, input, ctx.rows, ctx.padding_idx), None


def _backward(grad_output: Tensor, input: Tensor, rows: int, padding_idx: int) -> Tensor:
    if _kernels_run(grad_output):
        return run.backward(grad_output, input, rows, padding_idx)
    return reference.backward(grad_output, input, rows, padding_idx)


def _backward_fake(grad_output: Tensor, input: Tensor, rows: int, padding_idx: int) -> Tensor:
    return grad_output.new_empty((rows, grad_output.shape[-1]))


def _setup_backward_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    _, input, _, ctx.padding_idx = inputs
    ctx.save_for_backward(input)


def _grad_of_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (input,) = ctx.saved_tensors
    return reference.transposed(input, grad, ctx.padding_idx), None, None, None


backward_op = Op(
    "embedding_backward(Tensor grad_output, Tensor input, SymInt rows, int padding_idx) -> Tensor",
    kernel=_backward,
    fake=_backward_fake,
    setup_context=_setup_backward_context,
    backward=_grad_of_backward,
)
op = Op(
    "embedding(Tensor input, Tensor weight, int padding_idx) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
    setup_context=_setup_context,
    backward=_grad,
)


def _padding(padding_idx: int | None, rows: int) -> int:
    if padding_idx is None:
        return NO_PADDING
    if not isinstance(padding_idx, int):
        raise ArgumentTypeError(
            op=NAME,
            argument="padding_idx",
            given=f"of type {type(padding_idx).__name__}",
            accepted="it must be an int or None",
        )
    if not -rows <= padding_idx < rows:
        raise ArgumentValueError(
            op=NAME,
            argument="padding_idx",
            given=padding_idx,
            accepted=f"it must be a row of `weight`, which has {rows}",
        )
    return padding_idx if padding_idx >= 0 else padding_idx + rows


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table: ``weight[input]``.

    The gradient of ``weight`` is dense. Its rows are sums over the sorted indices in a fixed
    order, in float32, rounded once: without atomics, deterministic, and in parallel however often
    one index occurs. Memory: the result; backward keeps ``input``, and takes about 30 bytes per
    index and a sixteenth of ``grad_output``'s elements in float32 in passing.

    Args:
        input: int32 or int64 indices of any shape. An index outside of the table raises an
            IndexError on a CPU; on a GPU, which cannot raise, it gives a row of NaN and no
            gradient.
        weight: floating point table, ``[rows, columns]``.
        padding_idx: a row whose gradient stays zero; counts from the end when negative.

    Returns:
        A contiguous tensor of shape ``[*input.shape, columns]`` and ``weight``'s dtype.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: ``padding_idx`` is not a row of ``weight``.
        DtypeError: a tensor's dtype is not accepted.
        DeviceError: the tensors are on different devices.
        ShapeError: ``weight`` does not have two dimensions.
    """
    if not (isinstance(input, Tensor) and isinstance(weight, Tensor)):
        check.is_tensor(NAME, "input", input)
        check.is_tensor(NAME, "weight", weight)
    padding = NO_PADDING
    if padding_idx is not None:
        padding = _padding(padding_idx, weight.shape[0] if weight.dim() else 0)
    result: Tensor = op(input, weight, padding)
    return result
