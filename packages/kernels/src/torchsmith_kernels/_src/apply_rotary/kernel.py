"""The Triton kernel of rotary position embedding: some tokens times some heads per program.

A program turns a block of query heads and a block of key heads of the same tokens, so that the
factors are loaded once for both. All loads come before the first store: the compiler, which has to
assume that a store changes what a later load reads, could not move them there.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


@jit
def _places(
    batch: tl.tensor,
    place: tl.tensor,
    head: tl.tensor,
    stride_b: tl.tensor,
    stride_s: tl.tensor,
    stride_h: tl.tensor,
) -> tl.tensor:
    """Where heads begin, ``[tokens, heads, 1]``, in 64 bits."""
    return batch * stride_b + place * stride_s + head * stride_h


@jit
def _load_pairs(
    pointer: tl.tensor,
    keep: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor]:
    """First and second elements, ``[tokens, heads, BLOCK]``, of the pairs at ``pointer``."""
    if INTERLEAVED:
        index = tl.arange(0, 2 * BLOCK)[None, None, :]
        both = tl.load(pointer + index, keep & (index < 2 * HALF), other=0.0).to(COMPUTE)
        pairs = tl.reshape(both, (both.shape[0], both.shape[1], BLOCK, 2))
        first, second = tl.split(pairs)
    else:
        index = tl.arange(0, BLOCK)[None, None, :]
        keep = keep & (index < HALF)
        first = tl.load(pointer + index, keep, other=0.0).to(COMPUTE)
        second = tl.load(pointer + index + HALF, keep, other=0.0).to(COMPUTE)
    return first, second


@jit
def _store_pairs(
    pointer: tl.tensor,
    keep: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    INTERLEAVED: tl.constexpr,
) -> None:
    """The inverse of ``_load_pairs``."""
    first = first.to(pointer.dtype.element_ty)
    second = second.to(pointer.dtype.element_ty)
    if INTERLEAVED:
        both = tl.join(first, second)
        both = tl.reshape(both, (both.shape[0], both.shape[1], 2 * BLOCK))
        index = tl.arange(0, 2 * BLOCK)[None, None, :]
        tl.store(pointer + index, both, keep & (index < 2 * HALF))
    else:
        index = tl.arange(0, BLOCK)[None, None, :]
        keep = keep & (index < HALF)
        tl.store(pointer + index, first, keep)
        tl.store(pointer + index + HALF, second, keep)


@jit
def _copy_rest(
    source: tl.tensor,
    target: tl.tensor,
    keep: tl.tensor,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Copies the elements after the pairs."""
    index = tl.arange(0, BLOCK)[None, None, :]
    keep = keep & (index < REST)
    tl.store(target + index + 2 * HALF, tl.load(source + index + 2 * HALF, keep), keep)


@jit
def rotary_kernel(
    q: tl.tensor,
    k: tl.tensor,
    q_out: tl.tensor,
    k_out: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    positions: tl.tensor,
    tokens: tl.tensor,
    length: tl.tensor,
    rows: tl.tensor,
    q_heads: tl.tensor,
    k_heads: tl.tensor,
    parts: tl.tensor,
    q_b: tl.tensor,
    q_s: tl.tensor,
    q_h: tl.tensor,
    k_b: tl.tensor,
    k_s: tl.tensor,
    k_h: tl.tensor,
    q_out_b: tl.tensor,
    q_out_s: tl.tensor,
    q_out_h: tl.tensor,
    k_out_b: tl.tensor,
    k_out_s: tl.tensor,
    k_out_h: tl.tensor,
    cos_b: tl.tensor,
    cos_s: tl.tensor,
    sin_b: tl.tensor,
    sin_s: tl.tensor,
    positions_b: tl.tensor,
    positions_s: tl.tensor,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    STEP: tl.constexpr,
    INVERSE: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    """Turns the pairs of ``q`` and, where there is one, of ``k``."""
    program = tl.program_id(0)
    part = program % parts
    token = (program // parts).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    token = token[:, None, None]
    inside = token < tokens
    batch = token // length
    place = token - batch * length

    head = (part * BLOCK_Q + tl.arange(0, BLOCK_Q)).to(tl.int64)[None, :, None]
    q_keep = inside & (head < q_heads)
    q_from = q + _places(batch, place, head, q_b, q_s, q_h)
    q_to = q_out + _places(batch, place, head, q_out_b, q_out_s, q_out_h)
    q1, q2 = _load_pairs(q_from, q_keep, HALF, BLOCK_D, INTERLEAVED, COMPUTE)
    if k is not None:
        head = (part * BLOCK_K + tl.arange(0, BLOCK_K)).to(tl.int64)[None, :, None]
        k_keep = inside & (head < k_heads)
        k_from = k + _places(batch, place, head, k_b, k_s, k_h)
        k_to = k_out + _places(batch, place, head, k_out_b, k_out_s, k_out_h)
        k1, k2 = _load_pairs(k_from, k_keep, HALF, BLOCK_D, INTERLEAVED, COMPUTE)

    if positions is None:
        known = inside
        cos_row = batch * cos_b + place * cos_s
        sin_row = batch * sin_b + place * sin_s
    else:
        row = tl.load(positions + batch * positions_b + place * positions_s, inside, other=0)
        row = row.to(tl.int64)
        known = inside & (row >= 0) & (row < rows)
        cos_row = row * cos_s
        sin_row = row * sin_s
    index = tl.arange(0, BLOCK_D)[None, None, :]
    known = known & (index < HALF)
    c = tl.load(cos + cos_row + index * STEP, known, other=float("nan")).to(COMPUTE)
    s = tl.load(sin + sin_row + index * STEP, known, other=float("nan")).to(COMPUTE)
    if INVERSE:
        s = -s

    _store_pairs(q_to, q_keep, q1 * c - q2 * s, q2 * c + q1 * s, HALF, BLOCK_D, INTERLEAVED)
    if REST > 0:
        _copy_rest(q_from, q_to, q_keep, HALF, REST, BLOCK_REST)
    if k is not None:
        _store_pairs(k_to, k_keep, k1 * c - k2 * s, k2 * c + k1 * s, HALF, BLOCK_D, INTERLEAVED)
        if REST > 0:
            _copy_rest(k_from, k_to, k_keep, HALF, REST, BLOCK_REST)
