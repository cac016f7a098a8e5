"""The backward kernels: row means, gradients of keys and values, gradients of queries.

The last two recompute the weights from the saved log-sum-exp, one over tiles of keys and one over
tiles of queries, so that every sum has one program and one order.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.flash_attention.scores import (
    LOG2E,
    change,
    dot,
    kept,
    load_rows,
    store_rows,
    visible,
)
from torchsmith_kernels._src.jit import jit


@jit
def mean_kernel(
    out: tl.tensor,
    grad: tl.tensor,
    grad_lse: tl.tensor,
    cu_q: tl.tensor,
    mean: tl.tensor,
    tiles: tl.tensor,
    heads: tl.tensor,
    length_q: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    grad_batch: tl.tensor,
    grad_head: tl.tensor,
    grad_row: tl.tensor,
    lse_batch: tl.tensor,
    lse_head: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
) -> None:
    """``mean = sum(out * grad) - grad_lse`` of each row."""
    number = tl.program_id(0)
    start = number % tiles * BLOCK_M
    plane = number // tiles
    batch = plane // heads
    wide_batch = batch.to(tl.int64)
    wide_head = (plane % heads).to(tl.int64)
    first_q = tl.full([], 0, tl.int64)
    if cu_q is not None:
        first_q = tl.load(cu_q + batch).to(tl.int64)
        length_q = (tl.load(cu_q + batch + 1) - first_q).to(tl.int32)
    if start >= length_q:
        return
    rows = tl.arange(0, BLOCK_M)
    limit = length_q - start
    out += wide_batch * out_batch + wide_head * out_head + (first_q + start) * out_row
    grad += wide_batch * grad_batch + wide_head * grad_head + (first_q + start) * grad_row
    place = wide_batch * lse_batch + wide_head * lse_head + first_q + start + rows
    value = load_rows(out, rows, out_row, limit, HEAD_DIM, BLOCK_D, True).to(tl.float32)
    upstream = load_rows(grad, rows, grad_row, limit, HEAD_DIM, BLOCK_D, True).to(tl.float32)
    result = tl.sum(value * upstream, 1)
    if grad_lse is not None:
        result -= tl.load(grad_lse + place, rows < limit, 0.0)
    tl.store(mean + place, result, rows < limit)


@jit
def _weights(
    raw: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    place: tl.tensor,
    lse: tl.tensor,
    batch: tl.tensor,
    head: tl.tensor,
    length_q: tl.tensor,
    length_k: tl.tensor,
    bias: tl.tensor,
    bias_q: tl.tensor,
    bias_k: tl.tensor,
    slope: tl.tensor,
    scale: tl.tensor,
    multiplier: tl.tensor,
    softcap: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    edge: tl.tensor,
    SCALED: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    MASKED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Weights before dropout, and what ``change`` returns beside the scores.

    ``edge`` says whether the tile needs the window's mask.
    """
    score, bounded, before = change(
        raw, i, j, place, batch, head, length_q, length_k, bias, bias_q, bias_k, slope, scale,
        softcap, SCALED, SCORE_MOD,
    )  # fmt: skip
    if MASKED:
        if edge:
            score = tl.where(visible(j, place, length_k, left, right), score, float("-inf"))
    # Rows without any key have -inf, rows past the end +inf: no weight in both.
    lse = tl.where(lse == float("-inf"), float("inf"), lse)
    return tl.exp2(score * multiplier - lse * LOG2E), bounded, before


