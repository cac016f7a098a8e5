"""The Triton kernels of group norm where several programs share a group.

Three steps: moments of each channel over a span of pixels, their sum per group, and a pass over
all elements. They serve contiguous and channels-last tensors alike: ``AXIS``, the tile's dimension
of pixels, is 1 or 0, so that the last dimension of a tile is contiguous in memory. The last pass
begins with what was read last, which is still in the cache.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.group_norm.kernel import mean_of, reciprocal_deviation
from torchsmith_kernels._src.jit import jit


@jit
def _along(COUNT: tl.constexpr, DIMENSION: tl.constexpr) -> tl.tensor:
    """``0 ... COUNT - 1`` along one of two dimensions."""
    index = tl.arange(0, COUNT)
    if DIMENSION == 0:
        index = index[:, None]
    else:
        index = index[None, :]
    return index


@jit
def _origin(
    batch: tl.tensor,
    channel: tl.tensor,
    pixel: tl.tensor,
    channels: tl.tensor,
    pixels: tl.tensor,
    AXIS: tl.constexpr,
) -> tl.tensor:
    """Place of a tile's first element, in 64 bits."""
    place = batch * channels * pixels
    if AXIS == 0:
        place += pixel.to(tl.int64) * channels + channel
    else:
        place += channel.to(tl.int64) * pixels + pixel
    return place


