"""The Triton kernels of ``matmul``: plain, persistent with tensor descriptors, split sums.

All end in ``finish``: scale, bias, activation, a caller's own pointwise function, residual, in
float32. A tile's place in the output is grouped, so that programs that run at the same time share
operands in the L2 cache.
"""

from __future__ import annotations

from typing import Any

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.pointwise.kernel import INTERPRETED, activation


@jit
def activate(x: tl.tensor, ACTIVATION: tl.constexpr, FAST: tl.constexpr) -> tl.tensor:
    """The activation of float32 ``x``; ``FAST`` allows errors far below a rounding to 16 bits."""
    if ACTIVATION == "relu":
        # A comparison that is false for NaN would lose it.
        x = tl.where(x <= 0, 0.0, x)
    elif ACTIVATION == "relu_squared":
        x = tl.where(x <= 0, 0.0, x)
        x = x * x
    elif ACTIVATION is not None:
        x, _ = activation(x, ACTIVATION, FAST)
    return x


@jit
def slope(x: tl.tensor, ACTIVATION: tl.constexpr, FAST: tl.constexpr) -> tl.tensor:
    """The activation's derivative at float32 ``x``."""
    if ACTIVATION == "relu":
        x = tl.where(x <= 0, 0.0, 1.0)
    elif ACTIVATION == "relu_squared":
        x = tl.where(x <= 0, 0.0, 2.0 * x)
    elif ACTIVATION == "gelu_tanh" and not FAST:
        # sigmoid(v) and sigmoid(-v) of v > 0: their product is precise where 1 - s is not
        square = x * x
        e = tl.exp2(-tl.abs(x * (square * 0.10294324072903344 + 2.302208198144325)))
        large = 1.0 / (1.0 + e)
        small = e * large
        rise = square * 0.2140644488178007 + 1.5957691216057308
        x = tl.where(x > 0, large, small) + x * (large * small) * rise
    else:
        _, x = activation(x, ACTIVATION, FAST)
    return x


