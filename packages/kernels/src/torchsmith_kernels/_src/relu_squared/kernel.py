"""The Triton kernels of squared ReLU: one tile per program."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import at, place, wide


@jit
def forward_kernel(
    x: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """``y = max(x, 0) ** 2``."""
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    value = wide(tl.load(at(x, stride, row, column, down, along, HEIGHT), keep))
    # A comparison that is false for NaN would lose it.
    value = tl.where(value <= 0, 0.0, value)
    result = (value * value).to(y.dtype.element_ty)
    tl.store(at(y, width, row, column, down, along, HEIGHT), result, keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    dx: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """``dx = grad * 2 * max(x, 0)``."""
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    value = wide(tl.load(at(x, x_stride, row, column, down, along, HEIGHT), keep))
    upstream = wide(tl.load(at(grad, grad_stride, row, column, down, along, HEIGHT), keep))
    value = tl.where(value <= 0, 0.0, value)
    result = (upstream * (2 * value)).to(dx.dtype.element_ty)
    tl.store(at(dx, width, row, column, down, along, HEIGHT), result, keep)
