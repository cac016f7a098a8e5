"""The Triton kernels of group norm where several programs share a group.

Three steps: moments of each channel over a span of pixels, their sum per group, and a pass over
all elements. Strides make them serve contiguous and channels-last tensors alike: one of
``channel_stride`` and ``pixel_stride`` is the constant 1. The last pass begins with what was read
last, which is still in the cache.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def _tile(
    batch: tl.tensor,
    channel: tl.tensor,
    pixel: tl.tensor,
    channels: tl.tensor,
    pixels: tl.tensor,
    LAST: tl.constexpr,
) -> tl.tensor:
    """Places of a tile, ``[channels, pixels]``; ``LAST`` for channels last."""
    base = batch * channels * pixels
    if LAST:
        place = base + (pixel.to(tl.int64) * channels + channel)
    else:
        place = base + (channel.to(tl.int64) * pixels + pixel)
    return place


@jit
def moments_kernel(
    x: tl.tensor,
    averages: tl.tensor,
    squares: tl.tensor,
    channels: tl.tensor,
    pixels: tl.tensor,
    span: tl.tensor,
    splits: tl.tensor,
    channel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """Mean and sum of squared differences of each channel over ``span`` pixels."""
    program = tl.program_id(0)
    block = program % channel_blocks
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    local = tl.arange(0, PIXELS)[None, :]
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    average = tl.zeros((CHANNELS, PIXELS), tl.float32)
    square = tl.zeros((CHANNELS, PIXELS), tl.float32)
    step = 1.0
    for start in range(0, length, PIXELS):
        inner = start + local
        keep = (channel < channels) & (inner < length)
        place = _tile(batch, channel, begin + inner, channels, pixels, LAST)
        value = tl.load(x + place, keep, other=0.0).to(tl.float32)
        delta = tl.where(keep, value - average, 0.0)
        average += delta * (1.0 / step)
        square += tl.where(keep, delta * (value - average), 0.0)
        step += 1.0
    number = tl.maximum((length - local + PIXELS - 1) // PIXELS, 0).to(tl.float32)
    m = tl.sum(average * number, 1, keep_dims=True) / length
    away = average - m
    square += tl.where(number > 0, number * away * away, 0.0)
    target = (batch * splits + split) * channels + channel
    tl.store(averages + target, m, channel < channels)
    tl.store(squares + target, tl.sum(square, 1, keep_dims=True), channel < channels)


@jit
def merge_moments_kernel(
    averages: tl.tensor,
    squares: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    groups: tl.tensor,
    per_group: tl.tensor,
    pixels: tl.tensor,
    span: tl.tensor,
    splits: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Mean and reciprocal deviation of one group from the moments of its parts."""
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    base = (row // groups) * splits * groups * per_group + group * per_group
    parts = splits * per_group
    size = per_group.to(tl.float32) * pixels
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        keep = part < parts
        split = part // per_group
        place = base + split.to(tl.int64) * groups * per_group + part % per_group
        number = tl.minimum(span, pixels - split * span).to(tl.float32)
        total += tl.where(keep, number * tl.load(averages + place, keep, other=0.0), 0.0)
    m = tl.sum(total, 0) / size
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        keep = part < parts
        split = part // per_group
        place = base + split.to(tl.int64) * groups * per_group + part % per_group
        number = tl.minimum(span, pixels - split * span).to(tl.float32)
        away = tl.load(averages + place, keep, other=0.0) - m
        square = tl.load(squares + place, keep, other=0.0)
        total += tl.where(keep, square + number * away * away, 0.0)
    tl.store(mean + row, m)
    tl.store(rstd + row, tl.rsqrt(tl.sum(total, 0) / size + eps))


@jit
def normalize_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    per_group: tl.tensor,
    pixels: tl.tensor,
    channel_blocks: tl.tensor,
    pixel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """The result, from the groups' means and deviations."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    block = program % channel_blocks
    batch = (program // channel_blocks // pixel_blocks).to(tl.int64)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    pixel = program // channel_blocks % pixel_blocks * PIXELS + tl.arange(0, PIXELS)[None, :]
    real = channel < channels
    keep = real & (pixel < pixels)
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    r = tl.load(rstd + row, real, other=0.0)
    place = _tile(batch, channel, pixel, channels, pixels, LAST)
    value = (tl.load(x + place, keep, other=0.0).to(tl.float32) - m) * r
    if weight is not None:
        value = value * tl.load(weight + channel, real, other=0.0).to(tl.float32)
    if bias is not None:
        value = value + tl.load(bias + channel, real, other=0.0).to(tl.float32)
    tl.store(y + place, value.to(y.dtype.element_ty), keep)


@jit
def grad_sums_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    grad_sums: tl.tensor,
    normed_sums: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    per_group: tl.tensor,
    pixels: tl.tensor,
    span: tl.tensor,
    splits: tl.tensor,
    channel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """Sums of the upstream gradient, and of it times the normed input, over ``span`` pixels."""
    program = tl.program_id(0)
    block = program % channel_blocks
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    local = tl.arange(0, PIXELS)[None, :]
    real = channel < channels
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    r = tl.load(rstd + row, real, other=0.0)
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    totals = tl.zeros((CHANNELS, PIXELS), tl.float32)
    products = tl.zeros((CHANNELS, PIXELS), tl.float32)
    for start in range(0, length, PIXELS):
        inner = start + local
        keep = real & (inner < length)
        place = _tile(batch, channel, begin + inner, channels, pixels, LAST)
        value = tl.load(x + place, keep, other=0.0).to(tl.float32)
        upstream = tl.load(grad + place, keep, other=0.0).to(tl.float32)
        totals += upstream
        products += tl.where(keep, upstream * ((value - m) * r), 0.0)
    target = (batch * splits + split) * channels + channel
    tl.store(grad_sums + target, tl.sum(totals, 1, keep_dims=True), real)
    tl.store(normed_sums + target, tl.sum(products, 1, keep_dims=True), real)


@jit
def merge_sums_kernel(
    grad_sums: tl.tensor,
    normed_sums: tl.tensor,
    weight: tl.tensor,
    offsets: tl.tensor,
    slopes: tl.tensor,
    groups: tl.tensor,
    per_group: tl.tensor,
    pixels: tl.tensor,
    splits: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:
    """Means over one group of the gradient times weight, and of that times the normed input."""
    row = tl.program_id(0).to(tl.int64)
    group = row % groups
    base = (row // groups) * splits * groups * per_group
    parts = splits * per_group
    offset = tl.zeros((BLOCK,), tl.float32)
    slope = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        part = start + tl.arange(0, BLOCK)
        keep = part < parts
        channel = group * per_group + part % per_group
        place = base + (part // per_group).to(tl.int64) * groups * per_group + channel
        a = tl.load(grad_sums + place, keep, other=0.0)
        b = tl.load(normed_sums + place, keep, other=0.0)
        if weight is not None:
            w = tl.load(weight + channel, keep, other=0.0).to(tl.float32)
            a = a * w
            b = b * w
        offset += a
        slope += b
    size = per_group.to(tl.float32) * pixels
    tl.store(offsets + row, tl.sum(offset, 0) / size)
    tl.store(slopes + row, tl.sum(slope, 0) / size)


@jit
def grad_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    offsets: tl.tensor,
    slopes: tl.tensor,
    dx: tl.tensor,
    channels: tl.tensor,
    groups: tl.tensor,
    per_group: tl.tensor,
    pixels: tl.tensor,
    channel_blocks: tl.tensor,
    pixel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    LAST: tl.constexpr,
) -> None:
    """The gradient of the input."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    block = program % channel_blocks
    batch = (program // channel_blocks // pixel_blocks).to(tl.int64)
    channel = block * CHANNELS + tl.arange(0, CHANNELS)[:, None]
    pixel = program // channel_blocks % pixel_blocks * PIXELS + tl.arange(0, PIXELS)[None, :]
    real = channel < channels
    keep = real & (pixel < pixels)
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    r = tl.load(rstd + row, real, other=0.0)
    offset = tl.load(offsets + row, real, other=0.0)
    slope = tl.load(slopes + row, real, other=0.0)
    place = _tile(batch, channel, pixel, channels, pixels, LAST)
    normed = (tl.load(x + place, keep, other=0.0).to(tl.float32) - m) * r
    upstream = tl.load(grad + place, keep, other=0.0).to(tl.float32)
    if weight is not None:
        upstream = upstream * tl.load(weight + channel, real, other=0.0).to(tl.float32)
    value = r * (upstream - offset - normed * slope)
    tl.store(dx + place, value.to(dx.dtype.element_ty), keep)
