"""How many rows of logits exist at a time, from a model of the memory that is in use.

Eager holds three tensors of the logits' size at its peak: the log-probabilities, their gradient and
the logits' gradient. Here there are a chunk of logits, the input's gradient and the weight's. With
more than one chunk the weight's gradient is summed in float32, which backward turns into one of the
weight's type, so both exist for a moment.
"""

from __future__ import annotations

import torch

from torchsmith_kernels._src.sizes import ceil_div

#: Rows per chunk: fewer make matrix products slower, since each reads and writes the whole sum of
#: ``dW``; more were no faster on an H200, and take more memory.
CHUNK_ROWS = 4096
#: Chunks are multiples of this, the largest tile of a matrix product.
TILE_ROWS = 256


def accumulator(dtype: torch.dtype, chunks: int, accumulate: torch.dtype | None) -> torch.dtype:
    """The type in which the weight's gradient is summed.

    One chunk needs no sum. float16 could overflow before the result is scaled.
    """
    if dtype in (torch.float32, torch.float64):
        return dtype
    if accumulate is not None:
        return accumulate
    return torch.float32 if chunks > 1 or dtype is torch.float16 else dtype


def chunk_rows(
    rows: int,
    hidden: int,
    classes: int,
    dtype: torch.dtype,
    accumulate: torch.dtype | None,
    with_weight: bool = True,
) -> int:
    """Rows per chunk: all where that takes less memory than a sum, else about ``CHUNK_ROWS``."""
    size = dtype.itemsize
    summed = accumulator(dtype, 2, accumulate).itemsize * classes * hidden if with_weight else 0
    if rows <= CHUNK_ROWS or size * rows * classes <= summed:
        return max(rows, 1)
    chunks = ceil_div(rows, CHUNK_ROWS)
    return ceil_div(ceil_div(rows, chunks), TILE_ROWS) * TILE_ROWS