@jit
def _slopes(
    grad: tl.tensor,
    bounded: tl.tensor,
    before: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    batch: tl.tensor,
    head: tl.tensor,
    softcap: tl.tensor,
    DERIVATIVE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Gradients of the scaled products, and of the bias, from those of the scores."""
    if DERIVATIVE is not None:
        # The derivative may be infinite where there is no weight, as at the zeros past the end.
        grad = tl.where(grad == 0.0, 0.0, grad * DERIVATIVE(before, batch, head, i, j))
    grad_bias = grad
    if softcap is not None:
        grad *= 1.0 - bounded * bounded
    return grad, grad_bias


@jit
def _gather_keys(
    dk: tl.tensor,
    dv: tl.tensor,
    k_tile: tl.tensor,
    v_tile: tl.tensor,
    q: tl.tensor,
    grad: tl.tensor,
    lse: tl.tensor,
    mean: tl.tensor,
    q_row: tl.tensor,
    grad_row: tl.tensor,
    low: tl.tensor,
    high: tl.tensor,
    full_low: tl.tensor,
    full_high: tl.tensor,
    j: tl.tensor,
    offset: tl.tensor,
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
    keep_scale: tl.tensor,
    scale: tl.tensor,
    multiplier: tl.tensor,
    softcap: tl.tensor,
    left: tl.tensor,
    right: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SCALED: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    DERIVATIVE: tl.constexpr,
    PRECISION: tl.constexpr,
    RAGGED: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """Adds what the queries from ``low`` to ``high`` give to the gradients of a tile of keys."""
    rows = tl.arange(0, BLOCK_M)
    WINDOWED: tl.constexpr = left is not None or right is not None
    for start in tl.range(low, high, BLOCK_M):
        limit = length_q - start
        q_tile = load_rows(
            q + start * q_row.to(tl.int64), rows, q_row, limit, HEAD_DIM, BLOCK_D, RAGGED
        )
        raw = dot(k_tile, tl.trans(q_tile), None, PRECISION)
        grad_tile = load_rows(
            grad + start * grad_row.to(tl.int64), rows, grad_row, limit, HEAD_DIM, BLOCK_D, RAGGED
        )
        if RAGGED:
            row_lse = tl.load(lse + start + rows, rows < limit, float("inf"))
            row_mean = tl.load(mean + start + rows, rows < limit, 0.0)
        else:
            row_lse = tl.load(lse + start + rows)
            row_mean = tl.load(mean + start + rows)
        i = (start + rows)[None, :]
        edge = (start < full_low) | (start >= full_high)
        weight, bounded, before = _weights(
            raw, i, j, i + offset, row_lse[None, :], batch, head, length_q, length_k, bias, bias_q,
            bias_k, slope, scale, multiplier, softcap, left, right, edge, SCALED, SCORE_MOD,
            WINDOWED,
        )  # fmt: skip
        dropped = weight
        if seed is not None:
            keep = kept(seed, plane, i, j, threshold)
            dropped = tl.where(keep, weight, 0.0)
        dv = dot(dropped.to(grad_tile.dtype), grad_tile, dv, PRECISION)
        grad_weight = dot(v_tile, tl.trans(grad_tile), None, PRECISION)
        if seed is not None:
            grad_weight = tl.where(keep, grad_weight * keep_scale, 0.0)
        grad_score = weight * (grad_weight - row_mean[None, :])
        grad_score, _ = _slopes(grad_score, bounded, before, i, j, batch, head, softcap, DERIVATIVE)
        dk = dot(grad_score.to(q_tile.dtype), q_tile, dk, PRECISION)
    return dk, dv


@jit
def keys_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    bias: tl.tensor,
    slopes: tl.tensor,
    cu_q: tl.tensor,
    cu_k: tl.tensor,
    seeds: tl.tensor,
    grad: tl.tensor,
    lse: tl.tensor,
    mean: tl.tensor,
    dk: tl.tensor,
    dv: tl.tensor,
    tiles: tl.tensor,
    heads: tl.tensor,
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
    grad_batch: tl.tensor,
    grad_head: tl.tensor,
    grad_row: tl.tensor,
    dk_batch: tl.tensor,
    dk_head: tl.tensor,
    dk_row: tl.tensor,
    dv_batch: tl.tensor,
    dv_head: tl.tensor,
    dv_row: tl.tensor,
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
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    BOTTOM_RIGHT: tl.constexpr,
    SCORE_MOD: tl.constexpr,
    DERIVATIVE: tl.constexpr,
    PRECISION: tl.constexpr,
    RAGGED: tl.constexpr,
) -> None:
    """Gradients of a tile of keys and values, summed over the heads that share them."""
    number = tl.program_id(0)
    tile = number % tiles
    kv_plane = number // tiles
    kv_heads = heads // GROUP
    kv_head = kv_plane % kv_heads
    batch = kv_plane // kv_heads
    wide_batch = batch.to(tl.int64)
    wide_head = kv_head.to(tl.int64)
    first_q = tl.full([], 0, tl.int64)
    first_k = tl.full([], 0, tl.int64)
    if cu_q is not None:
        first_q = tl.load(cu_q + batch).to(tl.int64)
        first_k = tl.load(cu_k + batch).to(tl.int64)
        length_q = (tl.load(cu_q + batch + 1) - first_q).to(tl.int32)
        length_k = (tl.load(cu_k + batch + 1) - first_k).to(tl.int32)
    start = tile * BLOCK_N
    if start >= length_k:
        return

    columns = tl.arange(0, BLOCK_N)
    j = (start + columns)[:, None]
    limit = length_k - start
    k += wide_batch * k_batch + wide_head * k_head + (first_k + start) * k_row
    v += wide_batch * v_batch + wide_head * v_head + (first_k + start) * v_row
    k_tile = load_rows(k, columns, k_row, limit, HEAD_DIM, BLOCK_D, True)
    v_tile = load_rows(v, columns, v_row, limit, HEAD_DIM, BLOCK_D, True)
    seed = seeds
    if seeds is not None:
        seed = tl.load(seeds)

    offset = length_k * 0
    if BOTTOM_RIGHT:
        offset = length_k - length_q
    # Queries below full_low and from full_high on need the window's mask.
    low = length_q * 0
    high = length_q
    full_low = low
    full_high = high
    if right is not None:
        low = tl.maximum(start - right - offset, 0) // BLOCK_M * BLOCK_M
        full_low = tl.maximum(start + BLOCK_N - 1 - right - offset, 0)
    if left is not None:
        high = tl.minimum(high, tl.maximum(start + BLOCK_N + left - offset, 0))
        full_high = tl.maximum(start + left - offset + 1, 0) // BLOCK_M * BLOCK_M

    dk_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    dv_tile = tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    for member in range(GROUP):
        head = kv_head * GROUP + member
        plane = batch * heads + head
        wide = head.to(tl.int64)
        q_base = q + wide_batch * q_batch + wide * q_head + first_q * q_row
        grad_base = grad + wide_batch * grad_batch + wide * grad_head + first_q * grad_row
        row = wide_batch * lse_batch + wide * lse_head + first_q
        bias_base = bias
        if bias is not None:
            bias_base = bias + (wide_batch * bias_batch + wide * bias_head)
        slope = slopes
        if slopes is not None:
            slope = tl.load(slopes + batch * slopes_batch + head)
        dk_tile, dv_tile = _gather_keys(
            dk_tile, dv_tile, k_tile, v_tile, q_base, grad_base, lse + row, mean + row, q_row,
            grad_row, low, high, full_low, full_high, j, offset, batch, head, plane, length_q,
            length_k, bias_base, bias_q, bias_k, slope, seed, threshold, keep_scale, scale,
            multiplier, softcap, left, right, HEAD_DIM, BLOCK_D, BLOCK_M, SCALED, SCORE_MOD,
            DERIVATIVE, PRECISION, RAGGED,
        )  # fmt: skip

    dk += wide_batch * dk_batch + wide_head * dk_head + (first_k + start) * dk_row
    dv += wide_batch * dv_batch + wide_head * dv_head + (first_k + start) * dv_row
    if seeds is not None:
        dv_tile *= keep_scale
    store_rows(dk, dk_tile * scale, columns, dk_row, limit, HEAD_DIM, BLOCK_D)
    store_rows(dv, dv_tile, columns, dv_row, limit, HEAD_DIM, BLOCK_D)


@jit
def _gather_queries(
    dq: tl.tensor,
    q_tile: tl.tensor,
    grad_tile: tl.tensor,
    row_lse: tl.tensor,
    row_mean: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    dbias: tl.tensor,
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
    keep_scale: tl.tensor,
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
    DERIVATIVE: tl.constexpr,
    PRECISION: tl.constexpr,
    RAGGED: tl.constexpr,
) -> tl.tensor:
    """Adds what the keys from ``low`` to ``high`` give to the gradients of a tile of queries."""
    columns = tl.arange(0, BLOCK_N)
    MASKED: tl.constexpr = left is not None or right is not None or RAGGED
    for start in tl.range(low, high, BLOCK_N):
        limit = length_k - start
        k_tile = load_rows(
            k + start * k_row.to(tl.int64), columns, k_row, limit, HEAD_DIM, BLOCK_D, RAGGED
        )
        raw = dot(q_tile, tl.trans(k_tile), None, PRECISION)
        v_tile = load_rows(
            v + start * v_row.to(tl.int64), columns, v_row, limit, HEAD_DIM, BLOCK_D, RAGGED
        )
        grad_weight = dot(grad_tile, tl.trans(v_tile), None, PRECISION)
        j = (start + columns)[None, :]
        edge = (start < full_low) | (start >= full_high)
        weight, bounded, before = _weights(
            raw, i, j, place, row_lse, batch, head, length_q, length_k, bias, bias_q, bias_k,
            slope, scale, multiplier, softcap, left, right, edge, SCALED, SCORE_MOD, MASKED,
        )  # fmt: skip
        if seed is not None:
            keep = kept(seed, plane, i, j, threshold)
            grad_weight = tl.where(keep, grad_weight * keep_scale, 0.0)
        grad_score, grad_bias = _slopes(
            weight * (grad_weight - row_mean), bounded, before, i, j, batch, head, softcap,
            DERIVATIVE,
        )  # fmt: skip
        if dbias is not None:
            pointers = dbias + (i.to(tl.int64) * length_k + j)
            inside = (i < length_q) & (j < length_k)
            tl.store(pointers, grad_bias.to(dbias.dtype.element_ty), inside)
        dq = dot(grad_score.to(k_tile.dtype), k_tile, dq, PRECISION)
    return dq


@jit
def queries_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    bias: tl.tensor,
    slopes: tl.tensor,
    cu_q: tl.tensor,
    cu_k: tl.tensor,
    seeds: tl.tensor,
    grad: tl.tensor,
    lse: tl.tensor,
    mean: tl.tensor,
    dq: tl.tensor,
    dbias: tl.tensor,
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
    grad_batch: tl.tensor,
    grad_head: tl.tensor,
    grad_row: tl.tensor,
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    dq_row: tl.tensor,
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
    DERIVATIVE: tl.constexpr,
    PRECISION: tl.constexpr,
    RAGGED: tl.constexpr,
) -> None:
    """Gradients of a tile of queries; those of the bias are stored for every score."""
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
    limit = length_q - start
    q += wide_batch * q_batch + wide_head * q_head + (first_q + start) * q_row
    grad += wide_batch * grad_batch + wide_head * grad_head + (first_q + start) * grad_row
    dq += wide_batch * dq_batch + wide_head * dq_head + (first_q + start) * dq_row
    k += wide_batch * k_batch + kv_head * k_head + first_k * k_row
    v += wide_batch * v_batch + kv_head * v_head + first_k * v_row
    row = wide_batch * lse_batch + wide_head * lse_head + first_q + start
    if bias is not None:
        bias += wide_batch * bias_batch + wide_head * bias_head
    if dbias is not None:
        dbias += plane.to(tl.int64) * length_q * length_k
    slope = slopes
    if slopes is not None:
        slope = tl.load(slopes + batch * slopes_batch + head)
    seed = seeds
    if seeds is not None:
        seed = tl.load(seeds)

    offset = length_k * 0
    if BOTTOM_RIGHT:
        offset = length_k - length_q
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
    q_tile = load_rows(q, rows, q_row, limit, HEAD_DIM, BLOCK_D, True)
    grad_tile = load_rows(grad, rows, grad_row, limit, HEAD_DIM, BLOCK_D, True)
    row_lse = tl.load(lse + row + rows, rows < limit, float("inf"))[:, None]
    row_mean = tl.load(mean + row + rows, rows < limit, 0.0)[:, None]
    dq_tile = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    dq_tile = _gather_queries(
        dq_tile, q_tile, grad_tile, row_lse, row_mean, k, v, dbias, k_row, v_row, low, high,
        full_low, full_high, i, place, batch, head, plane, length_q, length_k, bias, bias_q,
        bias_k, slope, seed, threshold, keep_scale, scale, multiplier, softcap, left, right,
        HEAD_DIM, BLOCK_D, BLOCK_N, SCALED, SCORE_MOD, DERIVATIVE, PRECISION, RAGGED,
    )  # fmt: skip
    store_rows(dq, dq_tile * scale, rows, dq_row, limit, HEAD_DIM, BLOCK_D)
