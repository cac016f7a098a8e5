"""The forward kernel: one tile of queries of one head per program, online softmax over the keys."""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.flash_attention.scores import (
    LN2,
    change,
    dot,
    kept,
    load_rows,
    store_rows,
    visible,
)
from torchsmith_kernels._src.jit import jit


@jit
def _attend(
    acc: tl.tensor,
    total: tl.tensor,
    peak: tl.tensor,
    q_tile: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    k_row: tl.tensor,
    v_row: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    full_low: tl.tensor,
    full_high: tl.tensor,
    i: tl.tensor,
    place: tl.tensor,
    batch: tl.tensor,
    head: tl.tensor,
    plane: tl.tensor,
    length_q: tl.tensor,
    length_k: tl.tensor,
    bias: tl.tensor,
    bias_q: tl.tensor,
    bias_k: tl.tensor,
    slope: tl.tensor,
    seed: tl.tensor,
    threshold: tl.tensor,
    scale: tl.tensor,
    multiplier: tl.tensor,
    softcap: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    PRECISION: tl.constexpr,
    WINDOWED: tl.constexpr,
    RAGGED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Adds the keys from ``low`` to ``high``; those from ``full_low`` to ``full_high`` unmasked.

    One loop with a branch: ptxas does not overlap the matrix products of two loops in a row.
    """
    columns = tl.arange(0, BLOCK_N)
    for start in tl.range(low, high, BLOCK_N):
        k_tile = load_rows(
            k + start * k_row.to(tl.int64),
            columns,
            k_row,
            length_k - start,
            HEAD_DIM,
            BLOCK_D,
            RAGGED,
        )
        raw = dot(q_tile, tl.trans(k_tile), None, PRECISION)
        j = (start + columns)[None, :]
        score, _, _ = change(
            raw, i, j, place, batch, head, length_q, length_k, bias, bias_q, bias_k, slope, scale,
            softcap, SCALED, SCORE_MOD,
        )  # fmt: skip
        if WINDOWED or RAGGED:
            if (start < full_low) | (start >= full_high):
                seen = visible(j, place, length_k, left, right)
                score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1) * multiplier)
        origin = higher
        if WINDOWED or RAGGED or bias is not None or SCORE_MOD is not None:
            # A row that has seen nothing yet must not compute inf - inf.
            origin = tl.where(higher == float("-inf"), 0.0, higher)
        weight = tl.exp2(score * multiplier - origin[:, None])
        shrink = tl.exp2(peak - origin)
        total = total * shrink + tl.sum(weight, 1)
        if seed is not None:
            weight = tl.where(kept(seed, plane, i, j, threshold), weight, 0.0)
        acc = acc * shrink[:, None]
        v_tile = load_rows(
            v + start * v_row.to(tl.int64),
            columns,
            v_row,
            length_k - start,
            HEAD_DIM,
            BLOCK_D,
            RAGGED,
        )
        acc = dot(weight.to(v_tile.dtype), v_tile, acc, PRECISION)
        peak = higher
    return acc, total, peak


@jit
def forward_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    bias: tl.tensor,
    slopes: tl.tensor,
    cu_q: tl.tensor,
    cu_k: tl.tensor,
    seeds: tl.tensor,
    out: tl.tensor,
    lse: tl.tensor,
    tiles: tl.tensor,
    heads: tl.tensor,
    group: tl.tensor,
    length_q: tl.tensor,
    length_k: tl.tensor,
    q_batch: tl.tensor,
    q_head: tl.tensor,
    q_row: tl.tensor,
    k_batch: tl.tensor,
    k_head: tl.tensor,
    k_row: tl.tensor,
    v_batch: tl.tensor,
    v_head: tl.tensor,
    v_row: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    bias_batch: tl.tensor,
    bias_head: tl.tensor,
    bias_q: tl.tensor,
    bias_k: tl.tensor,
    slopes_batch: tl.tensor,
    lse_batch: tl.tensor,
    lse_head: tl.tensor,
    scale: tl.tensor,
    multiplier: tl.tensor,
    softcap: tl.tensor,
    threshold: tl.tensor,
    keep_scale: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    SCALED: tl.constexpr,
    BOTTOM_RIGHT: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    PRECISION: tl.constexpr,
    RAGGED: tl.constexpr,
) -> None:
    """``out = softmax(scores) @ v`` and ``lse = log(sum(exp(scores)))``."""
    number = tl.program_id(0)
    tile = number % tiles
    plane = number // tiles
    head = plane % heads
    batch = plane // heads
    if right is not None:
        tile = tiles - 1 - tile  # the longest first
    wide_batch = batch.to(tl.int64)
    first_q = tl.full([], 0, tl.int64)
    first_k = tl.full([], 0, tl.int64)
    if cu_q is not None:
        first_q = tl.load(cu_q + batch).to(tl.int64)
        first_k = tl.load(cu_k + batch).to(tl.int64)
        length_q = (tl.load(cu_q + batch + 1) - first_q).to(tl.int32)
        length_k = (tl.load(cu_k + batch + 1) - first_k).to(tl.int32)
    start = tile * BLOCK_M
    if start >= length_q:
        return

    kv_head = (head // group).to(tl.int64)
    wide_head = head.to(tl.int64)
    q += wide_batch * q_batch + wide_head * q_head + (first_q + start) * q_row
    out += wide_batch * out_batch + wide_head * out_head + (first_q + start) * out_row
    k += wide_batch * k_batch + kv_head * k_head + first_k * k_row
    v += wide_batch * v_batch + kv_head * v_head + first_k * v_row
    lse += wide_batch * lse_batch + wide_head * lse_head + first_q + start
    if bias is not None:
        bias += wide_batch * bias_batch + wide_head * bias_head
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + batch * slopes_batch + head)
    seed = seeds
    if seeds is not None:
        seed = tl.load(seeds)

    offset = length_k * 0
    if BOTTOM_RIGHT:
        offset = length_k - length_q
    # Keys below full_low and from full_high on need the window's mask.
    low = length_k * 0
    full_low = low
    high = length_k
    full_high = length_k // BLOCK_N * BLOCK_N
    if right is not None:
        high = tl.minimum(high, tl.maximum(start + BLOCK_M + offset + right, 0))
        full_high = tl.minimum(
            full_high, tl.maximum(start + offset + right + 1, 0) // BLOCK_N * BLOCK_N
        )
    if left is not None:
        low = tl.maximum(start + offset - left, 0) // BLOCK_N * BLOCK_N
        full_low = tl.maximum(start + BLOCK_M - 1 + offset - left, 0)
        full_low = (full_low + BLOCK_N - 1) // BLOCK_N * BLOCK_N

    rows = tl.arange(0, BLOCK_M)
    i = (start + rows)[:, None]
    place = i + offset
    q_tile = load_rows(q, rows, q_row, length_q - start, HEAD_DIM, BLOCK_D, True)
    peak = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    WINDOWED: tl.constexpr = left is not None or right is not None
    acc, total, peak = _attend(
        acc, total, peak, q_tile, k, v, k_row, v_row, low, high, full_low, full_high, i, place,
        batch, head, plane, length_q, length_k, bias, bias_q, bias_k, slope, seed, threshold,
        scale, multiplier, softcap, left, right, HEAD_DIM, BLOCK_D, BLOCK_N, SCALED, SCORE_MOD,
        PRECISION, WINDOWED, RAGGED,
    )  # fmt: skip

    factor = 1.0 / tl.where(total == 0, 1.0, total)
    if seeds is not None:
        factor *= keep_scale
    store_rows(out, acc * factor[:, None], rows, out_row, length_q - start, HEAD_DIM, BLOCK_D)
    tl.store(lse + rows, peak * LN2 + tl.log(total), rows < length_q - start)
