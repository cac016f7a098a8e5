"""The public function ``fused_linear_cross_entropy``."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import check
from torchsmith_kernels._src.cross_entropy.functional import (
    INDEX_DTYPES,
    autocast_enabled,
    check_settings,
    check_weight,
    comparable,
)
from torchsmith_kernels._src.fused_linear_cross_entropy.op import NAME, op
from torchsmith_kernels.errors import ArgumentValueError, ShapeError


def fused_linear_cross_entropy(
    input: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    *,
    class_weight: Tensor | None = None,
    z_loss: float = 0.0,
    softcap: float | None = None,
    chunk_size: int | None = None,
    accumulate_dtype: torch.dtype | None = None,
) -> Tensor:
    """``cross_entropy(input @ weight.T + bias, target)`` without ever holding all the logits.

    Rows are computed in chunks: a matrix product makes the logits, a kernel overwrites them with
    their gradient, two more products make the chunk's share of the gradients. Forward computes all
    gradients that are wanted and backward only scales them (with ``reduction="none"`` backward
    recomputes the logits instead, since every row has a factor of its own). Logits are rounded to
    ``input``'s dtype as eager's are, all else is computed in float32. Deterministic as far as the
    matrix products of this PyTorch are.

    Memory, beside the results: one chunk of logits, and with more than one chunk the sum of
    ``weight``'s gradient in float32, which exists beside the final one for a moment. There are
    about 4096 rows per chunk; with few rows (up to about twice the hidden size) the float32 sum
    would outweigh the logits, and there is one chunk. After Liger Kernel
    (https://arxiv.org/abs/2410.10989).

    Args:
        input: ``[*, H]``, floating point.
        weight: ``[V, H]``, as that of ``torch.nn.Linear``; ``input``'s dtype.
        target: classes ``[*]``, int64, int32 or uint8; a class that does not exist is treated as by
            ``cross_entropy``.
        bias: ``[V]``, ``input``'s dtype.
        ignore_index: class of rows that do not count.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: share of the loss that goes evenly to all classes, from 0 to 1.
        class_weight: ``cross_entropy``'s ``weight``: ``[V]``, floating point.
        z_loss: factor of ``logsumexp ** 2``.
        softcap: logits become ``softcap * tanh(logits / softcap)``.
        chunk_size: rows per chunk; by default chosen as described.
        accumulate_dtype: type in which chunks of ``weight``'s gradient are summed: float32 (the
            default), or ``input``'s dtype, which needs half the memory and rounds once per chunk.

    Returns:
        A scalar, or losses of the target's shape for ``none``; of ``input``'s dtype, float32 under
        autocast.

    Raises:
        ArgumentTypeError: an argument has the wrong type.
        ArgumentValueError: ``label_smoothing``, ``softcap``, ``chunk_size`` or ``accumulate_dtype``
            has a value that is not accepted.
        DtypeError: a tensor has a dtype that is not accepted.
        ShapeError: shapes do not fit together.
        DeviceError: tensors are on different devices.
    """
    check.is_tensor(NAME, "input", input)
    check.is_tensor(NAME, "weight", weight)
    check.is_tensor(NAME, "target", target)
    check.is_tensor(NAME, "bias", bias, optional=True)
    check.dtype(NAME, "input", input, check.FLOATING)
    autocast = autocast_enabled(input)
    dtype = input.dtype
    if autocast:
        lower = torch.get_autocast_dtype(input.device.type)
        input, weight = input.to(lower), weight.to(lower)
        bias = None if bias is None else bias.to(lower)
        dtype = torch.float32
    check.dtype(NAME, "weight", weight, (input.dtype,))
    check.device(NAME, "weight", weight, input)
    check.dtype(NAME, "target", target, INDEX_DTYPES)
    check.device(NAME, "target", target, input)
    if input.dim() == 0 or weight.dim() != 2 or weight.shape[1] != input.shape[-1]:
        raise ShapeError(
            op=NAME,
            argument="weight",
            given=tuple(weight.shape),
            accepted=f"it must be (classes, hidden size) for `input` of {tuple(input.shape)}",
        )
    classes, hidden = weight.shape
    if bias is not None:
        check.dtype(NAME, "bias", bias, (input.dtype,))
        check.device(NAME, "bias", bias, input)
        check.shape(NAME, "bias", bias, (classes,), "one value per class")
    check_weight(NAME, "class_weight", class_weight, input, classes)
    check.shape(NAME, "target", target, input.shape[:-1], "`input`'s without the last dimension")
    check_settings(NAME, ignore_index, reduction, label_smoothing, z_loss, softcap)
    _check_chunks(input, chunk_size, accumulate_dtype)
    shape = target.shape
    rows = input if input.dim() == 2 else input.reshape(target.numel(), hidden)
    if target.dim() != 1:
        target = target.reshape(-1)
    target = comparable(target, ignore_index)
    record = torch.is_grad_enabled()
    loss, *_ = op(
        rows, weight, bias, target, class_weight, dtype,
        ignore_index, reduction, label_smoothing, z_loss, softcap, chunk_size, accumulate_dtype,
        record and rows.requires_grad, record and weight.requires_grad,
        record and bias is not None and bias.requires_grad,
    )  # fmt: skip
    result: Tensor = loss
    return result.reshape(shape) if reduction == "none" and len(shape) != 1 else result


def _check_chunks(input: Tensor, chunk_size: int | None, accumulate: torch.dtype | None) -> None:
    whole = isinstance(chunk_size, int) and not isinstance(chunk_size, bool)
    if chunk_size is not None and not (whole and chunk_size > 0):
        raise ArgumentValueError(
            op=NAME,
            argument="chunk_size",
            given=repr(chunk_size),
            accepted="it must be a positive int or None",
        )
    if accumulate is not None and accumulate not in (torch.float32, input.dtype):
        raise ArgumentValueError(
            op=NAME,
            argument="accumulate_dtype",
            given=str(accumulate),
            accepted="it must be torch.float32, the dtype of `input`, or None",
        )
