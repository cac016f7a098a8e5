"""The persistent Triton kernel of ``matmul``: tensor descriptors, one program per multiprocessor.

Loads and stores go through the tensor memory accelerator of Hopper and later; each program walks
over tiles, and the epilogue is cut into pieces so that it needs less shared memory.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.matmul.kernel import (
    activate,
    call_epilogue,
    multiply,
    tile_position,
)
from torchsmith_kernels._src.pointwise.kernel import INTERPRETED


@jit
def prefetch(bias: tl.tensor, n0: tl.tensor, N: tl.tensor, BLOCK_N: tl.constexpr) -> None:
    """Brings the bias of a tile's columns into the L1 cache, where the epilogue finds it."""
    if not INTERPRETED:
        column = tl.minimum(n0 + tl.arange(0, BLOCK_N), N - 1)
        tl.inline_asm_elementwise(
            "prefetch.global.L1 [$1]; mov.u32 $0, 0;",
            "=r,l",
            [(bias + column).to(tl.int64)],
            tl.int32,
            is_pure=False,
            pack=1,
        )


@jit
def store_piece(
    acc: tl.tensor,
    m0: tl.tensor,
    n0: tl.tensor,
    c_tiles: tl.tensor,
    pre_tiles: tl.tensor,
    residual_tiles: tl.tensor,
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
    SAVE: tl.constexpr,
    RESIDUAL_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Finishes ``acc [BLOCK_M, BLOCK_N]``, which belongs at ``(m0, n0)``, and stores it."""
    column = (n0 + tl.arange(0, BLOCK_N))[None, :]
    # Beside a float64 tensor it would be float64.
    value = (acc * scale).to(tl.float32) if SCALED else acc
    if bias is not None:
        value += tl.load(bias + column, column < N, 0.0).to(tl.float32)
    if SAVE:
        pre_tiles.store([m0, n0], value.to(pre_tiles.dtype))
    value = activate(value, ACTIVATION, True)
    if EPILOGUE is not None:
        row = (m0.to(tl.int64) + tl.arange(0, BLOCK_M))[:, None]
        keep = (row < M) & (column < N)
        value = call_epilogue(
            value, row, column, keep, extra0, extra1, extra2, extra3, EPILOGUE, EXTRAS
        )
    if RESIDUAL_TILES:
        value += residual_tiles.load([m0, n0]).to(tl.float32)
    elif residual is not None:
        row = (m0.to(tl.int64) + tl.arange(0, BLOCK_M))[:, None]
        offset = row * residual_row + column.to(tl.int64) * residual_column
        value += tl.load(residual + offset, (row < M) & (column < N), 0.0).to(tl.float32)
    c_tiles.store([m0, n0], value.to(c_tiles.dtype))


@jit
def persistent_kernel(
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
    a_pitch: tl.tensor,
    b_pitch: tl.tensor,
    residual_row: tl.tensor,
    residual_column: tl.tensor,
    A_BY_K: tl.constexpr,
    B_BY_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALED: tl.constexpr,
    EPILOGUE: tl.constexpr,
    EXTRAS: tl.constexpr,
    SAVE: tl.constexpr,
    RESIDUAL_TILES: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PIECES: tl.constexpr,
    FLATTEN: tl.constexpr,
    SPECIALIZE: tl.constexpr,
) -> None:
    """``a @ b`` finished; ``A_BY_K``: ``a``'s rows are contiguous, ``B_BY_K``: b's columns are."""
    a_step = a_pitch.to(tl.int64)
    b_step = b_pitch.to(tl.int64)
    c_step = N.to(tl.int64)
    WIDTH: tl.constexpr = BLOCK_N // PIECES
    if A_BY_K:
        a_tiles = tl.make_tensor_descriptor(a, [M, K], [a_step, 1], [BLOCK_M, BLOCK_K])
    else:
        a_tiles = tl.make_tensor_descriptor(a, [K, M], [a_step, 1], [BLOCK_K, BLOCK_M])
    if B_BY_K:
        b_tiles = tl.make_tensor_descriptor(b, [N, K], [b_step, 1], [BLOCK_N, BLOCK_K])
    else:
        b_tiles = tl.make_tensor_descriptor(b, [K, N], [b_step, 1], [BLOCK_K, BLOCK_N])
    c_tiles = tl.make_tensor_descriptor(c, [M, N], [c_step, 1], [BLOCK_M, WIDTH])
    pre_tiles = c_tiles
    if SAVE:
        pre_tiles = tl.make_tensor_descriptor(pre, [M, N], [c_step, 1], [BLOCK_M, WIDTH])
    residual_tiles = c_tiles
    if RESIDUAL_TILES:
        residual_tiles = tl.make_tensor_descriptor(
            residual, [M, N], [residual_row.to(tl.int64), 1], [BLOCK_M, WIDTH]
        )
    tiles = tl.cdiv(M, BLOCK_M) * tl.cdiv(N, BLOCK_N)
    programs = tl.num_programs(0)
    # Counted apart, so that the next tile's loads need not wait for this one's epilogue.
    finished = tl.program_id(0) - programs
    for tile in tl.range(
        tl.program_id(0), tiles, programs, flatten=FLATTEN, warp_specialize=SPECIALIZE
    ):
        tile_m, tile_n = tile_position(tile, M, N, BLOCK_M, BLOCK_N, GROUP)
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        if bias is not None:
            prefetch(bias, tile_n * BLOCK_N, N, BLOCK_N)
        for step in range(tl.cdiv(K, BLOCK_K)):
            if A_BY_K:
                x = a_tiles.load([tile_m * BLOCK_M, step * BLOCK_K])
            else:
                x = a_tiles.load([step * BLOCK_K, tile_m * BLOCK_M]).T
            if B_BY_K:
                y = b_tiles.load([tile_n * BLOCK_N, step * BLOCK_K]).T
            else:
                y = b_tiles.load([step * BLOCK_K, tile_n * BLOCK_N])
            acc = multiply(x, y, acc, "ieee")
        finished += programs
        tile_m, tile_n = tile_position(finished, M, N, BLOCK_M, BLOCK_N, GROUP)
        m0 = tile_m * BLOCK_M
        n0 = tile_n * BLOCK_N
        if PIECES == 1:
            store_piece(
                acc, m0, n0, c_tiles, pre_tiles, residual_tiles, bias, residual, extra0, extra1,
                extra2, extra3, scale, M, N, residual_row, residual_column, ACTIVATION, SCALED,
                EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
            )  # fmt: skip
        else:
            halves = tl.reshape(acc, (BLOCK_M, 2, BLOCK_N // 2))
            left, right = tl.split(tl.permute(halves, (0, 2, 1)))
            if PIECES == 2:
                store_piece(
                    left, m0, n0, c_tiles, pre_tiles, residual_tiles, bias, residual, extra0,
                    extra1, extra2, extra3, scale, M, N, residual_row, residual_column,
                    ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
                )  # fmt: skip
                store_piece(
                    right, m0, n0 + WIDTH, c_tiles, pre_tiles, residual_tiles, bias, residual,
                    extra0, extra1, extra2, extra3, scale, M, N, residual_row, residual_column,
                    ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
                )  # fmt: skip
            else:
                quarters = tl.reshape(left, (BLOCK_M, 2, BLOCK_N // 4))
                first, second = tl.split(tl.permute(quarters, (0, 2, 1)))
                store_piece(
                    first, m0, n0, c_tiles, pre_tiles, residual_tiles, bias, residual, extra0,
                    extra1, extra2, extra3, scale, M, N, residual_row, residual_column,
                    ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
                )  # fmt: skip
                store_piece(
                    second, m0, n0 + WIDTH, c_tiles, pre_tiles, residual_tiles, bias, residual,
                    extra0, extra1, extra2, extra3, scale, M, N, residual_row, residual_column,
                    ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
                )  # fmt: skip
                quarters = tl.reshape(right, (BLOCK_M, 2, BLOCK_N // 4))
                first, second = tl.split(tl.permute(quarters, (0, 2, 1)))
                store_piece(
                    first, m0, n0 + 2 * WIDTH, c_tiles, pre_tiles, residual_tiles, bias, residual,
                    extra0, extra1, extra2, extra3, scale, M, N, residual_row, residual_column,
                    ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES, BLOCK_M, WIDTH,
                )  # fmt: skip
                store_piece(
                    second, m0, n0 + 3 * WIDTH, c_tiles, pre_tiles, residual_tiles, bias,
                    residual, extra0, extra1, extra2, extra3, scale, M, N, residual_row,
                    residual_column, ACTIVATION, SCALED, EPILOGUE, EXTRAS, SAVE, RESIDUAL_TILES,
                    BLOCK_M, WIDTH,
                )  # fmt: skip
