"""The Triton kernel of rotary position embedding: some tokens times some heads per program.

The factors of the tokens are loaded once and used for all heads of the tile. Blocks of query heads
come first, then those of key heads, so that one launch serves both and neighbouring programs share
the factors in cache.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit


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
def _turn(
    x: tl.tensor,
    out: tl.tensor,
    batch: tl.tensor,
    place: tl.tensor,
    inside: tl.tensor,
    head_block: tl.tensor,
    heads: tl.tensor,
    stride_b: tl.tensor,
    stride_s: tl.tensor,
    stride_h: tl.tensor,
    out_b: tl.tensor,
    out_s: tl.tensor,
    out_h: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    HALF: tl.constexpr,
    REST: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    COMPUTE: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    """Turns one tile of queries or keys."""
    head = (head_block * BLOCK_H + tl.arange(0, BLOCK_H)).to(tl.int64)[None, :, None]
    keep = inside & (head < heads)
    source = x + (batch * stride_b + place * stride_s + head * stride_h)
    target = out + (batch * out_b + place * out_s + head * out_h)
    x1, x2 = _load_pairs(source, keep, HALF, BLOCK_D, INTERLEAVED, COMPUTE)
    y1 = x1 * cos - x2 * sin
    y2 = x2 * cos + x1 * sin
    _store_pairs(target, keep, y1, y2, HALF, BLOCK_D, INTERLEAVED)
    if REST > 0:
        index = tl.arange(0, BLOCK_REST)[None, None, :]
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
    q_blocks: tl.tensor,
    blocks: tl.tensor,
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
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_REST: tl.constexpr,
) -> None:
    """Turns the pairs of ``q`` and, where there is one, of ``k``."""
    program = tl.program_id(0)
    part = program % blocks
    token = (program // blocks).to(tl.int64) * BLOCK_T + tl.arange(0, BLOCK_T)
    token = token[:, None, None]
    inside = token < tokens
    batch = token // length
    place = token - batch * length
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
    if k is None:  # noqa: SIM114  # decided when the kernel is compiled, the next when it runs
        _turn(
            q, q_out, batch, place, inside, part, q_heads,
            q_b, q_s, q_h, q_out_b, q_out_s, q_out_h, c, s,
            HALF, REST, INTERLEAVED, COMPUTE, BLOCK_H, BLOCK_D, BLOCK_REST,
        )  # fmt: skip
    elif part < q_blocks:
        _turn(
            q, q_out, batch, place, inside, part, q_heads,
            q_b, q_s, q_h, q_out_b, q_out_s, q_out_h, c, s,
            HALF, REST, INTERLEAVED, COMPUTE, BLOCK_H, BLOCK_D, BLOCK_REST,
        )  # fmt: skip
    else:
        _turn(
            k, k_out, batch, place, inside, part - q_blocks, k_heads,
            k_b, k_s, k_h, k_out_b, k_out_s, k_out_h, c, s,
            HALF, REST, INTERLEAVED, COMPUTE, BLOCK_H, BLOCK_D, BLOCK_REST,
        )  # fmt: skip
