"""The Triton kernel of dropout, which is its own backward."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import at, factors, place, wide


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
    FLAT: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
) -> None:
    """``y = x * scale`` where the element's random word reaches ``threshold``, else ``x * 0``."""
    row, column, down, along, keep = place(rows, width, FLAT, HEIGHT, COLUMNS)
    value = wide(tl.load(at(x, stride, row, column, down, along, HEIGHT), keep))
    factor = factors(
        width, row, column, down, along, seed, key, offset, threshold, scale,
        HEIGHT, COLUMNS, ALIGNED, WIDE,
    )  # fmt: skip
    # Dropped infinities become NaN, as in torch.
    result = (value * factor).to(y.dtype.element_ty)
    tl.store(at(y, width, row, column, down, along, HEIGHT), result, keep)
