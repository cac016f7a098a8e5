"""Small arithmetic on sizes, strides and element types that many ops share."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOW_PRECISION = (torch.float16, torch.bfloat16)


def ceil_div(n: int, block: int) -> int:
    """``n / block`` rounded up."""
    return -(-n // block)


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n``."""
    return 1 << max(n - 1, 0).bit_length()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that values of ``dtype`` are computed in."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def new_like(like: Tensor, shape: Sequence[int], dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised contiguous tensor of another shape."""
    return torch.empty(tuple(shape), dtype=dtype or like.dtype, device=like.device)


def row_stride(tensor: Tensor, width: int, count: int) -> int | None:
    """Elements between rows of ``width``, or None where rows are not at regular places.

    Args:
        tensor: any strided tensor.
        width: elements per row.
        count: trailing dimensions that make up a row; they must be contiguous.
    """
    if tensor.is_contiguous():
        return width
    sizes, strides = tensor.shape, tensor.stride()
    expected = 1
    for axis in range(tensor.dim() - 1, tensor.dim() - count - 1, -1):
        if sizes[axis] != 1 and strides[axis] != expected:
            return None
        expected *= sizes[axis]
    step: int | None = None
    expected = 0
    for axis in range(tensor.dim() - count - 1, -1, -1):
        if sizes[axis] == 1:
            continue
        if step is None:
            step = strides[axis]
        elif strides[axis] != expected:
            return None
        expected = strides[axis] * sizes[axis]
    return width if step is None else step


def as_rows(tensor: Tensor, width: int, count: int) -> tuple[Tensor, int]:
    """``tensor`` (copied only if need be) and the distance of its rows."""
    stride = row_stride(tensor, width, count)
    if stride is None:
        return tensor.contiguous(), width
    return tensor, stride
