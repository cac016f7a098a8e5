"""The Triton kernels of the gradients of softmax and log-softmax, in the same kinds as forward's.

``dx = y * (grad - sum(grad * y))``, and of the logarithm ``dx = grad - exp(y) * sum(grad)``; see
``kernel`` and ``lines`` for the terms.
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


@jit
def _sum(upstream: tl.tensor, result: tl.tensor, LOG: tl.constexpr) -> tl.tensor:
    """What the derivative needs of whole lines."""
    if LOG:
        return tl.sum(upstream, 1)
    else:
        return tl.sum(upstream * result, 1)


@jit
def _derivative(
    upstream: tl.tensor, result: tl.tensor, total: tl.tensor, LOG: tl.constexpr
) -> tl.tensor:
    """The gradient of the scores, given what a line sums to."""
    if LOG:
        return upstream - exponential(result) * total[:, None]
    else:
        return result * (upstream - total[:, None])


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
    line, exists = own_lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    grad_base = line_base(line, count, inner, grad_stride, COLUMNS)
    base = line_base(line, count, inner, stride, COLUMNS)
    upstream = read(grad + position(grad_base, n, inner, COLUMNS), inside, CHECKED, "")
    result = read(y + position(base, n, inner, COLUMNS), inside, CHECKED, "").to(tl.float32)
    upstream = upstream.to(tl.float32)
    value = _derivative(upstream, result, _sum(upstream, result, LOG), LOG)
    place = position(line_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    write(dx + place, value, inside, CHECKED, "")


@jit
def _scaled(
    value: tl.tensor,
    mask: tl.tensor,
    start: tl.tensor,
    mask_step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    scale: tl.tensor,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    CHECKED: tl.constexpr,
) -> tl.tensor:
    """The gradient of the input, given that of the scores; zero where masked, even if NaN."""
    value *= scale
    if MASK == 1:
        keep = masked(mask, start, mask_step, n, inside, STEP, CHECKED)
        value = tl.where(keep, value, 0.0)
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
    line, exists = own_lines(lines, LINES, WIDE)
    n = tl.arange(0, BLOCK)
    inside = exists[:, None] & (n < count)[None, :]
    if WIDE:
        n = n.to(tl.int64)
    grad_base = line_base(line, count, inner, grad_stride, COLUMNS)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    upstream = read(grad + position(grad_base, n, inner, COLUMNS), inside, True, "")
    result = read(y + position(base, n, inner, COLUMNS), inside, True, "").to(tl.float32)
    upstream = upstream.to(tl.float32)
    value = _derivative(upstream, result, _sum(upstream, result, LOG), LOG)
    value = _scaled(value, mask, start, mask_step, n, inside, scale, MASK, STEP, True)
    place = position(line_base(line, count, inner, count, COLUMNS), n, inner, COLUMNS)
    write(dx + place, value, inside, True, "")


@jit
def _products(
    grad: tl.tensor,
    y: tl.tensor,
    grad_base: tl.tensor,
    base: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    inner: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    CHECKED: tl.constexpr,
) -> tl.tensor:
    """What is summed up over a line."""
    place = grad + position(grad_base, n, inner, COLUMNS)
    upstream = read(place, inside, CHECKED, "evict_last").to(tl.float32)
    if LOG:
        return upstream
    else:
        place = y + position(base, n, inner, COLUMNS)
        return upstream * read(place, inside, CHECKED, "evict_last").to(tl.float32)


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
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> tl.tensor:
    """What the derivative needs of elements ``first`` to ``last``."""
    total = tl.zeros([LINES, BLOCK], tl.float32)
    whole = first + tl.maximum(last - first, 0) // BLOCK * BLOCK
    for block in tl.range(first, whole, BLOCK, num_stages=STAGES):
        n = block + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        total += _products(grad, y, grad_base, base, n, inside, inner, LOG, COLUMNS, LINES > 1)
    if TAIL and whole < last:
        n = whole + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        total += _products(grad, y, grad_base, base, n, inside, inner, LOG, COLUMNS, True)
    return tl.sum(total, 1)


@jit
def _apply_block(
    grad: tl.tensor,
    y: tl.tensor,
    dx: tl.tensor,
    mask: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    grad_base: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    start: tl.tensor,
    mask_step: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
    total: tl.tensor,
    LOG: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK: tl.constexpr,
    STEP: tl.constexpr,
    CHECKED: tl.constexpr,
) -> None:
    """Gradients of elements ``n``."""
    place = grad + position(grad_base, n, inner, COLUMNS)
    upstream = read(place, inside, CHECKED, "evict_first").to(tl.float32)
    place = y + position(base, n, inner, COLUMNS)
    result = read(place, inside, CHECKED, "evict_first").to(tl.float32)
    value = _derivative(upstream, result, total, LOG)
    value = _scaled(value, mask, start, mask_step, n, inside, scale, MASK, STEP, CHECKED)
    write(dx + position(out, n, inner, COLUMNS), value, inside, CHECKED, "")


@jit
def _apply(
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
    start: tl.tensor,
    mask_step: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    scale: tl.tensor,
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
    """Gradients of elements ``first`` to ``last``."""
    out = line_base(line, count, inner, count, COLUMNS)
    whole = first + tl.maximum(last - first, 0) // BLOCK * BLOCK
    if TAIL and whole < last:
        n = whole + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        _apply_block(
            grad, y, dx, mask, n, inside, grad_base, base, out, start, mask_step, inner, scale,
            total, LOG, COLUMNS, MASK, STEP, True,
        )  # fmt: skip
    # Backwards, since the caches still have what was read last.
    for done in tl.range(0, whole - first, BLOCK, num_stages=STAGES):
        n = whole - BLOCK - done + tl.arange(0, BLOCK)
        inside = exists[:, None] & (n < last)[None, :]
        _apply_block(
            grad, y, dx, mask, n, inside, grad_base, base, out, start, mask_step, inner, scale,
            total, LOG, COLUMNS, MASK, STEP, LINES > 1,
        )  # fmt: skip


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
    if WIDE:
        count = count.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    grad_base = line_base(line, count, inner, grad_stride, COLUMNS)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = count * 0
    total = _sums(
        grad,
        y,
        first,
        count,
        exists,
        grad_base,
        base,
        inner,
        LOG,
        COLUMNS,
        LINES,
        BLOCK,
        TAIL,
        STAGES,
    )
    _apply(
        grad, y, dx, mask, first, count, line, exists, grad_base, base, start, mask_step,
        count, inner, scale, total, LOG, COLUMNS, MASK, STEP, LINES, BLOCK, TAIL, STAGES,
    )  # fmt: skip


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
    row = tl.program_id(0).to(tl.int64)
    if WIDE:
        count = count.to(tl.int64)
    grad += row * grad_stride
    y += row * stride
    dx += row * count
    total = tl.zeros([BLOCK], tl.float32)
    whole = count
    if TAIL:
        whole = count // BLOCK * BLOCK
    for block in tl.range(0, whole, BLOCK, num_stages=1):
        n = block + tl.arange(0, BLOCK)
        upstream = read(grad + n, n < count, False, "evict_last").to(tl.float32)
        if LOG:
            total += upstream
        else:
            total += upstream * read(y + n, n < count, False, "evict_last").to(tl.float32)
    if TAIL:
        n = whole + tl.arange(0, BLOCK)
        upstream = read(grad + n, n < count, True, "evict_last").to(tl.float32)
        if LOG:
            total += upstream
        else:
            total += upstream * read(y + n, n < count, True, "evict_last").to(tl.float32)
    summed = tl.sum(total, 0)
    if TAIL:
        n = whole + tl.arange(0, BLOCK)
        upstream = read(grad + n, n < count, True, "evict_first").to(tl.float32)
        result = read(y + n, n < count, True, "evict_first").to(tl.float32)
        if LOG:
            value = upstream - exponential(result) * summed
        else:
            value = result * (upstream - summed)
        write(dx + n, value, n < count, True, "")
    for done in tl.range(0, whole, BLOCK, num_stages=1):
        block = whole - BLOCK - done
        n = block + tl.arange(0, BLOCK)
        upstream = read(grad + n, n < count, False, "evict_first").to(tl.float32)
        result = read(y + n, n < count, False, "evict_first").to(tl.float32)
        if LOG:
            value = upstream - exponential(result) * summed
        else:
            value = result * (upstream - summed)
        write(dx + n, value, n < count, False, "")


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
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    grad_base = line_base(line, count, inner, grad_stride, COLUMNS)
    base = line_base(line, count, inner, stride, COLUMNS)
    split = tl.program_id(1)
    first = split * part
    last = tl.minimum(first + part, count)
    total = _sums(
        grad,
        y,
        first,
        last,
        exists,
        grad_base,
        base,
        inner,
        LOG,
        COLUMNS,
        LINES,
        BLOCK,
        TAIL,
        STAGES,
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
    TAIL: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Gradients of ``part`` elements of each line, after all of ``part_backward_kernel``."""
    if WIDE:
        count = count.to(tl.int64)
        part = part.to(tl.int64)
    line, exists = own_lines(lines, LINES, WIDE)
    total = tl.zeros([LINES], tl.float32)
    for split in tl.range(0, tl.num_programs(1)):
        total += tl.load(statistics + tl.cast(split, tl.int64) * lines + line, exists, other=0.0)
    grad_base = line_base(line, count, inner, grad_stride, COLUMNS)
    base = line_base(line, count, inner, stride, COLUMNS)
    start = mask_base(line, size1, size2, stride0, stride1, stride2, MASK)
    first = tl.program_id(1) * part
    last = tl.minimum(first + part, count)
    _apply(
        grad, y, dx, mask, first, last, line, exists, grad_base, base, start, mask_step,
        count, inner, scale, total, LOG, COLUMNS, MASK, STEP, LINES, BLOCK, TAIL, STAGES,
    )  # fmt: skip
