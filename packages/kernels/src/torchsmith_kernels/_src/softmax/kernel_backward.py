"""The Triton kernels of the gradients of softmax and log-softmax, in the same kinds as forward's.

``dx = y * (grad - sum(grad * y))``, and of the logarithm ``dx = grad - exp(y) * sum(grad)``; see
``kernel`` and ``lines`` for the terms.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.softmax.lines import (
    Mask,
    Part,
    Tile,
    Variant,
    View,
    block_at,
    exponential,
    load,
    mask_start,
    own_lines,
    part_of,
    places,
    read,
    read_mask,
    store,
    view,
    whole_end,
    whole_lines,
)


@jit
def _derivative(
    upstream: tl.tensor, result: tl.tensor, total: tl.tensor, LOG: tl.constexpr
) -> tl.tensor:
    """The gradient of the scores, given what a line sums to."""
    # Unlike ``[:, None]`` this also takes the one number of a single row.
    if LOG:
        return upstream - exponential(result) * tl.expand_dims(total, -1)
    else:
        return result * (upstream - tl.expand_dims(total, -1))


@jit
def _whole_derivative(
    grad: View, y: View, tile: Tile, VARIANT: tl.constexpr, CHECKED: tl.constexpr
) -> tl.tensor:
    """The gradient of the scores of whole lines."""
    upstream = read(grad, tile, VARIANT, CHECKED, "")
    result = read(y, tile, VARIANT, CHECKED, "").to(tl.float32)
    upstream = upstream.to(tl.float32)
    if VARIANT.LOG:
        total = tl.sum(upstream, 1)
    else:
        total = tl.sum(upstream * result, 1)
    return _derivative(upstream, result, total, VARIANT.LOG)


@jit
def _scaled(
    value: tl.tensor,
    mask: Mask,
    scale: tl.tensor,
    tile: Tile,
    VARIANT: tl.constexpr,
    CHECKED: tl.constexpr,
) -> tl.tensor:
    """The gradient of the input, given that of the scores; zero where masked, even if NaN."""
    value *= scale
    if VARIANT.MASK == 1:
        value = tl.where(read_mask(mask, tile, VARIANT, CHECKED), value, 0.0)
    return value


@jit
def plain_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    CHECKED: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Whole lines at once, without mask and factor."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK)
    own = own_lines(lines, count, inner, VARIANT)
    tile = whole_lines(own, VARIANT)
    upstream = view(grad, own, grad_stride, VARIANT)
    result = view(y, own, stride, VARIANT)
    value = _whole_derivative(upstream, result, tile, VARIANT, CHECKED)
    target = view(dx, own, count, VARIANT)
    store(places(target, tile, VARIANT), value, tile.inside, CHECKED, "")


@jit
def tile_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    mask_step: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Whole lines at once."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP)
    own = own_lines(lines, count, inner, VARIANT)
    tile = whole_lines(own, VARIANT)
    upstream = view(grad, own, grad_stride, VARIANT)
    result = view(y, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    value = _whole_derivative(upstream, result, tile, VARIANT, True)
    value = _scaled(value, Mask(mask, start, mask_step), scale, tile, VARIANT, True)
    target = view(dx, own, count, VARIANT)
    store(places(target, tile, VARIANT), value, tile.inside, True, "")


@jit
def _products(
    grad: View, y: View, tile: Tile, VARIANT: tl.constexpr, CHECKED: tl.constexpr
) -> tl.tensor:
    """What is summed up over a line."""
    upstream = read(grad, tile, VARIANT, CHECKED, "evict_last").to(tl.float32)
    if VARIANT.LOG:
        return upstream
    else:
        return upstream * read(y, tile, VARIANT, CHECKED, "evict_last").to(tl.float32)


@jit
def _sums(grad: View, y: View, part: Part, VARIANT: tl.constexpr) -> tl.tensor:
    """What the derivative needs of one part of the lines."""
    total = tl.zeros([VARIANT.LINES, VARIANT.BLOCK], tl.float32)
    whole = whole_end(part, VARIANT)
    for start in tl.range(part.first, whole, VARIANT.BLOCK, num_stages=VARIANT.STAGES):
        tile = block_at(start, part, VARIANT)
        total += _products(grad, y, tile, VARIANT, VARIANT.LINES > 1)
    if VARIANT.TAIL and whole < part.last:
        total += _products(grad, y, block_at(whole, part, VARIANT), VARIANT, True)
    return tl.sum(total, 1)


class Gradient(NamedTuple):
    """What the gradient is computed from, and where it goes."""

    grad: View
    y: View
    dx: View
    mask: Mask
    scale: tl.tensor


@jit
def _apply_tile(
    given: Gradient, tile: Tile, total: tl.tensor, VARIANT: tl.constexpr, CHECKED: tl.constexpr
) -> None:
    upstream = read(given.grad, tile, VARIANT, CHECKED, "evict_first").to(tl.float32)
    result = read(given.y, tile, VARIANT, CHECKED, "evict_first").to(tl.float32)
    value = _derivative(upstream, result, total, VARIANT.LOG)
    value = _scaled(value, given.mask, given.scale, tile, VARIANT, CHECKED)
    store(places(given.dx, tile, VARIANT), value, tile.inside, CHECKED, "")


@jit
def _apply(given: Gradient, part: Part, total: tl.tensor, VARIANT: tl.constexpr) -> None:
    """Writes the gradient."""
    whole = whole_end(part, VARIANT)
    if VARIANT.TAIL and whole < part.last:
        _apply_tile(given, block_at(whole, part, VARIANT), total, VARIANT, True)
    # Backwards, since the caches still have what was read last.
    for done in tl.range(0, whole - part.first, VARIANT.BLOCK, num_stages=VARIANT.STAGES):
        tile = block_at(whole - VARIANT.BLOCK - done, part, VARIANT)
        _apply_tile(given, tile, total, VARIANT, VARIANT.LINES > 1)


@jit
def loop_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    mask_step: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Lines of any length, read twice."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    upstream = view(grad, own, grad_stride, VARIANT)
    result = view(y, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    whole = Part(own.exists, count * 0, count)
    total = _sums(upstream, result, whole, VARIANT)
    target = view(dx, own, count, VARIANT)
    given = Gradient(upstream, result, target, Mask(mask, start, mask_step), scale)
    _apply(given, whole, total, VARIANT)


class Row(NamedTuple):
    """One row, whose number of elements is ``count``."""

    grad: tl.tensor
    y: tl.tensor
    dx: tl.tensor
    count: tl.tensor


@jit
def _row_products(row: Row, n: tl.tensor, LOG: tl.constexpr, CHECKED: tl.constexpr) -> tl.tensor:
    """What is summed up over a row."""
    upstream = load(row.grad + n, n < row.count, CHECKED, "evict_last").to(tl.float32)
    if LOG:
        return upstream
    else:
        return upstream * load(row.y + n, n < row.count, CHECKED, "evict_last").to(tl.float32)


@jit
def _apply_row(
    row: Row, n: tl.tensor, total: tl.tensor, LOG: tl.constexpr, CHECKED: tl.constexpr
) -> None:
    """Writes the gradient of elements ``n``."""
    upstream = load(row.grad + n, n < row.count, CHECKED, "evict_first").to(tl.float32)
    result = load(row.y + n, n < row.count, CHECKED, "evict_first").to(tl.float32)
    value = _derivative(upstream, result, total, LOG)
    store(row.dx + n, value, n < row.count, CHECKED, "")


@jit
def rows_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    count: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    LOG: tl.constexpr,
    WIDE: tl.constexpr,
    TAIL: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``loop_backward_kernel`` for one row a program, without mask and factor.

    It takes fewer registers, on which depends how many rows are under way at once.
    """
    number = tl.program_id(0).to(tl.int64)
    if WIDE:
        count = count.to(tl.int64)
    row = Row(grad + number * grad_stride, y + number * stride, dx + number * count, count)
    total = tl.zeros([BLOCK], tl.float32)
    whole = count
    if TAIL:
        whole = count // BLOCK * BLOCK
    for start in tl.range(0, whole, BLOCK, num_stages=1):
        total += _row_products(row, start + tl.arange(0, BLOCK), LOG, False)
    if TAIL:
        total += _row_products(row, whole + tl.arange(0, BLOCK), LOG, True)
    summed = tl.sum(total, 0)
    if TAIL:
        _apply_row(row, whole + tl.arange(0, BLOCK), summed, LOG, True)
    for done in tl.range(0, whole, BLOCK, num_stages=1):
        _apply_row(row, whole - BLOCK - done + tl.arange(0, BLOCK), summed, LOG, False)


@jit
def part_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    statistics: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    part: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """The sum over ``part`` elements of each line, to ``statistics[split, line]``."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, 0, 0, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    upstream = view(grad, own, grad_stride, VARIANT)
    result = view(y, own, stride, VARIANT)
    split = tl.program_id(1)
    own_part = part_of(own, split, part)
    total = _sums(upstream, result, own_part, VARIANT)
    tl.store(statistics + split.to(tl.int64) * lines + own.line, total, own.exists)


@jit
def apply_backward_kernel(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    statistics: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    mask_step: tl.tensor,
    part: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Gradients of ``part`` elements of each line, after all of ``part_backward_kernel``."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    total = tl.zeros([LINES], tl.float32)
    for split in tl.range(0, tl.num_programs(1)):
        place = statistics + tl.cast(split, tl.int64) * lines + own.line
        total += tl.load(place, own.exists, other=0.0)
    upstream = view(grad, own, grad_stride, VARIANT)
    result = view(y, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    own_part = part_of(own, tl.program_id(1), part)
    target = view(dx, own, count, VARIANT)
    given = Gradient(upstream, result, target, Mask(mask, start, mask_step), scale)
    _apply(given, own_part, total, VARIANT)
