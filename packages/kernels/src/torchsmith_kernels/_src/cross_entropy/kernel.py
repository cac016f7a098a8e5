"""The Triton kernels of cross entropy, and the parts that the fused linear version shares.

A program reads one row of logits. Each lane keeps a maximum and a sum of exponentials of its own
that are rescaled as the maximum grows (Milakov and Gimelshein, 2018), so that lanes meet only once,
at the end of the row.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def tanh(x: tl.tensor) -> tl.tensor:
    """Hyperbolic tangent to about one rounding; by exponentials alone, small ``x`` would lose."""
    square = x * x
    small = -5.70498872745e-3 * square + 2.06390887954e-2
    small = small * square - 5.37397155531e-2
    small = small * square + 1.33314422036e-1
    small = small * square - 3.33332819422e-1
    small = small * square * x + x
    large = 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0)
    return tl.where(tl.abs(x) < 0.625, small, large)


@jit
def bent(x: tl.tensor, softcap: tl.tensor) -> tl.tensor:
    """``tanh(x / softcap)`` in float32.

    ``1 - 2 / (exp(2 x) + 1)`` is right to 1e-7 of the cap, far below what 16 bits hold.
    """
    value = x.to(tl.float32) * (1.0 / softcap)
    if x.dtype == tl.float32:
        return tanh(value)
    return 1.0 - 2.0 / (tl.exp(2.0 * value) + 1.0)


@jit
def capped(x: tl.tensor, softcap: tl.tensor, SOFTCAP: tl.constexpr) -> tl.tensor:
    """Logits in float32 after the soft cap, if there is one."""
    if SOFTCAP:
        return softcap * bent(x, softcap)
    return x.to(tl.float32)


@jit
def add_block(
    x: tl.tensor,
    largest: tl.tensor,
    total: tl.tensor,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Adds a block to the lanes' maxima and sums of exponentials.

    ``GROUP`` neighbours, which one thread loads at once, share a maximum: one rescaling for all.
    """
    x = tl.reshape(x, (BLOCK // GROUP, GROUP))
    grown = tl.maximum(largest, tl.max(x, axis=1))
    # All -inf so far: -inf - -inf would be NaN.
    base = tl.where(grown == float("-inf"), 0.0, grown)
    total = total * tl.exp(largest - base) + tl.sum(tl.exp(x - base[:, None]), axis=1)
    return grown, total


@jit
def group_sums(x: tl.tensor, BLOCK: tl.constexpr, GROUP: tl.constexpr) -> tl.tensor:
    """Sums of the groups of ``add_block``."""
    return tl.sum(tl.reshape(x, (BLOCK // GROUP, GROUP)), axis=1)


@jit
def load_block(
    block: tl.tensor, keep: tl.tensor, room: tl.tensor, BLOCK: tl.constexpr
) -> tl.tensor:
    """A block of logits; without a mask where ``room`` elements are there to be read.

    A mask that starts or ends anywhere would make the loads narrow.
    """
    if room >= BLOCK:
        x = tl.load(block)
    else:
        x = tl.load(block, keep, other=0.0)
    return x


@jit
def row_statistics(
    row: tl.tensor,
    weight: tl.tensor,
    start: tl.tensor,
    end: tl.tensor,
    room: tl.tensor,
    used: tl.tensor,
    softcap: tl.tensor,
    SOFTCAP: tl.constexpr,
    SMOOTHING: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """The largest logit of a row, the logarithm of the sum of exponentials relative to it, and, for
    label smoothing, the weighted sum of its logits.

    The first two add up to ``logsumexp``; together they hold what its rounding would lose.

    Args:
        row: where the row's first block starts; aligned.
        weight: class weights, or None.
        start: first element in that block that belongs to the row.
        end: one past the row's last element, counted from ``row``.
        room: elements from ``row`` on that can be read.
        used: whether the row counts; if not, no more than its first block is read.
        softcap: the soft cap.
        SOFTCAP: whether it is applied.
        SMOOTHING: whether the sum of logits is wanted.
        BLOCK: elements per step.
        GROUP: elements that share a maximum.
        STAGES: loads in flight.
    """
    lane = tl.arange(0, BLOCK)
    largest = tl.full((BLOCK // GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK // GROUP,), tl.float32)
    logits = tl.zeros((BLOCK // GROUP,), tl.float32)
    # The first block does not wait for the row's class.
    keep = (lane >= start) & (lane < end)
    x = capped(load_block(row + lane, keep, room, BLOCK), softcap, SOFTCAP)
    if SMOOTHING:
        scale = 1.0
        if weight is not None:
            scale = tl.load(weight + lane - start, keep, other=0.0).to(tl.float32)
        logits += group_sums(tl.where(keep, x * scale, 0.0), BLOCK, GROUP)
    x = tl.where(keep, x, float("-inf"))
    largest, total = add_block(x, largest, total, BLOCK, GROUP)
    stop = tl.where(used, end, 0)
    full = stop // BLOCK * BLOCK
    for offset in tl.range(BLOCK, full, BLOCK, num_stages=STAGES):
        x = capped(tl.load(row + offset + lane), softcap, SOFTCAP)
        if SMOOTHING:
            scale = 1.0
            if weight is not None:
                scale = tl.load(weight + offset + lane - start).to(tl.float32)
            logits += group_sums(x * scale, BLOCK, GROUP)
        largest, total = add_block(x, largest, total, BLOCK, GROUP)
    rest = tl.maximum(full, BLOCK)
    if rest < stop:
        keep = rest + lane < end
        x = capped(load_block(row + rest + lane, keep, room - rest, BLOCK), softcap, SOFTCAP)
        if SMOOTHING:
            scale = 1.0
            if weight is not None:
                scale = tl.load(weight + rest + lane - start, keep, other=0.0).to(tl.float32)
            logits += group_sums(tl.where(keep, x * scale, 0.0), BLOCK, GROUP)
        x = tl.where(keep, x, float("-inf"))
        largest, total = add_block(x, largest, total, BLOCK, GROUP)
    top = tl.max(largest, axis=0)
    base = tl.where(top == float("-inf"), 0.0, top)
    rest = tl.log(tl.sum(total * tl.exp(largest - base), axis=0))
    return base, rest, tl.sum(logits, axis=0)


@jit
def row_target(
    x: tl.tensor,
    offset: tl.tensor,
    label: tl.tensor,
    weight: tl.tensor,
    weight_sum: tl.tensor,
    width: tl.tensor,
    ignore_index: tl.tensor,
    softcap: tl.tensor,
    SOFTCAP: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor, tl.tensor]:
    """Logit and weight of a row's class, the sum of all weights, and whether the row counts.

    A class that does not exist is never read; its logit is NaN, which makes the row's loss NaN.
    """
    used = label != ignore_index
    exists = (label >= 0) & (label < width)
    logit = capped(tl.load(x + offset + label, used & exists, other=0.0), softcap, SOFTCAP)
    logit = tl.where(exists, logit, float("nan"))
    scale = tl.where(used, 1.0, 0.0)
    scales = width.to(tl.float32)
    if weight is not None:
        scale = tl.load(weight + label, used & exists, other=0.0).to(tl.float32)
        scales = tl.load(weight_sum)
    return logit, scale, scales, used


@jit
def two_parts(base: tl.tensor, rest: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    """``base + rest``, rounded, and what the rounding lost (Knuth's sum, whichever is larger)."""
    total = base + rest
    part = total - base
    return total, (base - (total - part)) + (rest - part)


@jit
def row_loss(
    base: tl.tensor,
    rest: tl.tensor,
    logits: tl.tensor,
    logit: tl.tensor,
    scale: tl.tensor,
    scales: tl.tensor,
    used: tl.tensor,
    width: tl.tensor,
    smoothing: tl.tensor,
    z_loss: tl.tensor,
    SMOOTHING: tl.constexpr,
) -> tl.tensor:
    """The loss of a row; ``base + rest`` is its ``logsumexp``."""
    lse = base + rest
    loss = scale * ((base - logit) + rest)
    if SMOOTHING:
        loss = (1.0 - smoothing) * loss + smoothing / width * (lse * scales - logits)
    loss += z_loss * lse * lse
    return tl.where(used, loss, 0.0)


@jit
def gradient(
    x: tl.tensor,
    column: tl.tensor,
    lse: tl.tensor,
    lost: tl.tensor,
    label: tl.tensor,
    scale: tl.tensor,
    scales: tl.tensor,
    upstream: tl.tensor,
    weight: tl.tensor,
    keep: tl.tensor,
    width: tl.tensor,
    smoothing: tl.tensor,
    z_loss: tl.tensor,
    softcap: tl.tensor,
    SMOOTHING: tl.constexpr,
    SOFTCAP: tl.constexpr,
) -> tl.tensor:
    """The gradient with respect to a block of logits ``x`` at ``column``.

    ``lse`` and ``lost`` are from ``two_parts``.
    """
    slope = 1.0
    if SOFTCAP:
        share_of_cap = bent(x, softcap)
        slope = 1.0 - share_of_cap * share_of_cap
        x = softcap * share_of_cap
    x = x.to(tl.float32)
    hit = scale
    share = scale
    if SMOOTHING:
        hit = (1.0 - smoothing) * scale
        share = hit + smoothing / width * scales
    share += 2.0 * z_loss * lse
    result = tl.exp(x - lse) * (tl.exp(-lost) * share * upstream)
    if SMOOTHING:
        even = smoothing / width * upstream
        if weight is not None:
            result -= even * tl.load(weight + column, keep, other=0.0).to(tl.float32)
        else:
            result -= even
    result = tl.where(column == label, result - hit * upstream, result)
    if SOFTCAP:
        result *= slope
    return result


@jit
def forward_kernel(
    x: tl.tensor,
    target: tl.tensor,
    weight: tl.tensor,
    weight_sum: tl.tensor,
    losses: tl.tensor,
    saved: tl.tensor,
    stride: tl.tensor,
    target_stride: tl.tensor,
    losses_offset: tl.tensor,
    lost_offset: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    ignore_index: tl.tensor,
    smoothing: tl.tensor,
    z_loss: tl.tensor,
    softcap: tl.tensor,
    SMOOTHING: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    STAGES: tl.constexpr,
    SHIFTED: tl.constexpr,
) -> None:
    """The loss of one row, and the two parts of its ``logsumexp`` for backward.

    The first row of ``x`` is row ``first_row`` of the other tensors.
    """
    row = tl.program_id(0)
    offset = row.to(tl.int64) * stride
    place = first_row + row
    label = tl.load(target + place.to(tl.int64) * target_stride)
    logit, scale, scales, used = row_target(
        x, offset, label, weight, weight_sum, width, ignore_index, softcap, SOFTCAP
    )
    start = 0
    room = width.to(tl.int64)
    if SHIFTED:
        # Begin at the vector boundary before the row, so that loads stay wide for any width. Rows
        # follow each other without gaps then: what is read past this one is the next.
        start = (offset % GROUP).to(tl.int32)
        offset = tl.multiple_of(offset - start, GROUP)
        room = rows.to(tl.int64) * width - offset
    base, rest, logits = row_statistics(
        x + offset, weight, start, start + width, room, used, softcap,
        SOFTCAP, SMOOTHING, BLOCK, GROUP, STAGES,
    )  # fmt: skip
    loss = row_loss(
        base, rest, logits, logit, scale, scales, used, width, smoothing, z_loss, SMOOTHING
    )
    lse, lost = two_parts(base, rest)
    tl.store(saved + place, lse)
    tl.store(saved + lost_offset + place, lost)
    tl.store(losses + losses_offset + place, loss.to(losses.dtype.element_ty))


@jit
def reduce_kernel(
    losses: tl.tensor,
    target: tl.tensor,
    weight: tl.tensor,
    saved: tl.tensor,
    result: tl.tensor,
    target_stride: tl.tensor,
    losses_offset: tl.tensor,
    total_offset: tl.tensor,
    rows: tl.tensor,
    width: tl.tensor,
    ignore_index: tl.tensor,
    LOSSES: tl.constexpr,
    COUNT: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sum of the rows' losses in a fixed order, over the weight of their classes for a mean.

    The divisor is kept for backward, 1 for a sum.
    """
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    count = tl.zeros((BLOCK,), tl.float32)
    for begin in range(0, rows, BLOCK):
        row = begin + lane
        keep = row < rows
        if LOSSES:
            total += tl.load(losses + losses_offset + row, keep, other=0.0)
        if COUNT:
            label = tl.load(target + row.to(tl.int64) * target_stride, keep, other=ignore_index)
            used = label != ignore_index
            if weight is not None:
                exists = used & (label >= 0) & (label < width)
                count += tl.load(weight + label, exists, other=0.0).to(tl.float32)
            else:
                count += tl.where(used, 1.0, 0.0)
    loss = tl.sum(total, axis=0)
    weights = 1.0
    if COUNT:
        weights = tl.sum(count, axis=0)
        loss = loss / weights
    tl.store(saved + total_offset, weights)
    if LOSSES:
        tl.store(result, loss.to(result.dtype.element_ty))


@jit
def existing(label: tl.tensor, width: tl.tensor) -> tl.tensor:
    """The class in 32 bits, which compare faster; -1 if it does not exist."""
    return tl.where((label >= 0) & (label < width), label, -1).to(tl.int32)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    dx: tl.tensor,
    target: tl.tensor,
    weight: tl.tensor,
    weight_sum: tl.tensor,
    saved: tl.tensor,
    grad_stride: tl.tensor,
    stride: tl.tensor,
    dx_stride: tl.tensor,
    target_stride: tl.tensor,
    first_row: tl.tensor,
    lost_offset: tl.tensor,
    total_offset: tl.tensor,
    blocks: tl.tensor,
    width: tl.tensor,
    ignore_index: tl.tensor,
    smoothing: tl.tensor,
    z_loss: tl.tensor,
    softcap: tl.tensor,
    MEAN: tl.constexpr,
    SMOOTHING: tl.constexpr,
    SOFTCAP: tl.constexpr,
    BLOCK: tl.constexpr,
    GROUP: tl.constexpr,
    SHIFTED: tl.constexpr,
) -> None:
    """The gradient of one block of one row; ``dx`` may be ``x`` itself.

    The first row is row ``first_row`` of ``saved``.
    """
    program = tl.program_id(0)
    row = program // blocks
    first = (program - row * blocks) * BLOCK
    label = tl.load(target + row.to(tl.int64) * target_stride)
    upstream = tl.load(grad + row.to(tl.int64) * grad_stride).to(tl.float32)
    if MEAN:
        upstream = upstream / tl.load(saved + total_offset)
    lse = tl.load(saved + first_row + row)
    lost = tl.load(saved + lost_offset + first_row + row)
    offset = row.to(tl.int64) * stride
    into = row.to(tl.int64) * dx_stride
    used = label != ignore_index
    label = existing(label, width)
    scale = 1.0
    scales = width.to(tl.float32)
    if weight is not None:
        scale = tl.load(weight + label, used & (label >= 0), other=0.0).to(tl.float32)
        scales = tl.load(weight_sum)
    # A class that does not exist made the loss NaN.
    upstream = tl.where(label >= 0, upstream, float("nan"))
    place = first + tl.arange(0, BLOCK)
    column = place
    if SHIFTED:
        # As in forward; ``dx`` lies as ``x`` does.
        start = (offset % GROUP).to(tl.int32)
        offset = tl.multiple_of(offset - start, GROUP)
        into = offset
        first -= start
        column = place - start
    if (first >= 0) & (first + BLOCK <= width):
        # No mask, see load_block.
        value = tl.load(x + offset + place)
        result = gradient(
            value, column, lse, lost, label, scale, scales, upstream, weight, column >= 0,
            width, smoothing, z_loss, softcap, SMOOTHING, SOFTCAP,
        )  # fmt: skip
        result = tl.where(used, result, 0.0)
        tl.store(dx + into + place, result.to(dx.dtype.element_ty))
    else:
        keep = (column >= 0) & (column < width)
        value = tl.load(x + offset + place, keep, other=0.0)
        result = gradient(
            value, column, lse, lost, label, scale, scales, upstream, weight, keep,
            width, smoothing, z_loss, softcap, SMOOTHING, SOFTCAP,
        )  # fmt: skip
        result = tl.where(used, result, 0.0)
        tl.store(dx + into + place, result.to(dx.dtype.element_ty), keep)
