"""The Triton kernels of sums by index: sorting, where segments begin, and summing segments.

A segment is a row's places in the sorted index. One that is longer than ``LENGTH`` is summed in
pieces, as blocks of ``LENGTH`` places cut it, by programs of their own: at most one piece of a
block goes on from the block before (its head), and one begins in it (its tail).
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def _keys(
    indices: tl.tensor,
    place: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    padding: tl.tensor,
    WRAP: tl.constexpr,
    CHECKED: tl.constexpr,
    KIND: tl.constexpr,
) -> tl.tensor:
    """Indices to sort by: those that no row is the sum of become ``rows``, so they come last."""
    index = tl.load(indices + place, place < count, other=0).to(tl.int64)
    if WRAP:
        index = tl.where(index < 0, index + rows, index)
    inside = (index >= 0) & (index < rows)
    if CHECKED:
        tl.device_assert(inside | (place >= count), "index out of bounds")
    return tl.where(inside & (index != padding), index, rows).to(KIND)


@jit
def keys_kernel(
    indices: tl.tensor,
    keys: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    padding: tl.tensor,
    WRAP: tl.constexpr,
    CHECKED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """The keys of all places."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    kind = keys.dtype.element_ty
    key = _keys(indices, place, count, rows, padding, WRAP, CHECKED, kind)
    tl.store(keys + place, key, place < count)


@jit
def rank_kernel(
    indices: tl.tensor,
    keys: tl.tensor,
    order: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    padding: tl.tensor,
    WRAP: tl.constexpr,
    CHECKED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """A stable sort by comparing each place with all others; for few places."""
    place = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    kind = keys.dtype.element_ty
    key = _keys(indices, place, count, rows, padding, WRAP, CHECKED, kind)
    before = tl.zeros((ROWS, COLUMNS), tl.int32)
    for start in range(0, count, COLUMNS):
        other = start + tl.arange(0, COLUMNS)[None, :]
        compared = _keys(indices, other, count, rows, padding, WRAP, False, kind)
        lower = (compared < key) | ((compared == key) & (other < place))
        before += (lower & (other < count)).to(tl.int32)
    rank = tl.sum(before, 1, keep_dims=True)
    tl.store(keys + rank, key, place < count)
    tl.store(order + rank, place.to(tl.int64), place < count)


@jit
def offsets_kernel(
    keys: tl.tensor,
    offsets: tl.tensor,
    ends: tl.tensor,
    count: tl.tensor,
    rows: tl.tensor,
    blocks: tl.tensor,
    BLOCK: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Where the segment of each row begins, and the first and last key of each block."""
    number = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    place = tl.minimum(number // 2 * LENGTH + number % 2 * (LENGTH - 1), count - 1)
    key = tl.load(keys + place, number < 2 * blocks, other=0).to(tl.int64)
    tl.store(ends + number, key, number < 2 * blocks)
    low = tl.zeros((BLOCK,), tl.int64)
    high = low + count
    width = count
    while width > 0:  # halves: the first place whose key is not less
        middle = (low + high) // 2
        open = low < high
        less = tl.load(keys + middle, open, other=0).to(tl.int64) < number
        low = tl.where(open & less, middle + 1, low)
        high = tl.where(open & (less == 0), middle, high)
        width = width // 2
    tl.store(offsets + number, low, number <= rows)


@jit
def _total(
    source: tl.tensor,
    order: tl.tensor,
    begin: tl.tensor,
    end: tl.tensor,
    stride: tl.tensor,
    column: tl.tensor,
    keep: tl.tensor,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """Sums of the rows of ``source`` that ``order`` has at ``begin .. end-1``."""
    total = tl.zeros((ROWS, COLUMNS), DTYPE)
    for first in range(0, tl.max(end - begin, 0), ENTRIES):
        place = (begin + first)[:, None] + tl.arange(0, ENTRIES)[None, :]
        inside = place < end[:, None]
        row = tl.load(order + place, inside, other=0) * stride
        address = source + row[:, :, None] + column[None, None, :]
        value = tl.load(address, inside[:, :, None] & keep[None, None, :], other=0.0)
        total += tl.sum(value.to(DTYPE), 1)
    return total


@jit
def pieces_kernel(
    source: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    ends: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    column_blocks: tl.tensor,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
) -> None:
    """Sums of the pieces of long segments: two rows per block, for its head and its tail."""
    program = tl.program_id(0)
    slot = (program // column_blocks).to(tl.int64)
    row = tl.load(ends + slot)
    if row < rows:
        start, end = tl.load(offsets + row), tl.load(offsets + row + 1)
        block = slot // 2 * LENGTH
        tail = start >= block
        if (end - start > LENGTH) & (tail == (slot % 2 == 1)):
            begin = tl.zeros((1,), tl.int64) + tl.maximum(start, block)
            stop = tl.zeros((1,), tl.int64) + tl.minimum(end, block + LENGTH)
            column = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
            keep = column < width
            kind = partial.dtype.element_ty
            total = _total(
                source, order, begin, stop, stride, column, keep, 1, ENTRIES, COLUMNS, kind
            )
            target = partial + slot * width + column[None, :]
            tl.store(target, total, keep[None, :])


@jit
def sum_kernel(
    source: tl.tensor,
    order: tl.tensor,
    offsets: tl.tensor,
    partial: tl.tensor,
    result: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    column_blocks: tl.tensor,
    ROWS: tl.constexpr,
    ENTRIES: tl.constexpr,
    COLUMNS: tl.constexpr,
    LENGTH: tl.constexpr,
    DTYPE: tl.constexpr,
) -> None:
    """The sum of each segment, of its rows or, where it is long, of its pieces."""
    program = tl.program_id(0)
    row = (program // column_blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
    keep = column < width
    start = tl.load(offsets + row, row < rows, other=0)
    end = tl.load(offsets + row + 1, row < rows, other=0)
    long = end - start > LENGTH
    stop = end
    if partial is not None:
        stop = tl.where(long, start, end)
    total = _total(source, order, start, stop, stride, column, keep, ROWS, ENTRIES, COLUMNS, DTYPE)
    if partial is not None:
        block = start // LENGTH
        pieces = tl.where(long, (end - 1) // LENGTH - block + 1, 0)
        for first in range(0, tl.max(pieces, 0), ENTRIES):
            piece = first + tl.arange(0, ENTRIES)[None, :]
            inside = piece < pieces[:, None]
            slot = 2 * (block[:, None] + piece) + (piece == 0).to(tl.int64)
            address = partial + (slot * width)[:, :, None] + column[None, None, :]
            value = tl.load(address, inside[:, :, None] & keep[None, None, :], other=0.0)
            total += tl.sum(value, 1)
    target = result + (row * width)[:, None] + column[None, :]
    tl.store(target, total.to(result.dtype.element_ty), (row < rows)[:, None] & keep[None, :])