@jit
def _inside(
    channel: tl.tensor,
    pixel: tl.tensor,
    channels: tl.tensor,
    pixels: tl.tensor,
    AXIS: tl.constexpr,
) -> tl.tensor:
    """Places of a tile's elements, counted from its first; 32 bits suffice."""
    if AXIS == 0:
        place = pixel * channels + channel
    else:
        place = channel * pixels + pixel
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
    AXIS: tl.constexpr,
) -> None:
    """Mean and sum of squared differences of each channel over ``span`` pixels."""
    program = tl.program_id(0)
    first = program % channel_blocks * CHANNELS
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    local = _along(CHANNELS, 1 - AXIS)
    pixel = _along(PIXELS, AXIS)
    real = first + local < channels
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    x += _origin(batch, first, begin, channels, pixels, AXIS)
    inside = _inside(local, pixel, channels, pixels, AXIS)
    shape: tl.constexpr = (CHANNELS, PIXELS) if AXIS == 1 else (PIXELS, CHANNELS)
    average = tl.zeros(shape, tl.float32)
    square = tl.zeros(shape, tl.float32)
    step = 1.0
    for start in range(0, length, PIXELS):
        keep = real & (start + pixel < length)
        value = tl.load(x + inside, keep, other=0.0).to(tl.float32)
        x += PIXELS * channels if AXIS == 0 else PIXELS
        delta = tl.where(keep, value - average, 0.0)
        average += delta * (1.0 / step)
        square += tl.where(keep, delta * (value - average), 0.0)
        step += 1.0
    number = tl.maximum((length - pixel + PIXELS - 1) // PIXELS, 0).to(tl.float32)
    m = mean_of(tl.sum(average * number, AXIS, keep_dims=True), length)
    away = average - m
    square += tl.where(number > 0, number * away * away, 0.0)
    target = (batch * splits + split) * channels + first + local
    tl.store(averages + target, m, real)
    tl.store(squares + target, tl.sum(square, AXIS, keep_dims=True), real)


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
    m = mean_of(tl.sum(total, 0), size)
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
    tl.store(rstd + row, reciprocal_deviation(mean_of(tl.sum(total, 0), size), eps))


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
    span: tl.tensor,
    splits: tl.tensor,
    channel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    AXIS: tl.constexpr,
) -> None:
    """The result for ``span`` pixels, from the groups' means and deviations."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    first = program % channel_blocks * CHANNELS
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    local = _along(CHANNELS, 1 - AXIS)
    pixel = _along(PIXELS, AXIS)
    channel = first + local
    real = channel < channels
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    scale = tl.load(rstd + row, real, other=0.0)
    if weight is not None:
        scale = scale * tl.load(weight + channel, real, other=0.0).to(tl.float32)
    offset = tl.zeros_like(scale)
    if bias is not None:
        offset = tl.load(bias + channel, real, other=0.0).to(tl.float32)
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    origin = _origin(batch, first, begin, channels, pixels, AXIS)
    inside = _inside(local, pixel, channels, pixels, AXIS)
    x += origin
    y += origin
    for start in range(0, length, PIXELS):
        keep = real & (start + pixel < length)
        value = tl.load(x + inside, keep, other=0.0).to(tl.float32)
        value = (value - m) * scale + offset
        tl.store(y + inside, value.to(y.dtype.element_ty), keep)
        x += PIXELS * channels if AXIS == 0 else PIXELS
        y += PIXELS * channels if AXIS == 0 else PIXELS


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
    AXIS: tl.constexpr,
) -> None:
    """Sums of the upstream gradient, and of it times the normed input, over ``span`` pixels."""
    program = tl.program_id(0)
    first = program % channel_blocks * CHANNELS
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    local = _along(CHANNELS, 1 - AXIS)
    pixel = _along(PIXELS, AXIS)
    channel = first + local
    real = channel < channels
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    r = tl.load(rstd + row, real, other=0.0)
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    origin = _origin(batch, first, begin, channels, pixels, AXIS)
    inside = _inside(local, pixel, channels, pixels, AXIS)
    x += origin
    grad += origin
    shape: tl.constexpr = (CHANNELS, PIXELS) if AXIS == 1 else (PIXELS, CHANNELS)
    totals = tl.zeros(shape, tl.float32)
    products = tl.zeros(shape, tl.float32)
    for start in range(0, length, PIXELS):
        keep = real & (start + pixel < length)
        value = tl.load(x + inside, keep, other=0.0).to(tl.float32)
        upstream = tl.load(grad + inside, keep, other=0.0).to(tl.float32)
        totals += upstream
        products += tl.where(keep, upstream * (value - m), 0.0)
        x += PIXELS * channels if AXIS == 0 else PIXELS
        grad += PIXELS * channels if AXIS == 0 else PIXELS
    target = (batch * splits + split) * channels + channel
    tl.store(grad_sums + target, tl.sum(totals, AXIS, keep_dims=True), real)
    tl.store(normed_sums + target, tl.sum(products, AXIS, keep_dims=True) * r, real)


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
    span: tl.tensor,
    splits: tl.tensor,
    channel_blocks: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    AXIS: tl.constexpr,
) -> None:
    """The gradient of the input for ``span`` pixels."""
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    first = program % channel_blocks * CHANNELS
    split = program // channel_blocks % splits
    batch = (program // channel_blocks // splits).to(tl.int64)
    local = _along(CHANNELS, 1 - AXIS)
    pixel = _along(PIXELS, AXIS)
    channel = first + local
    real = channel < channels
    row = batch * groups + channel // per_group
    m = tl.load(mean + row, real, other=0.0)
    r = tl.load(rstd + row, real, other=0.0)
    # dx = r * (w * grad - offset - (x - m) * r * slope)
    offset = tl.load(offsets + row, real, other=0.0) * r
    slope = tl.load(slopes + row, real, other=0.0) * r * r
    scale = r
    if weight is not None:
        scale = scale * tl.load(weight + channel, real, other=0.0).to(tl.float32)
    begin = split * span
    length = tl.minimum(span, pixels - begin)
    origin = _origin(batch, first, begin, channels, pixels, AXIS)
    inside = _inside(local, pixel, channels, pixels, AXIS)
    x += origin
    grad += origin
    dx += origin
    for start in range(0, length, PIXELS):
        keep = real & (start + pixel < length)
        value = tl.load(x + inside, keep, other=0.0).to(tl.float32) - m
        upstream = tl.load(grad + inside, keep, other=0.0).to(tl.float32)
        value = upstream * scale - offset - value * slope
        tl.store(dx + inside, value.to(dx.dtype.element_ty), keep)
        x += PIXELS * channels if AXIS == 0 else PIXELS
        grad += PIXELS * channels if AXIS == 0 else PIXELS
        dx += PIXELS * channels if AXIS == 0 else PIXELS
