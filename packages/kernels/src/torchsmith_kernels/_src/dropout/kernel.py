"""The Triton kernel of dropout, which is its own backward."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import at, place, stream, words


@jit
def dropout_kernel(
    x: tl.tensor,
    y: tl.tensor,
    seed: tl.tensor | None,
    key: tl.tensor,
    offset: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    COMPUTE: tl.constexpr,
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
) -> None:
    """``y = x * scale`` where the element's random word reaches ``threshold``, else ``x * 0``."""
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    value = tl.load(at(x, stride, row, column, down, along, HEIGHT), keep).to(COMPUTE)
    key, offset = stream(seed, key, offset)
    word = words(width, row, column, down, along, key, offset, HEIGHT, COLUMNS, ALIGNED)
    # Dropped infinities become NaN, as in torch.
    value = value * tl.where(word >= threshold.to(tl.uint32), scale, 0.0).to(COMPUTE)
    tl.store(at(y, width, row, column, down, along, HEIGHT), value.to(y.dtype.element_ty), keep)
