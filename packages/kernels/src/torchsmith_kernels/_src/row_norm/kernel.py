"""The Triton kernels of row normalization.

Absent tensors (residual, weight, bias, gradients that are not needed) are None and leave no code.
A program takes every so many blocks of ``BLOCK_M`` rows; a grid of one program per block and a
persistent grid with pipelined loads run the same code. Row offsets are 64-bit, so that tensors may
have more than 2**31 elements. Gradients of weight and bias are summed in a fixed order: each
program adds up its own rows, and ``sum_kernel`` adds the programs' sums.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def forward_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    DENSE: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """Normalizes rows of at most ``BLOCK_N`` columns, which are read once."""
    # Spread over the block's rows, so that the parameters get the layout of the rows.
    lane = tl.arange(0, BLOCK_N)[None, :] + tl.zeros([BLOCK_M, 1], tl.int32)
    inside = lane < N
    if weight is not None:
        scale = tl.load(weight + lane, inside, other=0.0)
    if bias is not None:
        shift = tl.load(bias + lane, inside, other=0.0)
    blocks = tl.cdiv(rows, BLOCK_M)
    for block in tl.range(tl.program_id(0), blocks, tl.num_programs(0), num_stages=STAGES):
        row = tl.cast(block, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        keep = (row < rows) & inside
        # A constant stride tells the compiler more about alignment than a run-time one.
        value = tl.load(x + row * (N if DENSE else x_stride) + lane, keep, other=0.0)
        if residual is not None:
            other = tl.load(
                residual + row * (N if DENSE else residual_stride) + lane, keep, other=0.0
            )
            value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
            tl.store(total + row * N + lane, value, keep)
        value = value.to(tl.float32)
        if MEAN:
            value -= tl.sum(value, 1)[:, None] / N
            if N != BLOCK_N:
                value = tl.where(inside, value, 0.0)
        rstd = tl.rsqrt(tl.sum(value * value, 1) / N + tl.cast(eps, tl.float32))[:, None]
        result = value * rstd
        if weight is not None:
            result *= scale.to(tl.float32)
        if bias is not None:
            result += shift.to(tl.float32)
        tl.store(y + row * N + lane, result.to(y.dtype.element_ty), keep)


@jit
def forward_wide_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    residual_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Normalizes one row of any width, read once from memory and then from the caches."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    x += row * x_stride
    y += row * N
    first = tl.zeros([BLOCK_N], tl.float32)
    if residual is not None:
        residual += row * residual_stride
        total += row * N
        for start in range(0, N, BLOCK_N):
            column = start + lane
            value = tl.load(x + column, column < N, other=0.0)
            other = tl.load(residual + column, column < N, other=0.0)
            value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
            tl.store(total + column, value, column < N)
            value = value.to(tl.float32)
            first += value if MEAN else value * value
        # The later passes read the sum back, perhaps in other threads than those that wrote it.
        tl.debug_barrier()
        x = total
    else:
        for start in range(0, N, BLOCK_N):
            column = start + lane
            value = tl.load(x + column, column < N, other=0.0, eviction_policy="evict_last")
            value = value.to(tl.float32)
            first += value if MEAN else value * value
    mean = tl.sum(first, 0) / N
    variance = mean
    if MEAN:
        squares = tl.zeros([BLOCK_N], tl.float32)
        for start in range(0, N, BLOCK_N):
            column = start + lane
            value = tl.load(x + column, column < N, other=0.0, eviction_policy="evict_last")
            value = tl.where(column < N, value.to(tl.float32) - mean, 0.0)
            squares += value * value
        variance = tl.sum(squares, 0) / N
    rstd = tl.rsqrt(variance + tl.cast(eps, tl.float32))
    for start in range(0, N, BLOCK_N):
        column = start + lane
        value = tl.load(x + column, column < N, other=0.0, eviction_policy="evict_first")
        result = value.to(tl.float32)
        if MEAN:
            result -= mean
        result *= rstd
        if weight is not None:
            result *= tl.load(weight + column, column < N, other=0.0).to(tl.float32)
        if bias is not None:
            result += tl.load(bias + column, column < N, other=0.0).to(tl.float32)
        tl.store(y + column, result.to(y.dtype.element_ty), column < N)


@jit
def _widened(raw: tl.tensor) -> tl.tensor:
    """``raw`` as float32 in other instructions than ``raw.to(tl.float32)``.

    The compiler joins equal conversions and holds float32 over the reduction between them, which
    takes twice the registers of the values themselves.
    """
    if raw.dtype == tl.bfloat16:
        bits = raw.to(tl.uint16, bitcast=True).to(tl.uint32) << 16
        return bits.to(tl.float32, bitcast=True)
    return raw.to(tl.float32)


@jit
def _scaled(value: tl.tensor, scale: tl.tensor) -> tl.tensor:
    return value if scale is None else value * scale.to(tl.float32)


@jit
def backward_kernel(
    grad: tl.tensor,
    grad_sum: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    statistics: tl.tensor,
    dx: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    grad_stride: tl.tensor,
    grad_sum_stride: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    DENSE: tl.constexpr,
    MEAN: tl.constexpr,
    DW: tl.constexpr,
    DB: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    STAGES: tl.constexpr,
    HOLD_WEIGHT: tl.constexpr,
) -> None:
    """Input gradient of a share of the rows, and their part of the weight's and bias' gradients.

    Program ``(part, share)`` owns ``BLOCK_N`` columns. Where rows are wider, the sums over a row
    take its other parts too (neighbouring programs read them at about the same time, so they come
    from L2), unless ``statistics`` holds what ``statistics_kernel`` found.
    """
    PARTS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    part = tl.program_id(0)
    share = tl.program_id(1)
    # Spread over the block's rows, so that the weight gets the layout of the rows.
    lane = part * BLOCK_N + tl.arange(0, BLOCK_N)[None, :] + tl.zeros([BLOCK_M, 1], tl.int32)
    inside = lane < N
    held = None
    if weight is not None:
        if HOLD_WEIGHT:
            held = tl.load(weight + lane, inside, other=0.0)
    if DW:
        weight_total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    if DB:
        bias_total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    blocks = tl.cdiv(rows, BLOCK_M)
    for block in tl.range(share, blocks, tl.num_programs(1), num_stages=STAGES):
        # The last rows that statistics_kernel read are still in L2: begin with them.
        place = block if statistics is None else blocks - 1 - block
        row = tl.cast(place, tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
        row_ok = row < rows
        keep = row_ok & inside
        x_row = x + row * (N if DENSE else x_stride)
        grad_row = grad + row * (N if DENSE else grad_stride)
        x_raw = tl.load(x_row + lane, keep, other=0.0)
        grad_raw = tl.load(grad_row + lane, keep, other=0.0)
        if weight is None or HOLD_WEIGHT:
            scale = held
        else:
            scale = tl.load(weight + lane, inside, other=0.0)
        value = x_raw.to(tl.float32)
        upstream = grad_raw.to(tl.float32)
        if grad_sum is not None:
            more = tl.load(
                grad_sum + row * (N if DENSE else grad_sum_stride) + lane, keep, other=0.0
            )
        if statistics is not None:
            rstd = tl.load(statistics + row * 4, row_ok, other=0.0)
            dot = tl.load(statistics + row * 4 + 1, row_ok, other=0.0)
            if MEAN:
                value -= tl.load(statistics + row * 4 + 2, row_ok, other=0.0)
                scaled_mean = tl.load(statistics + row * 4 + 3, row_ok, other=0.0)
        else:
            if MEAN:
                size = N if PARTS == 1 else tl.minimum(N - part * BLOCK_N, BLOCK_N)
                mean = tl.sum(value, 1)[:, None] / size
                centred = value - mean
                if N % BLOCK_N != 0:
                    centred = tl.where(inside, centred, 0.0)
                scaled_sum = tl.sum(_scaled(upstream, scale), 1)[:, None]
            else:
                centred = value
            squares = tl.sum(centred * centred, 1)[:, None]
            products = tl.sum(_scaled(upstream * centred, scale), 1)[:, None]
            for step in tl.static_range(1, PARTS):
                other = (part + step) % PARTS
                column = other * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
                there = row_ok & (column < N)
                v = tl.load(x_row + column, there, other=0.0).to(tl.float32)
                s = tl.load(grad_row + column, there, other=0.0).to(tl.float32)
                if weight is not None:
                    s *= tl.load(weight + column, column < N, other=0.0).to(tl.float32)
                if MEAN:
                    # Joining centred sums of two sets (Chan et al., 1979) loses no digits.
                    count = tl.minimum(N - other * BLOCK_N, BLOCK_N)
                    v_mean = tl.sum(v, 1)[:, None] / count
                    v = tl.where(column < N, v - v_mean, 0.0)
                    s_sum = tl.sum(s, 1)[:, None]
                    squares += tl.sum(v * v, 1)[:, None]
                    products += tl.sum(s * v, 1)[:, None]
                    apart = v_mean - mean
                    fraction = count.to(tl.float32) / (size + count).to(tl.float32)
                    squares += apart * apart * (size.to(tl.float32) * fraction)
                    # Both sums of products move to the common mean.
                    products += s_sum * (apart * (1 - fraction)) - scaled_sum * (apart * fraction)
                    scaled_sum += s_sum
                    mean += apart * fraction
                    size += count
                else:
                    squares += tl.sum(v * v, 1)[:, None]
                    products += tl.sum(s * v, 1)[:, None]
            rstd = tl.rsqrt(squares / N + tl.cast(eps, tl.float32))
            # Rows past the end are 0, but 0 * rstd is NaN when eps is 0.
            rstd = tl.where(row_ok, rstd, 0.0)
            dot = rstd * rstd * (products / N)
            value = _widened(x_raw)
            upstream = _widened(grad_raw)
            if MEAN:
                value -= mean
                scaled_mean = scaled_sum / N
        if dx is not None:
            result = _scaled(upstream, scale) - value * dot
            if MEAN:
                result -= scaled_mean
            result *= rstd
            if grad_sum is not None:
                result += more.to(tl.float32)
            tl.store(dx + row * N + lane, result.to(dx.dtype.element_ty), keep)
        if DW:
            weight_total += upstream * (value * rstd)
        if DB:
            bias_total += upstream
    partial += share.to(tl.int64) * N
    column = part * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    if DW:
        tl.store(partial + column, tl.sum(weight_total, 0)[None, :], column < N)
        partial += tl.num_programs(1).to(tl.int64) * N
    if DB:
        tl.store(partial + column, tl.sum(bias_total, 0)[None, :], column < N)


@jit
def statistics_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    statistics: tl.tensor,
    rows: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """What ``backward_kernel`` needs to know about one wide row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    x += row * x_stride
    grad += row * grad_stride
    mean = 0.0
    if MEAN:
        total = tl.zeros([BLOCK_N], tl.float32)
        for start in range(0, N, BLOCK_N):
            column = start + lane
            total += tl.load(x + column, column < N, other=0.0).to(tl.float32)
        mean = tl.sum(total, 0) / N
    squares = tl.zeros([BLOCK_N], tl.float32)
    products = tl.zeros([BLOCK_N], tl.float32)
    scaled_total = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, N, BLOCK_N):
        column = start + lane
        value = tl.load(x + column, column < N, other=0.0).to(tl.float32)
        scaled = tl.load(grad + column, column < N, other=0.0).to(tl.float32)
        if weight is not None:
            scaled *= tl.load(weight + column, column < N, other=0.0).to(tl.float32)
        if MEAN:
            value = tl.where(column < N, value - mean, 0.0)
            scaled_total += scaled
        squares += value * value
        products += scaled * value
    rstd = tl.rsqrt(tl.sum(squares, 0) / N + tl.cast(eps, tl.float32))
    statistics += row * 4
    tl.store(statistics, rstd)
    tl.store(statistics + 1, rstd * rstd * (tl.sum(products, 0) / N))
    if MEAN:
        tl.store(statistics + 2, mean)
        tl.store(statistics + 3, tl.sum(scaled_total, 0) / N)


@jit
def sum_kernel(
    partial: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    shares: tl.tensor,
    N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Adds up ``partial[0]`` to ``first`` and ``partial[1]`` to ``second``, in a fixed order."""
    which = tl.program_id(1)
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    partial += which.to(tl.int64) * shares * N
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, shares, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)[:, None]
        keep = (row < shares) & (column < N)
        total += tl.load(partial + row.to(tl.int64) * N + column, keep, other=0.0)
    result = tl.sum(total, 0)[None, :]
    if which == 0:
        tl.store(first + column, result.to(first.dtype.element_ty), column < N)
    if second is not None:
        if which == 1:
            tl.store(second + column, result.to(second.dtype.element_ty), column < N)
