"""The Triton kernels of paged decode attention: splits of a sequence, and their combination.

All query heads that share a key/value head are one program's rows, so that keys and values are
read once. Softmax is computed online, in powers of two.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit
from torchsmith_kernels._src.matmul.kernel import multiply


@jit
def split_kernel(
    query: tl.tensor,
    key: tl.tensor,
    value: tl.tensor,
    tables: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    scale: tl.tensor,
    query_batch: tl.tensor,
    query_head: tl.tensor,
    key_block: tl.tensor,
    key_token: tl.tensor,
    key_head: tl.tensor,
    value_block: tl.tensor,
    value_token: tl.tensor,
    value_head: tl.tensor,
    tables_row: tl.tensor,
    kv_heads: tl.tensor,
    splits: tl.tensor,
    room: tl.tensor,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_G: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_D: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """One split of one sequence for the ``GROUP`` query heads of a key/value head.

    With SPLIT, ``out [batch, heads, splits, WIDTH]`` gets the split's own result in float32 and
    ``sums [batch, heads, splits]`` the base 2 logarithm of its sum; else ``out`` is the result.
    ``scale`` includes the factor from natural to base 2 exponents. ``room`` is how many tokens a
    row of ``tables`` has blocks for; none is looked up beyond.
    """
    groups = (GROUP + BLOCK_G - 1) // BLOCK_G
    program = tl.program_id(0)
    head = (program % (kv_heads * groups)) // groups
    part = program % groups
    rest = program // (kv_heads * groups)
    split = rest % splits
    batch = (rest // splits).to(tl.int64)
    length = tl.minimum(tl.load(lengths + batch), room).to(tl.int32)
    # A split is a multiple of the tile, so that only the last one is masked.
    chunk = tl.cdiv(tl.cdiv(length, BLOCK_T), splits) * BLOCK_T
    start = split * chunk
    stop = tl.minimum(length, start + chunk)

    g = part * BLOCK_G + tl.arange(0, BLOCK_G)
    d = tl.arange(0, BLOCK_D)
    t = tl.arange(0, BLOCK_T)
    heads = head * GROUP + g
    keep_q = (g < GROUP)[:, None] & (d < WIDTH)[None, :]
    q = tl.load(
        query + batch * query_batch + heads.to(tl.int64)[:, None] * query_head + d[None, :],
        keep_q,
        0.0,
    )
    tables += batch * tables_row
    key += head.to(tl.int64) * key_head
    value += head.to(tl.int64) * value_head
    top = tl.full((BLOCK_G,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_G,), tl.float32)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    # Loaded one step ahead: loads that wait for others' addresses would not be in flight early.
    page = tl.load(tables + (start + t) // PAGE, start + t < stop, 0)
    for begin in tl.range(start, stop, BLOCK_T, num_stages=STAGES):
        token = begin + t
        keep = token < stop
        place = token % PAGE
        block = page.to(tl.int64)
        ahead = token + BLOCK_T
        page = tl.load(tables + ahead // PAGE, ahead < stop, 0)
        k = tl.load(
            key + (block * key_block + place * key_token)[:, None] + d[None, :],
            keep[:, None] & (d < WIDTH)[None, :],
            0.0,
        )
        v = tl.load(
            value + (block * value_block + place * value_token)[:, None] + d[None, :],
            keep[:, None] & (d < WIDTH)[None, :],
            0.0,
        )
        scores = multiply(q, k.T, tl.zeros((BLOCK_G, BLOCK_T), tl.float32), PRECISION) * scale
        scores = tl.where(keep[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        # Where all scores so far are -inf, differences of them would be NaN.
        origin = tl.where(new_top == float("-inf"), 0.0, new_top)
        p = tl.exp2(scores - origin[:, None])
        shrink = tl.exp2(top - origin)
        total = total * shrink + tl.sum(p, 1)
        acc = acc * shrink[:, None]
        acc = multiply(p.to(v.dtype), v, acc, PRECISION)
        top = new_top
    keep_g = g < GROUP
    if SPLIT:
        # Splits without tokens have no result to store; their logarithm says so.
        row = (batch * (kv_heads * GROUP) + heads) * splits + split
        log = tl.where(top == float("-inf"), float("-inf"), top + tl.log2(total))
        tl.store(sums + row, log, keep_g)
        if start < stop:
            result = acc / tl.where(total == 0, 1.0, total)[:, None]
            tl.store(out + row[:, None] * WIDTH + d[None, :], result, keep_q)
    else:
        row = batch * (kv_heads * GROUP) + heads
        # Without any token 0 / 1; with scores of -inf only, 0 / 0 as in softmax.
        result = acc / tl.where(length > 0, total, 1.0)[:, None]
        tl.store(out + row[:, None] * WIDTH + d[None, :], result.to(out.dtype.element_ty), keep_q)


@jit
def combine_kernel(
    partial: tl.tensor,
    sums: tl.tensor,
    lengths: tl.tensor,
    out: tl.tensor,
    heads: tl.tensor,
    splits: tl.tensor,
    WIDTH: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Adds up the splits of one head of one sequence, weighted by their sums."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row // heads)
    s = tl.arange(0, BLOCK_S)
    d = tl.arange(0, BLOCK_D)
    log = tl.load(sums + row * splits + s, s < splits, float("-inf"))
    top = tl.max(log, 0)
    # NaN in any split makes the result NaN; a maximum may lose it, the weights do not.
    origin = tl.where(top == float("-inf"), 0.0, top)
    weight = tl.exp2(log - origin)
    used = weight != 0
    values = tl.load(
        partial + (row * splits + s)[:, None] * WIDTH + d[None, :],
        used[:, None] & (d < WIDTH)[None, :],
        0.0,
    )
    total = tl.sum(weight, 0)
    result = tl.sum(values * weight[:, None], 0) / tl.where(length > 0, total, 1.0)
    tl.store(out + row * WIDTH + d, result.to(out.dtype.element_ty), d < WIDTH)
