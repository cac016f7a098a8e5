"""The Triton kernels of softmax and log-softmax; see ``lines`` for their terms.

* ``plain`` and ``tile`` kernels hold whole lines in registers: one read, one write. The former is
  for what has neither mask nor factor, and has fewer arguments to pass.
* ``loop`` kernels go over each line twice: for what it sums to, and for the result. The first read
  asks the caches to keep what the second one takes.
* ``part`` and ``apply`` kernels do these two steps for one part of each line, so that many
  programs share a long line.
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

#: What a maximum starts from. It is finite, so that no difference to it is NaN, and no finite
#: element is below it.
LOWEST = tl.constexpr(-3.4028234663852886e38)


class Scores(NamedTuple):
    """What the softmax is taken of: ``x`` in the type that ``y`` points to, scaled and masked."""

    x: View
    y: tl.tensor
    mask: Mask
    scale: tl.tensor


@jit
def _read_scores(
    given: Scores, tile: Tile, VARIANT: tl.constexpr, CHECKED: tl.constexpr, POLICY: tl.constexpr
) -> tl.tensor:
    """The scores of a tile, minus infinity where there are none."""
    value = read(given.x, tile, VARIANT, CHECKED, POLICY)
    # The input is cast to the type of the result first.
    value = value.to(given.y.dtype.element_ty).to(tl.float32) * given.scale
    if VARIANT.MASK == 1:
        keep = read_mask(given.mask, tile, VARIANT, CHECKED)
        value = tl.where(keep, value, -float("inf"))
    elif VARIANT.MASK == 2:
        value += read_mask(given.mask, tile, VARIANT, CHECKED).to(tl.float32)
    if CHECKED:
        value = tl.where(tile.inside, value, -float("inf"))
    return value


@jit
def _normalized(value: tl.tensor, LOG: tl.constexpr) -> tl.tensor:
    """The softmax along the second axis."""
    value -= tl.max(value, 1)[:, None]
    power = exponential(value)
    total = tl.sum(power, 1)
    if LOG:
        return value - tl.log(total)[:, None]
    else:
        return power * (1.0 / total)[:, None]


@jit
def plain_kernel(
    x: tl.tensor,
    y: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
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
    value = read(view(x, own, stride, VARIANT), tile, VARIANT, CHECKED, "")
    value = value.to(y.dtype.element_ty).to(tl.float32)
    if CHECKED:
        value = tl.where(tile.inside, value, -float("inf"))
    target = places(view(y, own, count, VARIANT), tile, VARIANT)
    store(target, _normalized(value, LOG), tile.inside, CHECKED, "")


@jit
def tile_kernel(
    x: tl.tensor,
    y: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
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
    source = view(x, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    scores = Scores(source, y, Mask(mask, start, mask_step), scale)
    value = _read_scores(scores, tile, VARIANT, True, "")
    target = places(view(y, own, count, VARIANT), tile, VARIANT)
    store(target, _normalized(value, LOG), tile.inside, True, "")


@jit
def _add(
    highest: tl.tensor,
    total: tl.tensor,
    value: tl.tensor,
    VARIANT: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Maxima, and sums relative to them, with those of one more tile.

    Each group of elements, which one thread holds, has a maximum and a sum of its own, so that
    nothing is exchanged between threads, and sums are scaled once per group.
    """
    if VARIANT.COLUMNS:
        value = tl.reshape(value, [VARIANT.LINES, GROUP, VARIANT.BLOCK // GROUP])
        higher = tl.maximum(highest, tl.max(value, 1))
        powers = tl.sum(exponential(value - higher[:, None, :]), 1)
    else:
        value = tl.reshape(value, [VARIANT.LINES, VARIANT.BLOCK // GROUP, GROUP])
        higher = tl.maximum(highest, tl.max(value, 2))
        powers = tl.sum(exponential(value - higher[:, :, None]), 2)
    return higher, total * exponential(highest - higher) + powers


@jit
def _statistics(
    scores: Scores, part: Part, VARIANT: tl.constexpr, GROUP: tl.constexpr
) -> tl.tensor:
    """Maxima of the scores, and sums of exponentials relative to them."""
    highest = tl.full([VARIANT.LINES, VARIANT.BLOCK // GROUP], LOWEST, tl.float32)
    total = tl.zeros([VARIANT.LINES, VARIANT.BLOCK // GROUP], tl.float32)
    whole = whole_end(part, VARIANT)
    for start in tl.range(part.first, whole, VARIANT.BLOCK, num_stages=VARIANT.STAGES):
        tile = block_at(start, part, VARIANT)
        value = _read_scores(scores, tile, VARIANT, VARIANT.LINES > 1, "evict_last")
        highest, total = _add(highest, total, value, VARIANT, GROUP)
    if VARIANT.TAIL and whole < part.last:
        value = _read_scores(scores, block_at(whole, part, VARIANT), VARIANT, True, "evict_last")
        highest, total = _add(highest, total, value, VARIANT, GROUP)
    top = tl.max(highest, 1)
    return top, tl.sum(total * exponential(highest - top[:, None]), 1)


class Sums(NamedTuple):
    """Of whole lines: the maximum, and one over the sum, or with ``LOG`` the sum's logarithm."""

    top: tl.tensor
    shift: tl.tensor


@jit
def _sums(top: tl.tensor, total: tl.tensor, VARIANT: tl.constexpr) -> Sums:
    if VARIANT.LOG:
        return Sums(top, tl.log(total))
    else:
        return Sums(top, 1.0 / total)


@jit
def _apply_tile(
    scores: Scores, y: View, tile: Tile, sums: Sums, VARIANT: tl.constexpr, CHECKED: tl.constexpr
) -> None:
    value = _read_scores(scores, tile, VARIANT, CHECKED, "evict_first")
    target = places(y, tile, VARIANT)
    value -= sums.top[:, None]
    if VARIANT.LOG:
        value -= sums.shift[:, None]
    else:
        value = exponential(value) * sums.shift[:, None]
    store(target, value, tile.inside, CHECKED, "evict_first")


@jit
def _apply(scores: Scores, y: View, part: Part, sums: Sums, VARIANT: tl.constexpr) -> None:
    """Writes the results."""
    whole = whole_end(part, VARIANT)
    if VARIANT.TAIL and whole < part.last:
        _apply_tile(scores, y, block_at(whole, part, VARIANT), sums, VARIANT, True)
    # Backwards, since the caches still have what was read last.
    for done in tl.range(0, whole - part.first, VARIANT.BLOCK, num_stages=VARIANT.STAGES):
        tile = block_at(whole - VARIANT.BLOCK - done, part, VARIANT)
        _apply_tile(scores, y, tile, sums, VARIANT, VARIANT.LINES > 1)


@jit
def loop_kernel(
    x: tl.tensor,
    y: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
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
    GROUP: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Lines of any length, read twice; the second time often from a cache."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    source = view(x, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    scores = Scores(source, y, Mask(mask, start, mask_step), scale)
    whole = Part(own.exists, count * 0, count)
    top, total = _statistics(scores, whole, VARIANT, GROUP)
    sums = _sums(top, total, VARIANT)
    _apply(scores, view(y, own, count, VARIANT), whole, sums, VARIANT)


@jit
def part_kernel(
    x: tl.tensor,
    y: tl.tensor,
    statistics: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    stride: tl.tensor,
    scale: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    mask_step: tl.tensor,
    part: tl.tensor,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Maximum and sum of ``part`` elements of each line, to ``statistics[:, split, line]``."""
    VARIANT: tl.constexpr = Variant(False, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    source = view(x, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    scores = Scores(source, y, Mask(mask, start, mask_step), scale)
    split = tl.program_id(1)
    own_part = part_of(own, split, part)
    top, total = _statistics(scores, own_part, VARIANT, GROUP)
    place = split.to(tl.int64) * lines + own.line
    tl.store(statistics + place, top, own.exists)
    tl.store(statistics + tl.num_programs(1).to(tl.int64) * lines + place, total, own.exists)


@jit
def apply_kernel(
    x: tl.tensor,
    y: tl.tensor,
    statistics: tl.tensor,
    mask: tl.tensor,
    lines: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
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
    """The result of ``part`` elements of each line, after all of ``part_kernel``."""
    VARIANT: tl.constexpr = Variant(LOG, COLUMNS, WIDE, LINES, BLOCK, MASK, STEP, TAIL, STAGES)
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    own = own_lines(lines, count, inner, VARIANT)
    # One at a time: as a tile of their own they would take the others' layout with them.
    splits = tl.num_programs(1)
    top = tl.full([LINES], LOWEST, tl.float32)
    total = tl.zeros([LINES], tl.float32)
    for split in tl.range(0, splits):
        place = statistics + tl.cast(split, tl.int64) * lines + own.line
        other = tl.load(place, own.exists, other=LOWEST)
        other_total = tl.load(place + splits.to(tl.int64) * lines, own.exists, other=0.0)
        higher = tl.maximum(top, other)
        total *= exponential(top - higher)
        total += other_total * exponential(other - higher)
        top = higher
    source = view(x, own, stride, VARIANT)
    start = mask_start(own.line, size1, size2, stride0, stride1, stride2, VARIANT)
    scores = Scores(source, y, Mask(mask, start, mask_step), scale)
    own_part = part_of(own, tl.program_id(1), part)
    sums = _sums(top, total, VARIANT)
    _apply(scores, view(y, own, count, VARIANT), own_part, sums, VARIANT)
