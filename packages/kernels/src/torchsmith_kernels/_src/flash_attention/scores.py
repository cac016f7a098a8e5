"""What happens to a tile of scores between the two matrix products, as Triton functions.

A tile may be ``[q, k]`` or ``[k, q]``: the indices ``i`` of queries and ``j`` of keys come shaped
so that they broadcast.
"""

from __future__ import annotations

import triton.language as tl
from triton import knobs

from torchsmith_kernels._src.flash_attention import philox as _philox
from torchsmith_kernels._src.jit import jit

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
ROUNDS = tl.constexpr(_philox.ROUNDS)
INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@jit
def dot(x: tl.tensor, y: tl.tensor, acc: tl.tensor, PRECISION: tl.constexpr) -> tl.tensor:
    """``x @ y``, plus ``acc`` where there is one."""
    if INTERPRETED and x.dtype == tl.bfloat16:  # the interpreter would multiply their bits
        x = x.to(tl.float32)
        y = y.to(tl.float32)
    if acc is None:
        result = tl.dot(x, y, input_precision=PRECISION)
    else:
        result = tl.dot(x, y, acc, input_precision=PRECISION)
    return result


@jit
def load_rows(
    base: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    CHECK: tl.constexpr,
) -> tl.tensor:
    """A tile of rows from ``base`` on, zero from row ``limit`` and column ``HEAD_DIM`` on."""
    columns = tl.arange(0, BLOCK_D)
    pointers = base + (rows[:, None] * stride + columns[None, :])
    if CHECK and HEAD_DIM != BLOCK_D:
        keep = (rows[:, None] < limit) & (columns[None, :] < HEAD_DIM)
        tile = tl.load(pointers, keep, 0.0)
    elif CHECK:
        tile = tl.load(pointers, rows[:, None] < limit, 0.0)
    elif HEAD_DIM != BLOCK_D:
        tile = tl.load(pointers, columns[None, :] < HEAD_DIM, 0.0)
    else:
        tile = tl.load(pointers)
    return tile


@jit
def store_rows(
    base: tl.tensor,
    tile: tl.tensor,
    rows: tl.tensor,
    stride: tl.tensor,
    limit: tl.tensor,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
) -> None:
    """Stores the rows below ``limit`` of a tile."""
    columns = tl.arange(0, BLOCK_D)
    pointers = base + (rows[:, None] * stride + columns[None, :])
    keep = (rows[:, None] < limit) & (columns[None, :] < HEAD_DIM)
    tl.store(pointers, tile.to(base.dtype.element_ty), keep)


@jit
def tanh(x: tl.tensor) -> tl.tensor:
    """tanh to float32's precision; the polynomial is that of Cephes."""
    z = x * x
    small = -5.70498872745e-3 * z + 2.06390887954e-2
    small = small * z - 5.37397155531e-2
    small = small * z + 1.33314422036e-1
    small = small * z - 3.33332819422e-1
    small = small * z * x + x
    large = 1.0 - 2.0 / (tl.exp2(x * (2.0 * LOG2E)) + 1.0)
    return tl.where(tl.abs(x) < 0.625, small, large)


@jit
def change(
    raw: tl.tensor,
    i: tl.tensor,
    j: tl.tensor,
    place: tl.tensor,
    batch: tl.tensor,
    head: tl.tensor,
    length_q: tl.tensor,
    length_k: tl.tensor,
    bias: tl.tensor,
    bias_q: tl.tensor,
    bias_k: tl.tensor,
    slope: tl.tensor,
    scale: tl.tensor,
    softcap: tl.tensor,
    SCALED: tl.constexpr,
    SCORE_MOD: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Scores from products of rows; also tanh of the softcap and the scores before ``SCORE_MOD``.

    Args:
        raw: a tile of products of rows of query and key.
        i: queries.
        j: keys.
        place: the key at which each query stands.
        batch: the sequence.
        head: the head.
        length_q: queries of the sequence.
        length_k: keys of the sequence.
        bias: the mask of this head, or None.
        bias_q: elements between its rows.
        bias_k: elements between its columns.
        slope: ALiBi's slope, or None.
        scale: factor of the products.
        softcap: largest absolute value, or None.
        SCALED: whether to multiply by ``scale``; a caller may do so later.
        SCORE_MOD: a further function, or None.
    """
    score = raw
    if SCALED:
        score = score * scale
    bounded = score
    if softcap is not None:
        bounded = tanh(score / softcap)
        score = softcap * bounded
    if slope is not None:
        score -= slope * tl.abs(j - place).to(tl.float32)
    if bias is not None:
        inside = (i < length_q) & (j < length_k)
        pointers = bias + (i.to(tl.int64) * bias_q + j.to(tl.int64) * bias_k)
        if bias.dtype.element_ty != tl.int1:
            score += tl.load(pointers, inside, 0.0).to(tl.float32)
    before = score  # not -inf where a mask hides it: SCORE_MOD's derivative may be infinite there
    if SCORE_MOD is not None:
        score = SCORE_MOD(score, batch, head, i, j).to(tl.float32)
    if bias is not None and bias.dtype.element_ty == tl.int1:
        score = tl.where(tl.load(pointers, inside, 0) != 0, score, float("-inf"))
    return score, bounded, before


@jit
def visible(
    j: tl.tensor, place: tl.tensor, length_k: tl.tensor, left: tl.tensor, right: tl.tensor
) -> tl.tensor:
    """Which keys exist and lie in the window of the query that stands at ``place``."""
    seen = j < length_k
    if left is not None:
        seen = seen & (j >= place - left)
    if right is not None:
        seen = seen & (j <= place + right)
    return seen


@jit
def kept(
    seed: tl.tensor, plane: tl.tensor, i: tl.tensor, j: tl.tensor, threshold: tl.tensor
) -> tl.tensor:
    """Where dropout keeps; ``philox.kept`` in Triton."""
    zero = 0 * i + 0 * j
    bits, _, _, _ = tl.philox(seed, zero + j, zero + i, zero + plane, zero, ROUNDS)
    return (bits >> 1).to(tl.int32) >= threshold
