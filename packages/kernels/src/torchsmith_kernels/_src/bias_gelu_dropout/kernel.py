"""The Triton kernels of bias + GELU + dropout."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import activation, at, factors, wide


@jit
def _place(width: tl.tensor, HEIGHT: tl.constexpr, COLUMNS: tl.constexpr) -> tuple[tl.tensor, ...]:
    """This program's first column, the number of its group, offsets, and which columns exist."""
    across = (width + (COLUMNS - 1)) // COLUMNS
    column = (tl.program_id(0) % across).to(tl.int64) * COLUMNS
    group = (tl.program_id(0) // across).to(tl.int64)
    down = tl.arange(0, HEIGHT)[:, None]
    along = tl.arange(0, COLUMNS)[None, :]
    return column, group, down, along, along < width - column


@jit
def forward_kernel(
    x: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    seed: tl.tensor | None,
    key: tl.tensor,
    offset: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    stride: tl.tensor,
    groups: tl.tensor,
    KIND: tl.constexpr,
    DROP: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """``y = dropout(gelu(x + bias))``."""
    bits: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    column, group, down, along, exists = _place(width, HEIGHT, COLUMNS)
    shift = wide(tl.load(bias + column + along, exists, 0.0))
    start, step = group * HEIGHT, groups * HEIGHT
    if AHEAD:
        keep = exists & (down < rows - start)
        coming = tl.load(at(x, stride, start, column, down, along, HEIGHT), keep)
    for row in tl.range(start, rows.to(tl.int64), step, num_stages=STAGES):
        keep = exists & (down < rows - row)
        if AHEAD:
            value = coming
            following = exists & (down < rows - row - step)
            coming = tl.load(at(x, stride, row + step, column, down, along, HEIGHT), following)
        else:
            value = tl.load(at(x, stride, row, column, down, along, HEIGHT), keep)
        value, _ = activation(wide(value) + shift, KIND, bits == 16)
        if DROP:
            value *= factors(
                width, row, column, down, along, seed, key, offset, threshold, scale,
                HEIGHT, COLUMNS, ALIGNED, WIDE,
            )  # fmt: skip
        result = value.to(y.dtype.element_ty)
        tl.store(at(y, width, row, column, down, along, HEIGHT), result, keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    bias: tl.tensor,
    dx: tl.tensor,
    partials: tl.tensor,
    seed: tl.tensor | None,
    key: tl.tensor,
    offset: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    groups: tl.tensor,
    KIND: tl.constexpr,
    DROP: tl.constexpr,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
    ALIGNED: tl.constexpr,
    WIDE: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
) -> None:
    """``dx``, and sums of its columns over every ``groups``-th tile in ``partials[group]``."""
    bits: tl.constexpr = x.dtype.element_ty.primitive_bitwidth
    column, group, down, along, exists = _place(width, HEIGHT, COLUMNS)
    shift = wide(tl.load(bias + column + along, exists, 0.0))
    total = tl.zeros((HEIGHT, COLUMNS), partials.dtype.element_ty)
    start, step = group * HEIGHT, groups * HEIGHT
    if AHEAD:
        keep = exists & (down < rows - start)
        next_dy = tl.load(at(grad, grad_stride, start, column, down, along, HEIGHT), keep, 0.0)
        next_value = tl.load(at(x, x_stride, start, column, down, along, HEIGHT), keep, 0.0)
    for row in tl.range(start, rows.to(tl.int64), step, num_stages=STAGES):
        keep = exists & (down < rows - row)
        if AHEAD:
            dy, value = next_dy, next_value
            after = row + step
            more = exists & (down < rows - after)
            next_dy = tl.load(at(grad, grad_stride, after, column, down, along, HEIGHT), more, 0.0)
            next_value = tl.load(at(x, x_stride, after, column, down, along, HEIGHT), more, 0.0)
        else:
            dy = tl.load(at(grad, grad_stride, row, column, down, along, HEIGHT), keep, 0.0)
            value = tl.load(at(x, x_stride, row, column, down, along, HEIGHT), keep, 0.0)
        _, slope = activation(wide(value) + shift, KIND, bits == 16)
        result = wide(dy) * slope
        if DROP:
            result *= factors(
                width, row, column, down, along, seed, key, offset, threshold, scale,
                HEIGHT, COLUMNS, ALIGNED, WIDE,
            )  # fmt: skip
        total += result  # of rows that do not exist, the gradient is 0
        place_dx = at(dx, width, row, column, down, along, HEIGHT)
        tl.store(place_dx, result.to(dx.dtype.element_ty), keep)
    sums = tl.sum(total, 0)
    columns = tl.arange(0, COLUMNS)
    tl.store(partials + group * width + column + columns, sums, columns < width - column)


@jit
def partials_kernel(
    partials: tl.tensor,
    dbias: tl.tensor,
    groups: tl.tensor,
    width: tl.tensor,
    HEIGHT: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """``dbias``, the sums of the columns of ``partials``."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    down = tl.arange(0, HEIGHT)[:, None]
    total = tl.zeros((HEIGHT, COLUMNS), partials.dtype.element_ty)
    for row in range(0, groups, HEIGHT):
        keep = (column < width) & (down < groups - row)
        total += tl.load(partials + (row + down).to(tl.int64) * width + column, keep, 0.0)
    sums = tl.sum(total, 0)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    tl.store(dbias + columns, sums.to(dbias.dtype.element_ty), columns < width)
