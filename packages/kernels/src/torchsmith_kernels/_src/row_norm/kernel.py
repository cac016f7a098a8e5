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
        # Read late, and from the L1 cache, for more programs at a time than registers would allow.
        if weight is not None:
            result *= tl.load(weight + lane, inside, other=0.0).to(tl.float32)
        if bias is not None:
            result += tl.load(bias + lane, inside, other=0.0).to(tl.float32)
        tl.store(y + row * N + lane, result.to(y.dtype.element_ty), keep)


@jit
def _folded(tile: tl.tensor, FOLD: tl.constexpr) -> tl.tensor:
    """Sums of every ``FOLD`` neighbours, which one thread holds: fewer registers for totals."""
    return tl.sum(tl.reshape(tile, [tile.shape[0] // FOLD, FOLD]), 1)


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
    DENSE: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Normalizes one row of any width, read once from memory and then from the caches."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    x += row * (N if DENSE else x_stride)
    y += row * N
    if residual is not None:
        residual += row * (N if DENSE else residual_stride)
        total += row * N
    if MEAN:
        # As in statistics_kernel.
        head = tl.load(x + lane, lane < N, other=0.0).to(tl.float32)
        if residual is not None:
            head += tl.load(residual + lane, lane < N, other=0.0).to(tl.float32)
        shift = tl.sum(head, 0) / tl.minimum(N, BLOCK_N)
    FOLD: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    first = tl.zeros([BLOCK_N // FOLD], tl.float32)
    squares = tl.zeros([BLOCK_N // FOLD], tl.float32)
    for start in range(0, N, BLOCK_N):
        column = start + lane
        value = tl.load(x + column, column < N, other=0.0, eviction_policy="evict_last")
        if residual is not None:
            other = tl.load(residual + column, column < N, other=0.0)
            value = (value.to(tl.float32) + other.to(tl.float32)).to(value.dtype)
            tl.store(total + column, value, column < N)
        value = value.to(tl.float32)
        if MEAN:
            value = tl.where(column < N, value - shift, 0.0)
            first += _folded(value, FOLD)
        squares += _folded(value * value, FOLD)
    variance = tl.sum(squares, 0) / N
    if MEAN:
        offset = tl.sum(first, 0) / N
        mean = shift + offset
        variance -= offset * offset
        variance = tl.where(variance < 0, 0.0, variance)
    if residual is not None:
        # The next pass reads the sum back, perhaps in other threads than those that wrote it.
        tl.debug_barrier()
        x = total
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
def _row_sums(a: tl.tensor, b: tl.tensor) -> tl.tensor:
    return tl.sum(a, 1)[:, None], tl.sum(b, 1)[:, None]


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
) -> None:
    """Input gradient of a share of the rows, and their part of the weight's and bias' gradients.

    Program ``(part, share)`` owns ``BLOCK_N`` columns. Where a row has two parts, the sums over it
    take the other one too (its own program reads it at about the same time, so it comes from L2).
    Where it has more, ``statistics`` holds what ``statistics_kernel`` found.
    """
    PARTS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    part = tl.program_id(0)
    share = tl.program_id(1)
    # Spread over the block's rows, so that the weight gets the layout of the rows.
    lane = part * BLOCK_N + tl.arange(0, BLOCK_N)[None, :] + tl.zeros([BLOCK_M, 1], tl.int32)
    inside = lane < N
    other_lane = (1 - part) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    other_lane += tl.zeros([BLOCK_M, 1], tl.int32)
    other_inside = other_lane < N
    # Over the widest rows the weight is read again for each, since registers are short.
    HOLD: tl.constexpr = BLOCK_N < 16384
    held = None
    if HOLD and weight is not None:
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
        value = x_raw.to(tl.float32)
        upstream = grad_raw.to(tl.float32)
        if HOLD or weight is None:
            scale = held
        else:
            scale = tl.load(weight + lane, inside, other=0.0)
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
                total, scaled_total = _row_sums(value, _scaled(upstream, scale))
                mean = total / size
                value -= mean
                if N % BLOCK_N != 0:
                    value = tl.where(inside, value, 0.0)
            squares = value * value
            products = _scaled(upstream * value, scale)
            if MEAN or PARTS == 1:
                square, product = _row_sums(squares, products)
            if PARTS == 2:
                there = row_ok & other_inside
                v = tl.load(x_row + other_lane, there, other=0.0).to(tl.float32)
                s = tl.load(grad_row + other_lane, there, other=0.0).to(tl.float32)
                if weight is not None:
                    s *= tl.load(weight + other_lane, other_inside, other=0.0).to(tl.float32)
            if PARTS == 2 and not MEAN:
                square, product = _row_sums(squares + v * v, products + s * v)
            if PARTS == 2 and MEAN:
                # Joining sums around the means of two sets (Chan et al., 1979) loses no digits,
                # and the other set needs no registers meanwhile.
                v_size = N - size
                v_total, s_total = _row_sums(v, s)
                v_mean = v_total / v_size
                v = tl.where(other_inside, v - v_mean, 0.0)
                v_square, v_product = _row_sums(v * v, s * v)
                apart = v_mean - mean
                fraction = v_size.to(tl.float32) / N
                square += v_square + apart * apart * (size.to(tl.float32) * fraction)
                product += v_product + s_total * (apart * (1 - fraction))
                product -= scaled_total * (apart * fraction)
                scaled_total += s_total
                mean += apart * fraction
            rstd = tl.rsqrt(square / N + tl.cast(eps, tl.float32))
            # Rows past the end are 0, but 0 * rstd is NaN when eps is 0.
            rstd = tl.where(row_ok, rstd, 0.0)
            dot = rstd * rstd * (product / N)
            value = _widened(x_raw)
            upstream = _widened(grad_raw)
            if MEAN:
                value -= mean
                scaled_mean = scaled_total / N
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
    DENSE: tl.constexpr,
    MEAN: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """What ``backward_kernel`` needs to know about one wide row."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    x += row * (N if DENSE else x_stride)
    grad += row * (N if DENSE else grad_stride)
    if MEAN:
        # Around the mean of the first block, which is a part of the row of 1 in N / BLOCK_N: so
        # the variance from the sum of squares loses that factor of precision at worst.
        head = tl.load(x + lane, lane < N, other=0.0).to(tl.float32)
        shift = tl.sum(head, 0) / tl.minimum(N, BLOCK_N)
    FOLD: tl.constexpr = 128 // x.dtype.element_ty.primitive_bitwidth
    total = tl.zeros([BLOCK_N // FOLD], tl.float32)
    squares = tl.zeros([BLOCK_N // FOLD], tl.float32)
    products = tl.zeros([BLOCK_N // FOLD], tl.float32)
    scaled_total = tl.zeros([BLOCK_N // FOLD], tl.float32)
    for start in range(0, N, BLOCK_N):
        column = start + lane
        value = tl.load(x + column, column < N, other=0.0).to(tl.float32)
        scaled = tl.load(grad + column, column < N, other=0.0).to(tl.float32)
        if weight is not None:
            scaled *= tl.load(weight + column, column < N, other=0.0).to(tl.float32)
        if MEAN:
            value = tl.where(column < N, value - shift, 0.0)
            total += _folded(value, FOLD)
            scaled_total += _folded(scaled, FOLD)
        squares += _folded(value * value, FOLD)
        products += _folded(scaled * value, FOLD)
    variance = tl.sum(squares, 0) / N
    product = tl.sum(products, 0) / N
    statistics += row * 4
    if MEAN:
        offset = tl.sum(total, 0) / N
        scaled_mean = tl.sum(scaled_total, 0) / N
        variance -= offset * offset
        variance = tl.where(variance < 0, 0.0, variance)
        product -= scaled_mean * offset
        tl.store(statistics + 2, shift + offset)
        tl.store(statistics + 3, scaled_mean)
    rstd = tl.rsqrt(variance + tl.cast(eps, tl.float32))
    tl.store(statistics, rstd)
    tl.store(statistics + 1, rstd * rstd * product)


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
