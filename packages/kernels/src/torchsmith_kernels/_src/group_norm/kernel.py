"""The Triton kernels of group norm where one program owns a group of a contiguous tensor.

A group is ``size`` consecutive elements, ``pixels`` for each of its channels. Groups that fit
registers are read once; larger ones twice, the second time from the cache, last elements first.
Mean and variance of large groups are Welford's, kept per lane and merged at the end.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def mean_of(total: tl.tensor, size: tl.tensor) -> tl.tensor:
    """``total / size`` to about one rounding, where ``/`` alone may be off by two.

    Moments enter every result, so their error would not average out as that of elements does. A
    correction takes fewer registers than ``div_rn``.
    """
    total, size = total.to(tl.float32), size.to(tl.float32)
    value = total / size
    rest = tl.fma(-value, size, total)
    return tl.where(tl.abs(rest) < float("inf"), value + rest / size, value)


@jit
def reciprocal_deviation(variance: tl.tensor, eps: tl.tensor) -> tl.tensor:
    """``1 / sqrt(variance + eps)``, corrected likewise: ``rsqrt`` is off by up to two roundings."""
    square = (variance + eps).to(tl.float32)
    value = tl.rsqrt(square)
    rest = tl.fma(-(square * value), value, 1.0)
    # Not where the variance is 0 or infinite.
    return tl.where(tl.abs(rest) < 1.0, value + 0.5 * value * rest, value)


@jit
def _channel(place: tl.tensor, pixels_inverse: tl.tensor, FLAT: tl.constexpr) -> tl.tensor:
    """``place // pixels``; ``FLAT`` when there is one pixel."""
    if FLAT:
        channel = place
    else:
        # Exact below 2**21: half an element away from the next channel.
        channel = ((place.to(tl.float32) + 0.5) * pixels_inverse).to(tl.int32)
    return channel


@jit
def _affine(
    value: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    channel: tl.tensor,
    keep: tl.tensor,
) -> tl.tensor:
    """``value`` times weight plus bias of its channel, as far as there are any."""
    if weight is not None:
        value = value * tl.load(weight + channel, keep, other=0.0).to(tl.float32)
    if bias is not None:
        value = value + tl.load(bias + channel, keep, other=0.0).to(tl.float32)
    return value


