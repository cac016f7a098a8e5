"""How many rows of logits exist at a time, from a model of the memory that is in use.

Eager holds three tensors of the logits' size at its peak: the log-probabilities, their gradient and
the logits' gradient. Here there are a chunk of logits, the input's gradient and the weight's. With
more than one chunk the weight's gradient is summed in float32, which backward turns into one of the
weight's type, so both exist for a moment.
"""

from __future__ import annotations

import torch

from torchsmith_kernels._src.sizes import ceil_div

#: Fewer rows make matrix products inefficient: each reads and writes the whole sum of ``dW``.
FEWEST_ROWS = 2048
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
    """Rows per chunk: as many as a quarter of eager's memory, or backward's, has room for."""
    size = dtype.itemsize
    eager = 3 * size * rows * classes
    dx = size * rows * hidden
    dw = size * classes * hidden if with_weight else 0
    summed = accumulator(dtype, 2, accumulate).itemsize * classes * hidden if with_weight else 0
    if size * rows * classes + dw <= summed + dw + dx:
        return max(rows, 1)
    room = max(eager // 4, summed + dw + 2 * dx) - summed - dx
    most = max(room // (size * classes), FEWEST_ROWS)
    chunks = ceil_div(rows, most)
    return max(ceil_div(ceil_div(rows, chunks), TILE_ROWS) * TILE_ROWS, 1)
