"""The Triton kernels of squared ReLU: a block of consecutive elements per program."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def forward_kernel(
    x: tl.tensor,
    y: tl.tensor,
    count: tl.tensor,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``y = max(x, 0) ** 2``."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = index < count
    value = tl.load(x + index, keep).to(COMPUTE)
    # A comparison that is false for NaN would lose it.
    value = tl.where(value <= 0, 0.0, value)
    tl.store(y + index, (value * value).to(y.dtype.element_ty), keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    dx: tl.tensor,
    count: tl.tensor,
    COMPUTE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``dx = grad * 2 * max(x, 0)``."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = index < count
    value = tl.load(x + index, keep).to(COMPUTE)
    upstream = tl.load(grad + index, keep).to(COMPUTE)
    value = tl.where(value <= 0, 0.0, value)
    tl.store(dx + index, (upstream * (2 * value)).to(dx.dtype.element_ty), keep)
