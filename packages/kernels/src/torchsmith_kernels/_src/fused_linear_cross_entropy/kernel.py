"""The Triton kernels of fused linear cross entropy: logits to gradients in place, and scaling."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.cross_entropy.kernel import (
    existing,
    gradient,
    row_loss,
    row_statistics,
    row_target,
    two_parts,
)
from torchsmith_kernels._src.jit import jit


@jit
def power_below(total: tl.tensor) -> tl.tensor:
    """The power of two at or below ``total``, by its exponent bits; 0 for 0."""
    return (total.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@jit
def gradient_kernel(
    x: tl.tensor,
    target: tl.tensor,
    weight: tl.tensor,
    weight_sum: tl.tensor,
    saved: tl.tensor,
    first_row: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    target_stride: tl.tensor,
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
    STAGES: tl.constexpr,
) -> None:
    """The loss of one row of logits, which its gradient then overwrites.

    For a mean the gradient is ``2**k`` times too large, with the largest ``2**k`` up to the mean's
    divisor: a multiplication without rounding that keeps float16 away from its smallest numbers.
    """
    row = tl.program_id(0)
    offset = row.to(tl.int64) * stride
    place = first_row + row
    label = tl.load(target + place.to(tl.int64) * target_stride)
    logit, scale, scales, used = row_target(
        x, offset, label, weight, weight_sum, width, ignore_index, softcap, SOFTCAP
    )
    base = x + offset
    top, rest, logits = row_statistics(
        base, weight, 0, width, width, used, softcap, SOFTCAP, SMOOTHING, BLOCK, GROUP, STAGES
    )
    loss = row_loss(
        top, rest, logits, logit, scale, scales, used, width, smoothing, z_loss, SMOOTHING
    )
    lse, lost = two_parts(top, rest)
    tl.store(saved + place, lse)
    tl.store(saved + rows + place, loss)
    tl.store(saved + 2 * rows + 1 + place, lost)

    upstream = 1.0
    if MEAN:
        total = tl.load(saved + 2 * rows)
        upstream = power_below(total) / total
    label = existing(label, width)
    upstream = tl.where(label >= 0, upstream, float("nan"))
    lane = tl.arange(0, BLOCK)
    full = width // BLOCK * BLOCK
    # From the end of the row, which was read last and is still in the cache.
    if full < width:
        keep = full + lane < width
        value = tl.load(base + full + lane, keep, other=0.0)
        result = gradient(
            value, full + lane, lse, lost, label, scale, scales, upstream, weight, keep,
            width, smoothing, z_loss, softcap, SMOOTHING, SOFTCAP,
        )  # fmt: skip
        result = tl.where(used, result, 0.0)
        tl.store(base + full + lane, result.to(x.dtype.element_ty), keep)
    for step in tl.range(0, full, BLOCK):
        column = full - BLOCK - step + lane
        keep = column < width
        value = tl.load(base + column)
        result = gradient(
            value, column, lse, lost, label, scale, scales, upstream, weight, keep,
            width, smoothing, z_loss, softcap, SMOOTHING, SOFTCAP,
        )  # fmt: skip
        result = tl.where(used, result, 0.0)
        tl.store(base + column, result.to(x.dtype.element_ty))


@jit
def scale_kernel(
    x: tl.tensor,
    y: tl.tensor,
    grad: tl.tensor,
    saved: tl.tensor,
    total_offset: tl.tensor,
    count: tl.tensor,
    MEAN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``y = x * grad``, over the power of two that ``gradient_kernel`` left in for a mean."""
    factor = tl.load(grad).to(tl.float32)
    if MEAN:
        power = power_below(tl.load(saved + total_offset))
        # Nothing counted: the loss is NaN, its gradient 0.
        factor = tl.where(power == 0.0, 0.0, factor / power)
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = index < count
    value = tl.load(x + index, keep, other=0.0).to(tl.float32)
    tl.store(y + index, (value * factor).to(y.dtype.element_ty), keep)
