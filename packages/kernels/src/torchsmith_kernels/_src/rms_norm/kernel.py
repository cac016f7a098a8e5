"""The Triton kernels of RMS normalization.

A program handles ``BLOCK_M`` rows. Rows that fit ``BLOCK_N`` columns are read once and stay in
registers (``LOOPED`` false); wider rows are walked twice, the second time mostly from the cache.
Row offsets are 64-bit, so tensors may have more than 2**31 elements. The weight's gradient is
summed in a fixed order: each program adds up its own rows, and a second kernel adds the programs'
sums, so results are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import triton
import triton.language as tl

Function = TypeVar("Function", bound=Callable[..., object])
# Typed here, since triton's own decorator loses the types of what it wraps.
jit: Callable[[Function], Function] = triton.jit


@jit
def forward_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    rows: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    LOOPED: tl.constexpr,
) -> None:
    """``y[row] = x[row] * rsqrt(mean(x[row] ** 2) + eps) * weight``."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    row_ok = row < rows
    lane = tl.arange(0, BLOCK_N)[None, :]
    x += row * x_stride
    y += row * N
    if LOOPED:
        squares = tl.zeros([BLOCK_M, BLOCK_N], COMPUTE)
        for start in range(0, N, BLOCK_N):
            keep = row_ok & (start + lane < N)
            value = tl.load(x + start + lane, keep, other=0.0, eviction_policy="evict_last")
            value = value.to(COMPUTE)
            squares += value * value
        rstd = tl.rsqrt(tl.sum(squares, 1) / N + tl.cast(eps, COMPUTE))[:, None]
        for start in range(0, N, BLOCK_N):
            column = start + lane
            keep = row_ok & (column < N)
            value = tl.load(x + column, keep, other=0.0, eviction_policy="evict_first")
            result = value.to(COMPUTE) * rstd
            if HAS_WEIGHT:
                result *= tl.load(weight + column, column < N, other=0.0).to(COMPUTE)
            tl.store(y + column, result.to(y.dtype.element_ty), keep)
    else:
        keep = row_ok & (lane < N)
        value = tl.load(x + lane, keep, other=0.0).to(COMPUTE)
        rstd = tl.rsqrt(tl.sum(value * value, 1) / N + tl.cast(eps, COMPUTE))[:, None]
        result = value * rstd
        if HAS_WEIGHT:
            result *= tl.load(weight + lane, lane < N, other=0.0).to(COMPUTE)
        tl.store(y + lane, result.to(y.dtype.element_ty), keep)


@jit
def backward_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    dx: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    rows_per_program: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEED_DX: tl.constexpr,
    NEED_DW: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Input gradient of ``rows_per_program`` rows and their share of the weight's gradient."""
    program = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)[None, :]
    lane_ok = lane < N
    total = tl.zeros([BLOCK_M, BLOCK_N], COMPUTE)
    begin = program * rows_per_program
    end = tl.minimum(begin + rows_per_program, rows)
    for step in range(0, rows_per_program, BLOCK_M):
        row = begin + step + tl.arange(0, BLOCK_M)[:, None]
        keep = (row < end) & lane_ok
        value = tl.load(x + row * x_stride + lane, keep, other=0.0).to(COMPUTE)
        upstream = tl.load(grad + row * grad_stride + lane, keep, other=0.0).to(COMPUTE)
        rstd = tl.rsqrt(tl.sum(value * value, 1) / N + tl.cast(eps, COMPUTE))[:, None]
        if NEED_DX:
            scaled = upstream
            if HAS_WEIGHT:
                # Read again per step: held over the loop, it would cost a row of registers.
                scaled = upstream * tl.load(weight + lane, lane_ok, other=0.0).to(COMPUTE)
            dot = (tl.sum(scaled * value, 1) / N)[:, None]
            result = rstd * (scaled - value * (rstd * rstd * dot))
            tl.store(dx + row * N + lane, result.to(dx.dtype.element_ty), keep)
        if NEED_DW:
            # Masked lanes may hold 0 * inf when eps is 0.
            total += tl.where(keep, upstream * value * rstd, 0.0)
    if NEED_DW:
        tl.store(partial + program * N + lane, tl.sum(total, 0)[None, :], lane_ok)


@jit
def backward_wide_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    dx: tl.tensor,
    rstds: tl.tensor,
    rows: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    eps: tl.tensor,
    N: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    NEED_DX: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Input gradient of one row that is too wide for registers; keeps its reciprocal deviation."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK_N)
    x += row * x_stride
    grad += row * grad_stride
    squares = tl.zeros([BLOCK_N], COMPUTE)
    products = tl.zeros([BLOCK_N], COMPUTE)
    for start in range(0, N, BLOCK_N):
        column = start + lane
        value = tl.load(x + column, column < N, other=0.0).to(COMPUTE)
        squares += value * value
        if NEED_DX:
            scaled = tl.load(grad + column, column < N, other=0.0).to(COMPUTE)
            if HAS_WEIGHT:
                scaled *= tl.load(weight + column, column < N, other=0.0).to(COMPUTE)
            products += scaled * value
    rstd = tl.rsqrt(tl.sum(squares, 0) / N + tl.cast(eps, COMPUTE))
    tl.store(rstds + row, rstd)
    if NEED_DX:
        factor = rstd * rstd * (tl.sum(products, 0) / N)
        for start in range(0, N, BLOCK_N):
            column = start + lane
            value = tl.load(x + column, column < N, other=0.0).to(COMPUTE)
            scaled = tl.load(grad + column, column < N, other=0.0).to(COMPUTE)
            if HAS_WEIGHT:
                scaled *= tl.load(weight + column, column < N, other=0.0).to(COMPUTE)
            result = rstd * (scaled - value * factor)
            tl.store(dx + row * N + column, result.to(dx.dtype.element_ty), column < N)


@jit
def weight_partial_kernel(
    grad: tl.tensor,
    x: tl.tensor,
    rstds: tl.tensor,
    partial: tl.tensor,
    rows: tl.tensor,
    grad_stride: tl.tensor,
    x_stride: tl.tensor,
    rows_per_program: tl.tensor,
    N: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """Sum of ``grad * x * rstd`` over some rows, for a block of columns."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    part = tl.program_id(1).to(tl.int64)
    begin = part * rows_per_program
    end = tl.minimum(begin + rows_per_program, rows)
    total = tl.zeros([BLOCK_M, BLOCK_N], COMPUTE)
    for step in range(0, rows_per_program, BLOCK_M):
        row = begin + step + tl.arange(0, BLOCK_M)[:, None]
        keep = (row < end) & (column < N)
        value = tl.load(x + row * x_stride + column, keep, other=0.0).to(COMPUTE)
        upstream = tl.load(grad + row * grad_stride + column, keep, other=0.0).to(COMPUTE)
        total += upstream * value * tl.load(rstds + row, row < end, other=0.0)
    tl.store(partial + part * N + column, tl.sum(total, 0)[None, :], column < N)


@jit
def weight_sum_kernel(
    partial: tl.tensor,
    dw: tl.tensor,
    parts: tl.tensor,
    N: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    """``dw = sum of partial over its first axis``, always in the same order."""
    column = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], COMPUTE)
    for start in range(0, parts, BLOCK_M):
        row = start + tl.arange(0, BLOCK_M)[:, None]
        keep = (row < parts) & (column < N)
        total += tl.load(partial + row.to(tl.int64) * N + column, keep, other=0.0)
    result = tl.sum(total, 0)[None, :]
    tl.store(dw + column, result.to(dw.dtype.element_ty), column < N)
