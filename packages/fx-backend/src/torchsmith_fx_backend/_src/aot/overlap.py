"""Which writes eager refuses because of memory that overlaps. Meta tensors do not tell."""

from __future__ import annotations

from typing import Any

import torch


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements may share one place. With symbolic sizes only a stride of 0 counts.

    Eager refuses to write where a stride is 0; elsewhere each write sees the ones before it.
    """
    axes = sorted(
        (s, n) for n, s in zip(tensor.shape, tensor.stride()) if type(n) is type(s) is int
    )
    reach = 0  # how far the axes of smaller strides go
    for stride, size in axes:
        if size > 1:
            if stride <= reach and (stride == 0 or len(axes) == tensor.dim()):
                return True
            reach += stride * (size - 1)
    return any(
        type(stride) is int and stride == 0 and type(size) is not int
        for size, stride in zip(tensor.shape, tensor.stride())
    )


def refused_by_eager(written: torch.Tensor, read: torch.Tensor, pointwise: bool) -> bool:
    """Whether eager refuses to write ``written`` while it reads ``read``, of the same storage.

    Eager compares extents of dense tensors only and lets everything else pass.

    Args:
        written: the target.
        read: another operand.
        pointwise: the operator may read the very elements that it writes.
    """
    if written.numel() == 0 or read.numel() == 0 or not (_dense(written) and _dense(read)):
        return False
    start, other = _extent(written), _extent(read)
    if start == other:
        return not pointwise or written.stride() != read.stride()
    return bool(start[0] < other[1] and other[0] < start[1])


def _extent(tensor: torch.Tensor) -> tuple[Any, Any]:
    """First and last byte of a dense tensor, relative to its storage."""
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


def _dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in one piece, each at a place of its own."""
    expected: Any = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