@jit
def multiply(x: tl.tensor, y: tl.tensor, acc: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """``x @ y + acc``."""
    if INTERPRETED and x.dtype == tl.bfloat16:  # the interpreter would multiply their bits
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    return tl.dot(x, y, acc, input_precision=PRECISION)


@jit
def call_epilogue(
    value: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    keep: tl.tensor,
    extra0: tl.tensor,
    extra1: tl.tensor,
    extra2: tl.tensor,
    extra3: tl.tensor,
    EPILOGUE: tl.constexpr,
    EXTRAS: tl.constexpr,
) -> tl.tensor:
    """The caller's function with as many pointers as it takes."""
    if EXTRAS == 0:
        value = EPILOGUE(value, row, column, keep)
    elif EXTRAS == 1:
        value = EPILOGUE(value, row, column, keep, extra0)
    elif EXTRAS == 2:
        value = EPILOGUE(value, row, column, keep, extra0, extra1)
    elif EXTRAS == 3:
        value = EPILOGUE(value, row, column, keep, extra0, extra1, extra2)
    else:
        value = EPILOGUE(value, row, column, keep, extra0, extra1, extra2, extra3)
    return value


@jit
def tile_position(
    tile: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
) -> Any:
    """Row and column of a tile: column by column in bands of ``GROUP`` tile rows."""
    tiles_m = tl.cdiv(M, BLOCK_M)
    band = GROUP * tl.cdiv(N, BLOCK_N)
    first = (tile // band) * GROUP
    height = tl.minimum(tiles_m - first, GROUP)
    return first + (tile % band) % height, (tile % band) // height


@jit
def store_tile(
    acc: tl.tensor,
    row: tl.tensor,
    column: tl.tensor,
    c: tl.tensor,
    pre: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    extra0: tl.tensor,
    extra1: tl.tensor,
    extra2: tl.tensor,
    extra3: tl.tensor,
    scale: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    residual_row: tl.tensor,
    residual_column: tl.tensor,
    ACTIVATION: tl.constexpr,
    SCALED: tl.constexpr,
    EPILOGUE: tl.constexpr,
    EXTRAS: tl.constexpr,
) -> None:
    """Finishes a tile and stores it by pointers; ``row [m, 1]`` is 64 bits wide."""
    keep = (row < M) & (column < N)
    # Beside a float64 tensor it would be float64.
    value = (acc * scale).to(tl.float32) if SCALED else acc
    if bias is not None:
        value += tl.load(bias + column, column < N, 0.0).to(tl.float32)
    place = row * N + column
    if pre is not None:
        tl.store(pre + place, value.to(pre.dtype.element_ty), keep)
    value = activate(value, ACTIVATION, c.dtype.element_ty.primitive_bitwidth < 32)
    if EPILOGUE is not None:
        value = call_epilogue(
            value, row, column, keep, extra0, extra1, extra2, extra3, EPILOGUE, EXTRAS
        )
    if residual is not None:
        offset = row * residual_row + column.to(tl.int64) * residual_column
        value += tl.load(residual + offset, keep, 0.0).to(tl.float32)
    tl.store(c + place, value.to(c.dtype.element_ty), keep)


@jit
def plain_kernel(
    a: tl.tensor,
    b: tl.tensor,
    c: tl.tensor,
    pre: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    extra0: tl.tensor,
    extra1: tl.tensor,
    extra2: tl.tensor,
    extra3: tl.tensor,
    scale: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    K: tl.tensor,
    a_batch: tl.tensor,
    a_row: tl.tensor,
    a_k: tl.tensor,
    b_batch: tl.tensor,
    b_k: tl.tensor,
    b_column: tl.tensor,
    residual_batch: tl.tensor,
    residual_row: tl.tensor,
    residual_column: tl.tensor,
    chunk: tl.tensor,
    A_UNIT: tl.constexpr,
    B_UNIT: tl.constexpr,
    EVEN_K: tl.constexpr,
    PRECISION: tl.constexpr,
    SPLIT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALED: tl.constexpr,
    EPILOGUE: tl.constexpr,
    EXTRAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
) -> None:
    """One tile of ``a @ b`` for any strides; with SPLIT a partial sum over ``chunk`` of K.

    ``A_UNIT`` and ``B_UNIT`` name the dimension with stride 1: ``"k"``, ``"o"`` (the outer one) or
    None. Partial sums go to ``c [splits, batch, M, N]`` in float32, unfinished.
    """
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    program = tl.program_id(0)
    batch = (program // tiles).to(tl.int64)
    tile_m, tile_n = tile_position(program % tiles, M, N, BLOCK_M, BLOCK_N, GROUP)
    # Rows and columns beyond the end read others' data, which is never stored.
    m = ((tile_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M).to(tl.int64)
    n = ((tile_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N).to(tl.int64)
    start = 0
    stop = K
    if SPLIT:
        start = tl.program_id(1) * chunk
        stop = tl.minimum(K, start + chunk)
    k = tl.arange(0, BLOCK_K)
    a_step = tl.full((), 1, tl.int64) * a_k
    b_step = tl.full((), 1, tl.int64) * b_k
    if A_UNIT == "k":
        a_at = a + batch * a_batch + m[:, None] * a_row + (start + k)[None, :]
    elif A_UNIT == "o":
        a_at = a + batch * a_batch + m[:, None] + (start + k)[None, :] * a_step
    else:
        a_at = a + batch * a_batch + m[:, None] * a_row + (start + k)[None, :] * a_step
    if B_UNIT == "k":
        b_at = b + batch * b_batch + (start + k)[:, None] + n[None, :] * b_column
    elif B_UNIT == "o":
        b_at = b + batch * b_batch + (start + k)[:, None] * b_step + n[None, :]
    else:
        b_at = b + batch * b_batch + (start + k)[:, None] * b_step + n[None, :] * b_column
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(start, stop, BLOCK_K):
        if EVEN_K:
            x = tl.load(a_at)
            y = tl.load(b_at)
        else:
            x = tl.load(a_at, (k < stop - begin)[None, :], 0.0)
            y = tl.load(b_at, (k < stop - begin)[:, None], 0.0)
        acc = multiply(x, y, acc, PRECISION)
        if A_UNIT == "k":
            a_at += BLOCK_K
        else:
            a_at += BLOCK_K * a_step
        if B_UNIT == "k":
            b_at += BLOCK_K
        else:
            b_at += BLOCK_K * b_step
    row = (tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = (tile_n * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    size = tl.full((), 1, tl.int64) * M * N
    if SPLIT:
        batches = tl.num_programs(0) // tiles
        at = c + (tl.program_id(1).to(tl.int64) * batches + batch) * size + row * N + column
        tl.store(at, acc, (row < M) & (column < N))
    else:
        if pre is not None:
            pre = pre + batch * size
        if residual is not None:
            residual = residual + batch * residual_batch
        store_tile(
            acc, row, column, c + batch * size, pre, bias, residual, extra0, extra1, extra2,
            extra3, scale, M, N, residual_row, residual_column, ACTIVATION, SCALED, EPILOGUE,
            EXTRAS,
        )  # fmt: skip


@jit
def combine_kernel(
    partial: tl.tensor,
    c: tl.tensor,
    pre: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    extra0: tl.tensor,
    extra1: tl.tensor,
    extra2: tl.tensor,
    extra3: tl.tensor,
    scale: tl.tensor,
    M: tl.tensor,
    N: tl.tensor,
    residual_batch: tl.tensor,
    residual_row: tl.tensor,
    residual_column: tl.tensor,
    splits: tl.tensor,
    batches: tl.tensor,
    ACTIVATION: tl.constexpr,
    SCALED: tl.constexpr,
    EPILOGUE: tl.constexpr,
    EXTRAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Adds the partial sums ``[splits, batches, M, N]`` in order and finishes a tile."""
    tiles_n = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * tiles_n
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    row = ((tile // tiles_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M))[:, None]
    column = ((tile % tiles_n) * BLOCK_N + tl.arange(0, BLOCK_N))[None, :]
    keep = (row < M) & (column < N)
    size = tl.full((), 1, tl.int64) * M * N
    at = partial + batch * size + row * N + column
    acc = tl.load(at, keep, 0.0)
    for _ in range(1, splits):
        at += batches * size
        acc += tl.load(at, keep, 0.0)
    if pre is not None:
        pre = pre + batch * size
    if residual is not None:
        residual = residual + batch * residual_batch
    store_tile(
        acc, row, column, c + batch * size, pre, bias, residual, extra0, extra1, extra2, extra3,
        scale, M, N, residual_row, residual_column, ACTIVATION, SCALED, EPILOGUE, EXTRAS,
    )  # fmt: skip


@jit
def gradient_kernel(
    grad: tl.tensor,
    pre: tl.tensor,
    out: tl.tensor,
    count: tl.tensor,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``out = grad * activation'(pre)`` for contiguous tensors."""
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    keep = index < count
    low: tl.constexpr = out.dtype.element_ty.primitive_bitwidth < 32
    value = slope(tl.load(pre + index, keep, 0.0).to(tl.float32), ACTIVATION, low)
    value *= tl.load(grad + index, keep, 0.0).to(tl.float32)
    tl.store(out + index, value.to(out.dtype.element_ty), keep)
