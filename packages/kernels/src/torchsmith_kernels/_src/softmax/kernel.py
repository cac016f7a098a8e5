"""The Triton kernels of softmax and log-softmax; see ``lines`` for their terms.

* ``plain`` and ``tile`` kernels hold whole lines in registers: one read, one write. The former is
  for what has neither mask nor factor, and has fewer arguments to pass.
* ``loop`` kernels go over each line twice: for what it sums to, and for the result. The first read
  asks the caches to keep what the second one takes.
* ``part`` and ``apply`` kernels do these two steps for one part of each line, so that many
  programs share a long line.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.softmax.lines import (
    exponential,
    line_base,
    mask_base,
    masked,
    own_lines,
    position,
    read,
    write,
)

#: What a maximum starts from. It is finite, so that no difference to it is NaN, and no finite
#: element is below it.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@jit
def _scores(
    x: tl.tensor,
    y: tl.tensor,
    mask: tl.tensor,
    base: tl.tensor,
    mask_start: tl.tensor,
    mask_step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    CHECKED: tl.constexpr,
    POLICY: tl.constexpr,
) -> tl.tensor:
    """What the softmax is taken of, minus infinity outside of the lines."""
    value = read(x + position(base, n, inner, COLUMNS), inside, CHECKED, POLICY)
    # The input is cast to the type of the result first.
    value = value.to(y.dtype.element_ty).to(tl.float32) * scale
    if MASK == 1:
        keep = masked(mask, mask_start, mask_step, n, inside, STEP, CHECKED)
        value = tl.where(keep, value, -float("inf"))
    elif MASK == 2:
        value += masked(mask, mask_start, mask_step, n, inside, STEP, CHECKED).to(tl.float32)
    if CHECKED:
        value = tl.where(inside, value, -float("inf"))
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
    line, exists = own_lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    base = line_base(line, count, inner, stride, COLUMNS)
    value = read(x + position(base, n, inner, COLUMNS), inside, CHECKED, "")
    value = value.to(y.dtype.element_ty).to(tl.float32)
    if CHECKED:
        value = tl.where(inside, value, -float("inf"))
    place = position(line_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    write(y + place, _normalized(value, LOG), inside, CHECKED, "")


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
    line, exists = own_lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    value = _scores(
        x, y, mask, base, start, mask_step, n, inside, inner, scale, COLUMNS, MASK, STEP, True, ""
    )
    place = position(line_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    write(y + place, _normalized(value, LOG), inside, True, "")


@jit
def _add(
    highest: tl.tensor,
    total: tl.tensor,
    value: tl.tensor,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> tl.tensor:
    """Maxima, and sums relative to them, with those of one more tile.

    Each group of elements, which one thread holds, has a maximum and a sum of its own, so that
    nothing is exchanged between threads, and sums are scaled once per group.
    """
    if COLUMNS:
        value = tl.reshape(value, [LINES, GROUP, BLOCK // GROUP])
        higher = tl.maximum(highest, tl.max(value, 1))
        powers = tl.sum(exponential(value - higher[:, None, :]), 1)
    else:
        value = tl.reshape(value, [LINES, BLOCK // GROUP, GROUP])
        higher = tl.maximum(highest, tl.max(value, 2))
        powers = tl.sum(exponential(value - higher[:, :, None]), 2)
    return higher, total * exponential(highest - higher) + powers


@jit
def _statistics(
    x: tl.tensor,
    y: tl.tensor,
    mask: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    exists: tl.tensor,
    base: tl.tensor,
    start: tl.tensor,
    mask_step: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """Maximum of elements ``first`` to ``last``, and the sum of exponentials relative to it."""
    highest = tl.full([LINES, BLOCK // GROUP], LOWEST, tl.float32)
    total = tl.zeros([LINES, BLOCK // GROUP], tl.float32)
    whole = first + tl.maximum(last - first, 0) // BLOCK * BLOCK
    for block in tl.range(first, whole, BLOCK, num_stages=STAGES):
        n = block + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, y, mask, base, start, mask_step, n, inside, inner, scale,
            COLUMNS, MASK, STEP, LINES > 1, "evict_last",
        )  # fmt: skip
        highest, total = _add(highest, total, value, COLUMNS, LINES, BLOCK, GROUP)
    if TAIL and whole < last:
        n = whole + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, y, mask, base, start, mask_step, n, inside, inner, scale,
            COLUMNS, MASK, STEP, True, "evict_last",
        )  # fmt: skip
        highest, total = _add(highest, total, value, COLUMNS, LINES, BLOCK, GROUP)
    top = tl.max(highest, 1)
    return top, tl.sum(total * exponential(highest - top[:, None]), 1)


@jit
def _result(value: tl.tensor, top: tl.tensor, shift: tl.tensor, LOG: tl.constexpr) -> tl.tensor:
    """The softmax of scores; ``shift`` is one over the sum, with ``LOG`` its logarithm."""
    value -= top[:, None]
    if LOG:
        return value - shift[:, None]
    else:
        return exponential(value) * shift[:, None]


@jit
def _apply(
    x: tl.tensor,
    y: tl.tensor,
    mask: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    line: tl.tensor,
    exists: tl.tensor,
    base: tl.tensor,
    start: tl.tensor,
    mask_step: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    top: tl.tensor,
    total: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Results of elements ``first`` to ``last``."""
    if LOG:
        shift = tl.log(total)
    else:
        shift = 1.0 / total
    out = line_base(line, count, inner, count, COLUMNS)
    whole = first + tl.maximum(last - first, 0) // BLOCK * BLOCK
    if TAIL and whole < last:
        n = whole + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, y, mask, base, start, mask_step, n, inside, inner, scale,
            COLUMNS, MASK, STEP, True, "evict_first",
        )  # fmt: skip
        place = y + position(out, n, inner, COLUMNS)
        write(place, _result(value, top, shift, LOG), inside, True, "evict_first")
    # Backwards, since the caches still have what was read last.
    for done in tl.range(0, whole - first, BLOCK, num_stages=STAGES):
        n = whole - BLOCK - done + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, y, mask, base, start, mask_step, n, inside, inner, scale,
            COLUMNS, MASK, STEP, LINES > 1, "evict_first",
        )  # fmt: skip
        place = y + position(out, n, inner, COLUMNS)
        write(place, _result(value, top, shift, LOG), inside, LINES > 1, "evict_first")


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
    if WIDE:
        count = count.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = count * 0
    top, total = _statistics(
        x, y, mask, first, count, exists, base, start, mask_step, inner, scale,
        COLUMNS, MASK, STEP, LINES, BLOCK, GROUP, TAIL, STAGES,
    )  # fmt: skip
    _apply(
        x, y, mask, first, count, line, exists, base, start, mask_step, count, inner, scale,
        top, total, LOG, COLUMNS, MASK, STEP, LINES, BLOCK, TAIL, STAGES,
    )  # fmt: skip


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
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, count)
    top, total = _statistics(
        x, y, mask, first, last, exists, base, start, mask_step, inner, scale,
        COLUMNS, MASK, STEP, LINES, BLOCK, GROUP, TAIL, STAGES,
    )  # fmt: skip
    place = split.to(tl.int64) * lines + line
    tl.store(statistics + place, top, exists)
    tl.store(statistics + tl.num_programs(1).to(tl.int64) * lines + place, total, exists)


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
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    # One at a time: as a tile of their own they would take the others' layout with them.
    splits = tl.num_programs(1)
    top = tl.full([LINES], LOWEST, tl.float32)
    total = tl.zeros([LINES], tl.float32)
    for split in tl.range(0, splits):
        place = statistics + tl.cast(split, tl.int64) * lines + line
        other = tl.load(place, exists, other=LOWEST)
        other_total = tl.load(place + splits.to(tl.int64) * lines, exists, other=0.0)
        higher = tl.maximum(top, other)
        total *= exponential(top - higher)
        total += other_total * exponential(other - higher)
        top = higher
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, count)
    _apply(
        x, y, mask, first, last, line, exists, base, start, mask_step, count, inner, scale,
        top, total, LOG, COLUMNS, MASK, STEP, LINES, BLOCK, TAIL, STAGES,
    )  # fmt: skip