@jit
def forward_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    count: tl.tensor,
    size: tl.tensor,
    groups: tl.tensor,
    channels: tl.tensor,
    pixels_inverse: tl.tensor,
    eps: tl.tensor,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    FLAT: tl.constexpr,
) -> None:
    """Groups of at most ``ROWS``'s ``BLOCK`` elements each; ``VECTOR`` divides the pixels."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = row[:, None, None]
    chunk = tl.arange(0, BLOCK // VECTOR)[None, :, None] * VECTOR
    inner = chunk + tl.arange(0, VECTOR)[None, None, :]
    real = row < count
    keep = real & (inner < size)
    value = tl.load(x + (row * size + inner), keep, other=0.0).to(tl.float32)
    m = mean_of(tl.sum(tl.sum(value, 2, keep_dims=True), 1, keep_dims=True), size)
    value = tl.where(keep, value - m, 0.0)
    square = tl.sum(tl.sum(value * value, 2, keep_dims=True), 1, keep_dims=True)
    r = reciprocal_deviation(mean_of(square, size), eps)
    channel = _channel(chunk, pixels_inverse, FLAT) + (row % groups).to(tl.int32) * channels
    value = _affine(value * r, weight, bias, channel, real & (chunk < size))
    tl.store(y + (row * size + inner), value.to(y.dtype.element_ty), keep)
    tl.store(mean + row, m, real)
    tl.store(rstd + row, r, real)


@jit
def forward_loop_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    size: tl.tensor,
    groups: tl.tensor,
    channels: tl.tensor,
    pixels_inverse: tl.tensor,
    eps: tl.tensor,
    BLOCK: tl.constexpr,
    VECTOR: tl.constexpr,
    FLAT: tl.constexpr,
) -> None:
    """One group, ``BLOCK`` elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    x += row * size
    y += row * size
    chunk = tl.arange(0, BLOCK // VECTOR)[:, None] * VECTOR
    lane = chunk + tl.arange(0, VECTOR)[None, :]
    average = tl.zeros((BLOCK // VECTOR, VECTOR), tl.float32)
    square = tl.zeros((BLOCK // VECTOR, VECTOR), tl.float32)
    step = 1.0
    for start in range(0, size, BLOCK):
        keep = start + lane < size
        value = tl.load(x + start + lane, keep, other=0.0).to(tl.float32)
        delta = tl.where(keep, value - average, 0.0)
        average += delta * (1.0 / step)
        square += tl.where(keep, delta * (value - average), 0.0)
        step += 1.0
    number = ((size - lane + BLOCK - 1) // BLOCK).to(tl.float32)
    m = mean_of(tl.sum(tl.sum(average * number, 1), 0), size)
    away = average - m
    square += tl.where(number > 0, number * away * away, 0.0)
    r = reciprocal_deviation(mean_of(tl.sum(tl.sum(square, 1), 0), size), eps)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)
    first = (row % groups).to(tl.int32) * channels
    last = (size - 1) // BLOCK * BLOCK
    for back in range(0, size, BLOCK):
        start = last - back
        keep = start + lane < size
        value = tl.load(x + start + lane, keep, other=0.0).to(tl.float32)
        channel = first + _channel(start + chunk, pixels_inverse, FLAT)
        value = _affine((value - m) * r, weight, bias, channel, chunk + start < size)
        tl.store(y + start + lane, value.to(y.dtype.element_ty), keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    dx: tl.tensor,
    grad_sums: tl.tensor,
    normed_sums: tl.tensor,
    count: tl.tensor,
    pixels: tl.tensor,
    groups: tl.tensor,
    channels: tl.tensor,
    ROWS: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
) -> None:
    """Groups of at most ``CHANNELS`` times ``PIXELS`` elements; sums per channel on the side."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    row = row[:, None, None]
    channel = tl.arange(0, CHANNELS)[None, :, None]
    pixel = tl.arange(0, PIXELS)[None, None, :]
    real = (row < count) & (channel < channels)
    keep = real & (pixel < pixels)
    place = row * (channels * pixels) + (channel * pixels + pixel)
    m = tl.load(mean + row, row < count, other=0.0)
    r = tl.load(rstd + row, row < count, other=0.0)
    normed = (tl.load(x + place, keep, other=0.0).to(tl.float32) - m) * r
    upstream = tl.load(grad + place, keep, other=0.0).to(tl.float32)
    a = tl.sum(upstream, 2, keep_dims=True)
    b = tl.sum(tl.where(keep, upstream * normed, 0.0), 2, keep_dims=True)
    tl.store(grad_sums + row * channels + channel, a, real)
    tl.store(normed_sums + row * channels + channel, b, real)
    if weight is not None:
        place_w = (row % groups) * channels + channel
        w = tl.load(weight + place_w, real, other=0.0).to(tl.float32)
        upstream = upstream * w
        a = a * w
        b = b * w
    size = channels * pixels
    offset = tl.sum(a, 1, keep_dims=True) / size
    slope = tl.sum(b, 1, keep_dims=True) / size
    value = r * (upstream - offset - normed * slope)
    tl.store(dx + place, value.to(dx.dtype.element_ty), keep)


@jit
def backward_loop_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    mean: tl.tensor,
    rstd: tl.tensor,
    dx: tl.tensor,
    grad_sums: tl.tensor,
    normed_sums: tl.tensor,
    pixels: tl.tensor,
    groups: tl.tensor,
    channels: tl.tensor,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
) -> None:
    """One group, ``CHANNELS`` times ``PIXELS`` elements at a time."""
    row = tl.program_id(0).to(tl.int64)
    size = channels * pixels
    grad += row * size
    x += row * size
    dx += row * size
    m = tl.load(mean + row)
    r = tl.load(rstd + row)
    local = tl.arange(0, CHANNELS)[:, None]
    pixel = tl.arange(0, PIXELS)[None, :]
    offset = 0.0
    slope = 0.0
    for first in range(0, channels, CHANNELS):
        channel = first + local
        real = channel < channels
        totals = tl.zeros((CHANNELS, PIXELS), tl.float32)
        products = tl.zeros((CHANNELS, PIXELS), tl.float32)
        for start in range(0, pixels, PIXELS):
            keep = real & (start + pixel < pixels)
            place = channel * pixels + (start + pixel)
            value = tl.load(x + place, keep, other=0.0).to(tl.float32)
            upstream = tl.load(grad + place, keep, other=0.0).to(tl.float32)
            totals += upstream
            products += tl.where(keep, upstream * ((value - m) * r), 0.0)
        a = tl.sum(totals, 1, keep_dims=True)
        b = tl.sum(products, 1, keep_dims=True)
        tl.store(grad_sums + row * channels + channel, a, real)
        tl.store(normed_sums + row * channels + channel, b, real)
        if weight is not None:
            place_w = (row % groups) * channels + channel
            w = tl.load(weight + place_w, real, other=0.0).to(tl.float32)
            a = a * w
            b = b * w
        offset += tl.sum(a)
        slope += tl.sum(b)
    offset = offset / size
    slope = slope / size
    last = (channels - 1) // CHANNELS * CHANNELS
    final = (pixels - 1) // PIXELS * PIXELS
    for behind in range(0, channels, CHANNELS):
        channel = last - behind + local
        real = channel < channels
        w = tl.full((CHANNELS, 1), 1.0, tl.float32)
        if weight is not None:
            place_w = (row % groups) * channels + channel
            w = tl.load(weight + place_w, real, other=0.0).to(tl.float32)
        for back in range(0, pixels, PIXELS):
            start = final - back
            keep = real & (start + pixel < pixels)
            place = channel * pixels + (start + pixel)
            normed = (tl.load(x + place, keep, other=0.0).to(tl.float32) - m) * r
            upstream = tl.load(grad + place, keep, other=0.0).to(tl.float32) * w
            value = r * (upstream - offset - normed * slope)
            tl.store(dx + place, value.to(dx.dtype.element_ty), keep)


@jit
def column_sums_kernel(
    first: tl.tensor,
    second: tl.tensor,
    first_out: tl.tensor,
    second_out: tl.tensor,
    rows: tl.tensor,
    columns: tl.tensor,
    span: tl.tensor,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Sums of ``span`` rows of two matrices, in a fixed order."""
    part = tl.program_id(1).to(tl.int64)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    local = tl.arange(0, ROWS)[:, None]
    total1 = tl.zeros((ROWS, COLUMNS), tl.float32)
    total2 = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, span, ROWS):
        inner = start + local
        row = part * span + inner
        keep = (inner < span) & (row < rows) & (column < columns)
        total1 += tl.load(first + row * columns + column, keep, other=0.0)
        total2 += tl.load(second + row * columns + column, keep, other=0.0)
    keep = column < columns
    out = part * columns + column
    tl.store(
        first_out + out, tl.sum(total1, 0, keep_dims=True).to(first_out.dtype.element_ty), keep
    )
    value = tl.sum(total2, 0, keep_dims=True)
    tl.store(second_out + out, value.to(second_out.dtype.element_ty), keep)
