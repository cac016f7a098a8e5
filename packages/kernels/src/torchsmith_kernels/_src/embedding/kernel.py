"""The Triton kernel of embedding lookup, which gathers rows."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def forward_kernel(
    indices: tl.tensor,
    weight: tl.tensor,
    output: tl.tensor,
    count: tl.tensor,
    table_rows: tl.tensor,
    width: tl.tensor,
    row_stride: tl.tensor,
    column_blocks: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """``output[i] = weight[indices[i]]``, NaN where there is no such row."""
    program = tl.program_id(0)
    place = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    inside = place < count
    row = tl.load(indices + place, inside, other=0).to(tl.int64)
    known = inside & (row >= 0) & (row < table_rows)
    keep = column < width
    value = tl.load(
        weight + (row * row_stride)[:, None] + column, known[:, None] & keep, other=float("nan")
    )
    tl.store(output + (place * width)[:, None] + column, value, inside[:, None] & keep)
