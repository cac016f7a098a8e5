"""The Triton kernels of softmax and log-softmax.

The softmax runs over ``count`` elements of each of ``lines`` lines. A line is a row, whose elements
are adjacent, or with ``COLUMNS`` a column: ``inner`` columns lie side by side, so that its elements
are ``inner`` apart. A program holds a tile of ``LINES`` lines by ``BLOCK`` elements.

* ``tile`` kernels hold whole lines in registers: one read, one write.
* ``loop`` kernels go over each line twice: for what it sums to, and for the result.
* ``part`` and ``apply`` kernels do these two steps for one part of each line, so that many
  programs share a long line.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit

#: What a maximum starts from. It is finite, so that no difference to it is NaN, and no finite
#: element is below it.
LOWEST = tl.constexpr(-3.4028234663852886e38)


@jit
def _lines(lines: tl.tensor, LINES: tl.constexpr, WIDE: tl.constexpr) -> tl.tensor:
    """The lines of this program, and which of them exist."""
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    line = first * LINES + tl.arange(0, LINES)
    return line, line < lines


@jit
def _base(
    line: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    stride: tl.tensor,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Where lines start; rows are ``stride`` apart, columns lie in a contiguous tensor."""
    if COLUMNS:
        return (line // inner).to(tl.int64) * (count.to(tl.int64) * inner) + line % inner
    else:
        return line.to(tl.int64) * stride


@jit
def _mask_base(
    line: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    MASK: tl.constexpr,
) -> tl.tensor:
    """Where the mask's lines start: a line's number is split into three indices."""
    if MASK == 0:
        return line
    else:
        outer = line // size2
        offset = (line % size2).to(tl.int64) * stride2 + (outer % size1).to(tl.int64) * stride1
        return offset + (outer // size1).to(tl.int64) * stride0


@jit
def _position(
    base: tl.tensor, n: tl.tensor, inner: tl.tensor, COLUMNS: tl.constexpr
) -> tl.tensor:
    """Offsets of elements ``n`` of lines that start at ``base``."""
    if COLUMNS:
        return base[:, None] + (n * inner)[None, :]
    else:
        return base[:, None] + n[None, :]


@jit
def _masked(
    mask: tl.tensor,
    mask_base: tl.tensor,
    mask_step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    STEP: tl.constexpr,
) -> tl.tensor:
    """The mask's values; along a line they are the same (0), adjacent (1) or elsewhere (2)."""
    if STEP == 0:
        place = mask_base[:, None] + (n * 0)[None, :]
    elif STEP == 1:
        place = mask_base[:, None] + n[None, :]
    else:
        place = mask_base[:, None] + (n * mask_step)[None, :]
    return tl.load(mask + place, inside, other=0)


@jit
def _scores(
    x: tl.tensor,
    mask: tl.tensor,
    base: tl.tensor,
    mask_base: tl.tensor,
    mask_step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    DTYPE: tl.constexpr,
) -> tl.tensor:
    """What the softmax is taken of, minus infinity outside of the lines."""
    value = tl.load(x + _position(base, n, inner, COLUMNS), inside, other=0)
    value = value.to(DTYPE).to(tl.float32) * scale
    if MASK == 1:
        value = tl.where(_masked(mask, mask_base, mask_step, n, inside, STEP), value, -float("inf"))
    elif MASK == 2:
        value += _masked(mask, mask_base, mask_step, n, inside, STEP).to(tl.float32)
    return tl.where(inside, value, -float("inf"))


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
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Whole lines at once."""
    if WIDE:
        count = count.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    value = _scores(
        x, mask, base, mask_base, mask_step, n, inside, inner, scale, COLUMNS, MASK, STEP, DTYPE
    )
    value -= tl.max(value, 1)[:, None]
    power = tl.exp(value)
    total = tl.sum(power, 1)
    if LOG:
        result = value - tl.log(total)[:, None]
    else:
        result = power * (1.0 / total)[:, None]
    place = _position(_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    tl.store(y + place, result.to(DTYPE), inside)


@jit
def _statistics(
    x: tl.tensor,
    mask: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    exists: tl.tensor,
    base: tl.tensor,
    mask_base: tl.tensor,
    mask_step: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    DTYPE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """Maximum of elements ``first`` to ``last``, and the sum of exponentials relative to it.

    Each place of the tile keeps its own maximum and sum, so that the loop exchanges nothing
    between threads and needs one exponential per element.
    """
    highest = tl.full([LINES, BLOCK], LOWEST, tl.float32)
    total = tl.zeros([LINES, BLOCK], tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, mask, base, mask_base, mask_step, n, inside, inner, scale, COLUMNS, MASK, STEP, DTYPE
        )
        higher = value - highest
        power = tl.exp(-tl.abs(higher))
        total = tl.where(higher > 0, total * power + 1.0, total + power)
        highest = tl.maximum(highest, value)
    top = tl.max(highest, 1)
    return top, tl.sum(total * tl.exp(highest - top[:, None]), 1)


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
    mask_base: tl.tensor,
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
    DTYPE: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Results of elements ``first`` to ``last``."""
    if LOG:
        shift = tl.log(total)
    else:
        shift = 1.0 / total
    place = _base(line, count, inner, count, COLUMNS)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        value = _scores(
            x, mask, base, mask_base, mask_step, n, inside, inner, scale, COLUMNS, MASK, STEP, DTYPE
        )
        value -= top[:, None]
        if LOG:
            result = value - shift[:, None]
        else:
            result = tl.exp(value) * shift[:, None]
        tl.store(y + _position(place, n, inner, COLUMNS), result.to(DTYPE), inside)


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
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Lines of any length, read twice; the second time often from a cache."""
    if WIDE:
        count = count.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = count * 0
    top, total = _statistics(
        x, mask, first, count, exists, base, mask_base, mask_step, inner, scale,
        COLUMNS, MASK, STEP, DTYPE, LINES, BLOCK, STAGES,
    )  # fmt: skip
    _apply(
        x, y, mask, first, count, line, exists, base, mask_base, mask_step, count, inner, scale,
        top, total, LOG, COLUMNS, MASK, STEP, DTYPE, BLOCK, STAGES,
    )  # fmt: skip


@jit
def part_kernel(
    x: tl.tensor,
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
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Maximum and sum of ``part`` elements of each line, to ``statistics[:, split, line]``."""
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, count)
    top, total = _statistics(
        x, mask, first, last, exists, base, mask_base, mask_step, inner, scale,
        COLUMNS, MASK, STEP, DTYPE, LINES, BLOCK, STAGES,
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
    DTYPE: tl.constexpr,
    WIDE: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """The result of ``part`` elements of each line, after all of ``part_kernel``."""
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    splits = tl.num_programs(1)
    split = tl.arange(0, SPLITS)
    given = exists[:, None] & (split < splits)[None, :]
    place = line[:, None] + split.to(tl.int64)[None, :] * lines
    tops = tl.load(statistics + place, given, other=LOWEST)
    totals = tl.load(statistics + splits.to(tl.int64) * lines + place, given, other=0.0)
    top = tl.max(tops, 1)
    total = tl.sum(totals * tl.exp(tops - top[:, None]), 1)

    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, count)
    _apply(
        x, y, mask, first, last, line, exists, base, mask_base, mask_step, count, inner, scale,
        top, total, LOG, COLUMNS, MASK, STEP, DTYPE, BLOCK, STAGES,
    )  # fmt: skip


@jit
def _gradients(
    grad: tl.tensor,
    y: tl.tensor,
    grad_base: tl.tensor,
    base: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    inner: tl.tensor,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """The upstream gradient and the softmax's result."""
    upstream = tl.load(grad + _position(grad_base, n, inner, COLUMNS), inside, other=0)
    result = tl.load(y + _position(base, n, inner, COLUMNS), inside, other=0)
    return upstream.to(tl.float32), result.to(tl.float32)


@jit
def _derivative(
    upstream: tl.tensor,
    result: tl.tensor,
    total: tl.tensor,
    mask: tl.tensor,
    mask_base: tl.tensor,
    mask_step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    scale: tl.tensor,
    LOG: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
) -> tl.tensor:
    """The gradient of the input, given what a line sums to."""
    if LOG:
        value = (upstream - tl.exp(result) * total[:, None]) * scale
    else:
        value = result * (upstream - total[:, None]) * scale
    if MASK == 1:
        value = tl.where(_masked(mask, mask_base, mask_step, n, inside, STEP), value, 0.0)
    return value


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
    if WIDE:
        count = count.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    grad_base = _base(line, count, inner, grad_stride, COLUMNS)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    upstream, result = _gradients(grad, y, grad_base, base, n, inside, inner, COLUMNS)
    if LOG:
        total = tl.sum(upstream, 1)
    else:
        total = tl.sum(upstream * result, 1)
    value = _derivative(
        upstream, result, total, mask, mask_base, mask_step, n, inside, scale, LOG, MASK, STEP
    )
    place = _position(_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    tl.store(dx + place, value.to(dx.dtype.element_ty), inside)


@jit
def _sums(
    grad: tl.tensor,
    y: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    exists: tl.tensor,
    grad_base: tl.tensor,
    base: tl.tensor,
    inner: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    LINES: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """What the derivative needs of elements ``first`` to ``last``."""
    total = tl.zeros([LINES, BLOCK], tl.float32)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        if LOG:
            place = _position(grad_base, n, inner, COLUMNS)
            total += tl.load(grad + place, inside, other=0).to(tl.float32)
        else:
            upstream, result = _gradients(grad, y, grad_base, base, n, inside, inner, COLUMNS)
            total += upstream * result
    return tl.sum(total, 1)


@jit
def _apply_backward(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    mask: tl.tensor,
    first: tl.tensor,
    last: tl.tensor,
    line: tl.tensor,
    exists: tl.tensor,
    grad_base: tl.tensor,
    base: tl.tensor,
    mask_base: tl.tensor,
    mask_step: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    total: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Gradients of elements ``first`` to ``last``."""
    place = _base(line, count, inner, count, COLUMNS)
    for start in tl.range(first, last, BLOCK, num_stages=STAGES):
        n = start + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        upstream, result = _gradients(grad, y, grad_base, base, n, inside, inner, COLUMNS)
        value = _derivative(
            upstream, result, total, mask, mask_base, mask_step, n, inside, scale, LOG, MASK, STEP
        )
        position = _position(place, n, inner, COLUMNS)
        tl.store(dx + position, value.to(dx.dtype.element_ty), inside)


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
    STAGES: tl.constexpr,
) -> None:
    """Lines of any length, read twice."""
    if WIDE:
        count = count.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    grad_base = _base(line, count, inner, grad_stride, COLUMNS)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = count * 0
    total = _sums(
        grad, y, first, count, exists, grad_base, base, inner, LOG, COLUMNS, LINES, BLOCK, STAGES
    )
    _apply_backward(
        grad, y, dx, mask, first, count, line, exists, grad_base, base, mask_base, mask_step,
        count, inner, scale, total, LOG, COLUMNS, MASK, STEP, BLOCK, STAGES,
    )  # fmt: skip


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
    STAGES: tl.constexpr,
) -> None:
    """The sum over ``part`` elements of each line, to ``statistics[split, line]``."""
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    grad_base = _base(line, count, inner, grad_stride, COLUMNS)
    base = _base(line, count, inner, stride, COLUMNS)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, count)
    total = _sums(
        grad, y, first, last, exists, grad_base, base, inner, LOG, COLUMNS, LINES, BLOCK, STAGES
    )
    tl.store(statistics + split.to(tl.int64) * lines + line, total, exists)


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
    STAGES: tl.constexpr,
    SPLITS: tl.constexpr,
) -> None:
    """Gradients of ``part`` elements of each line, after all of ``part_backward_kernel``."""
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = _lines(lines, LINES, WIDE)
    split = tl.arange(0, SPLITS)
    given = exists[:, None] & (split < tl.num_programs(1))[None, :]
    place = line[:, None] + split.to(tl.int64)[None, :] * lines
    total = tl.sum(tl.load(statistics + place, given, other=0.0), 1)

    grad_base = _base(line, count, inner, grad_stride, COLUMNS)
    base = _base(line, count, inner, stride, COLUMNS)
    mask_base = _mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, count)
    _apply_backward(
        grad, y, dx, mask, first, last, line, exists, grad_base, base, mask_base, mask_step,
        count, inner, scale, total, LOG, COLUMNS, MASK, STEP, BLOCK, STAGES,
    )  # fmt: skip
