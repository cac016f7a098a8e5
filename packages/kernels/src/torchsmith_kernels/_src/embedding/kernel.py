"""The Triton kernels of embedding lookup: gathering rows, and summing rows of equal index.

Backward works on positions sorted by index. Blocks of ``LENGTH`` sorted positions cut runs of equal
indices into pieces, at most one that goes on from the block before (its head) and one that goes on
into the next (its tail). A piece that is a whole run is written to the result; heads and tails go
to a buffer of two rows per block, and ``combine_kernel`` adds those of one run in order.
"""

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


@jit
def pieces_kernel(
    keys: tl.tensor,
    lengths: tl.tensor,
    count: tl.tensor,
    table_rows: tl.tensor,
    BLOCKS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Length of the piece that begins at each sorted position, 0 where none begins."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)[:, None]
    inner = tl.arange(0, LENGTH)[None, :]
    place = block * LENGTH + inner
    keep = place < count
    key = tl.load(keys + place, keep, other=-1)
    before = tl.load(keys + place - 1, keep & (inner > 0), other=-1)
    begins = keep & ((inner == 0) | (key != before))
    # The next beginning: the smallest one to the right of each position.
    later = tl.arange(0, LENGTH)[None, None, :]
    marks = tl.where(begins, inner, LENGTH)[:, None, :]
    following = tl.min(tl.where(later > inner[:, :, None], marks, LENGTH), axis=2)
    end = tl.minimum(block * LENGTH + following, count)
    length = tl.where(begins & (key < table_rows), end - place, 0)
    tl.store(lengths + place, length.to(tl.int32), keep)


@jit
def sum_kernel(
    grad: tl.tensor,
    order: tl.tensor,
    keys: tl.tensor,
    lengths: tl.tensor,
    result: tl.tensor,
    partial: tl.tensor,
    count: tl.tensor,
    width: tl.tensor,
    grad_stride: tl.tensor,
    column_blocks: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Sums the rows of every piece, in order, in float32."""
    program = tl.program_id(0)
    place = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    length = tl.load(lengths + place, place < count, other=0)
    most = tl.max(length, 0)
    if most > 0:
        column = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)[None, :]
        keep = column < width
        total = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in range(0, most, 4):
            # Four independent loads are in flight together; the sum keeps its order.
            row0 = tl.load(order + place + step, step < length, other=0).to(tl.int64)
            row1 = tl.load(order + place + step + 1, step + 1 < length, other=0).to(tl.int64)
            row2 = tl.load(order + place + step + 2, step + 2 < length, other=0).to(tl.int64)
            row3 = tl.load(order + place + step + 3, step + 3 < length, other=0).to(tl.int64)
            keep0 = (step < length)[:, None] & keep
            keep1 = (step + 1 < length)[:, None] & keep
            keep2 = (step + 2 < length)[:, None] & keep
            keep3 = (step + 3 < length)[:, None] & keep
            value0 = tl.load(grad + (row0 * grad_stride)[:, None] + column, keep0, other=0.0)
            value1 = tl.load(grad + (row1 * grad_stride)[:, None] + column, keep1, other=0.0)
            value2 = tl.load(grad + (row2 * grad_stride)[:, None] + column, keep2, other=0.0)
            value3 = tl.load(grad + (row3 * grad_stride)[:, None] + column, keep3, other=0.0)
            total += value0.to(tl.float32)
            total += value1.to(tl.float32)
            total += value2.to(tl.float32)
            total += value3.to(tl.float32)
        used = length > 0
        end = place + length
        key = tl.load(keys + place, used, other=0).to(tl.int64)
        before = tl.load(keys + place - 1, used & (place > 0), other=-1).to(tl.int64)
        after = tl.load(keys + end, used & (end < count), other=-1).to(tl.int64)
        opens = key != before
        whole = opens & (key != after)
        target = result + (key * width)[:, None] + column
        tl.store(target, total.to(result.dtype.element_ty), (used & whole)[:, None] & keep)
        slot = place // LENGTH * 2 + opens.to(tl.int64)
        target = partial + (slot * width)[:, None] + column
        tl.store(target, total, (used & (whole == 0))[:, None] & keep)


@jit
def combine_kernel(
    keys: tl.tensor,
    result: tl.tensor,
    partial: tl.tensor,
    count: tl.tensor,
    table_rows: tl.tensor,
    width: tl.tensor,
    column_blocks: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Adds the pieces of each run that is longer than its block, in order."""
    program = tl.program_id(0)
    block = (program // column_blocks).to(tl.int64)
    begin = block * LENGTH
    next_begin = begin + LENGTH
    if next_begin < count:
        key = tl.load(keys + next_begin - 1).to(tl.int64)
        following = tl.load(keys + next_begin).to(tl.int64)
        if (key == following) & (key < table_rows):
            first = tl.load(keys + begin).to(tl.int64)
            before = tl.load(keys + begin - 1, begin > 0, other=-1).to(tl.int64)
            if (first != key) | (before != key):
                column = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
                keep = column < width
                total = tl.load(partial + (2 * block + 1) * width + column, keep, other=0.0)
                further = block + 1 + tl.arange(0, ROWS)
                more = 1
                while more > 0:
                    place = further * LENGTH
                    found = tl.load(keys + place, place < count, other=-1).to(tl.int64)
                    same = found == key
                    rows = partial + (2 * further * width)[:, None] + column[None, :]
                    values = tl.load(rows, same[:, None] & keep[None, :], other=0.0)
                    total += tl.sum(values, 0)
                    further += ROWS
                    more = tl.min(same.to(tl.int32), 0)
                target = result + key * width + column
                tl.store(target, total.to(result.dtype.element_ty), keep)
