"""The forward kernel for Hopper: TMA, asynchronous tensor cores, and warps with roles.

One persistent program per multiprocessor. A producer warp loads tiles of queries, keys and values;
two warpgroups of consumers own 64 queries each. A consumer starts the scores of its next block of
keys, then the weighted sum of the block before, and computes the softmax of the next block while
the tensor cores work on that sum (Shah et al., FlashAttention-3, arXiv:2407.08608).
"""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from torchsmith_kernels._src.flash_attention.hopper import (
    advance,
    barriers,
    give,
    jit,
    take,
    tma_load,
    tma_store,
)

LN2 = gl.constexpr(0.6931471805599453)
#: Queries per consumer, consumers, and keys per block.
OWN = gl.constexpr(64)
CONSUMERS = gl.constexpr(2)
TILE = gl.constexpr(128)
BLOCK = gl.constexpr(128)
#: In place of the maximum of scores that are all -inf, which would give inf - inf.
LOWEST = gl.constexpr(-1e38)


@jit
def _tile(
    number: gl.tensor,
    tiles: gl.tensor,
    planes: gl.tensor,
    group: gl.tensor,
    CAUSAL: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """Tile of queries and plane (batch and head) by number.

    Under a causal mask the longest tiles of ``group`` planes come first.
    """
    if CAUSAL:
        first = number // (tiles * group) * group
        rest = number % (tiles * group)
        width = gl.minimum(group, planes - first)
        return tiles - 1 - rest // width, first + rest % width
    return number % tiles, number // tiles


@jit
def _blocks(tile: gl.tensor, length_k: gl.tensor, CAUSAL: gl.constexpr) -> gl.tensor:
    """How many blocks of keys a tile of queries sees."""
    count = gl.cdiv(length_k, BLOCK)
    if CAUSAL:
        count = gl.minimum(count, tile + 1)
    return count


@jit
def _produce(
    sizes: gl.tuple,
    counter: gl.tensor,
    descriptors: gl.tuple,
    buffers: gl.tuple,
    numbers: gl.tensor,
    number_bars: gl.tuple,
    q_bars: gl.tuple,
    k_bars: gl.tuple,
    v_bars: gl.tuple,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
) -> None:
    """Loads the tiles of queries, keys and values, the last block of keys first."""
    length_q, length_k, heads, planes, repeats, group = sizes
    q_desc, k_desc, v_desc = descriptors
    q_tiles, k_tiles, v_tiles = buffers
    q_full, q_empty = q_bars
    k_full, k_empty = k_bars
    v_full, v_empty = v_bars
    tiles = gl.cdiv(length_q, TILE)
    slot = 0
    phase = 1
    turn = 0
    number = gl.program_id(0)
    while number < tiles * planes:
        give(number, turn, numbers, number_bars)
        tile, plane = _tile(number, tiles, planes, group, CAUSAL)
        batch = plane // heads
        head = plane % heads
        kv_head = head // repeats
        count = _blocks(tile, length_k, CAUSAL)
        for i in gl.static_range(CONSUMERS):
            mbarrier.wait(q_empty.index(i), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(i), OWN * D * 2)
            place = [batch, head, tile * TILE + i * OWN, 0]
            tma_load(q_desc, place, q_full.index(i), q_tiles.index(i))
        for back in range(count):
            place = [batch, kv_head, (count - 1 - back) * BLOCK, 0]
            mbarrier.wait(k_empty.index(slot), phase)
            mbarrier.expect(k_full.index(slot), BLOCK * D * 2)
            tma_load(k_desc, place, k_full.index(slot), k_tiles.index(slot))
            mbarrier.wait(v_empty.index(slot), phase)
            mbarrier.expect(v_full.index(slot), BLOCK * D * 2)
            tma_load(v_desc, place, v_full.index(slot), v_tiles.index(slot))
            slot, phase = advance(slot, phase, STAGES)
        turn += 1
        if counter is not None:  # tiles differ in length: whoever is ready takes the next
            number = gl.num_programs(0) + gl.atomic_add(counter, 1, sem="relaxed")
        else:
            number += gl.num_programs(0)
    give(number, turn, numbers, number_bars)


@jit
def _consume(
    sizes: gl.tuple,
    scale: gl.tensor,
    lse: gl.tensor,
    out_desc: gl.tensor,
    buffers: gl.tuple,
    out_tiles: gl.tensor,
    numbers: gl.tensor,
    number_bars: gl.tuple,
    q_bars: gl.tuple,
    k_bars: gl.tuple,
    v_bars: gl.tuple,
    OWNER: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
) -> None:
    """Softmax and weighted sum of 64 queries a tile."""
    length_q, length_k, heads, planes, _, group = sizes
    q_tiles, k_tiles, v_tiles = buffers
    q_full, q_empty = q_bars
    k_full, k_empty = k_bars
    v_full, v_empty = v_bars
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, sums, 2)
    dtype: gl.constexpr = q_tiles.dtype
    q = q_tiles.index(OWNER).reshape([OWN, D])
    zero = gl.zeros([OWN, BLOCK], gl.float32, scores)
    tiles = gl.cdiv(length_q, TILE)
    slot = 0
    phase = 0
    turn = 0
    number = take(turn, numbers, number_bars, 4)
    while number < tiles * planes:
        tile, plane = _tile(number, tiles, planes, group, CAUSAL)
        start = tile * TILE + OWNER * OWN
        count = _blocks(tile, length_k, CAUSAL)
        mbarrier.wait(q_full.index(OWNER), turn & 1)
        mbarrier.wait(k_full.index(slot), phase)
        k = k_tiles.index(slot).reshape([BLOCK, D]).permute([1, 0])
        s = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(0, [s])
        mbarrier.arrive(k_empty.index(slot), count=1)
        if CAUSAL or TAIL:  # only in the last block of keys, which comes first
            column = (count - 1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, scores))
            seen = (column < length_k)[None, :]
            if CAUSAL:
                row = start + gl.arange(0, OWN, gl.SliceLayout(1, scores))
                seen = seen & (row[:, None] >= column[None, :])
            s = gl.where(seen, s, float("-inf"))
        peak = gl.maximum(gl.max(s, 1), LOWEST)
        p = gl.exp2(s * scale - (peak * scale)[:, None])
        total = gl.sum(p, 1)
        p16 = gl.convert_layout(p.to(dtype), operand)
        acc = gl.zeros([OWN, D], gl.float32, sums)
        mbarrier.wait(v_full.index(slot), phase)
        for _ in range(1, count):
            ahead, ahead_phase = advance(slot, phase, STAGES)
            mbarrier.wait(k_full.index(ahead), ahead_phase)
            k = k_tiles.index(ahead).reshape([BLOCK, D]).permute([1, 0])
            s = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
            v = v_tiles.index(slot).reshape([BLOCK, D])
            acc = warpgroup_mma(p16, v, acc, is_async=True)
            s = warpgroup_mma_wait(1, [s])
            mbarrier.arrive(k_empty.index(ahead), count=1)
            higher = gl.maximum(peak, gl.max(s, 1))
            p = gl.exp2(s * scale - (higher * scale)[:, None])
            shrink = gl.exp2((peak - higher) * scale)
            total = total * shrink + gl.sum(p, 1)
            peak = higher
            # Waiting for the values here also keeps ptxas from moving the wait below it above the
            # exponentials, which would leave the tensor cores idle meanwhile.
            mbarrier.wait(v_full.index(ahead), ahead_phase)
            acc, p16 = warpgroup_mma_wait(0, [acc, p16])
            mbarrier.arrive(v_empty.index(slot), count=1)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, sums))[:, None]
            p16 = gl.convert_layout(p.to(dtype), operand)
            slot = ahead
            phase = ahead_phase
        mbarrier.arrive(q_empty.index(OWNER), count=1)
        v = v_tiles.index(slot).reshape([BLOCK, D])
        acc = warpgroup_mma(p16, v, acc, is_async=True)
        acc, p16 = warpgroup_mma_wait(0, [acc, p16])
        mbarrier.arrive(v_empty.index(slot), count=1)
        slot, phase = advance(slot, phase, STAGES)

        row = start + gl.arange(0, OWN, gl.SliceLayout(1, scores))
        value = (peak * scale + gl.log2(total)) * LN2
        gl.store(lse + plane.to(gl.int64) * length_q + row, value, row < length_q)
        acc = acc * gl.convert_layout(1.0 / total, gl.SliceLayout(1, sums))[:, None]
        tma.store_wait(0)
        out_tiles.index(OWNER).reshape([OWN, D]).store(acc.to(dtype))
        fence_async_shared()
        place = [plane // heads, plane % heads, start, 0]
        tma_store(out_desc, place, out_tiles.index(OWNER))
        turn += 1
        number = take(turn, numbers, number_bars, 4)
    tma.store_wait(0)


@jit
def forward_kernel(
    q: gl.tensor,
    k: gl.tensor,
    v: gl.tensor,
    out: gl.tensor,
    lse: gl.tensor,
    counter: gl.tensor,
    length_q: gl.tensor,
    length_k: gl.tensor,
    batch: gl.tensor,
    heads: gl.tensor,
    repeats: gl.tensor,
    group: gl.tensor,
    scale: gl.tensor,
    q_batch: gl.tensor,
    q_head: gl.tensor,
    q_row: gl.tensor,
    k_batch: gl.tensor,
    k_head: gl.tensor,
    k_row: gl.tensor,
    v_batch: gl.tensor,
    v_head: gl.tensor,
    v_row: gl.tensor,
    out_batch: gl.tensor,
    out_head: gl.tensor,
    out_row: gl.tensor,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
    TAIL: gl.constexpr,
) -> None:
    """``out = softmax(scale * q @ k.T) @ v`` and its ``lse``; ``scale`` includes ``log2(e)``."""
    dtype: gl.constexpr = q.dtype.element_ty
    own: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, OWN, D], dtype)
    block: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, BLOCK, D], dtype)
    q_desc = tma.make_tensor_descriptor(
        q, [batch, heads, length_q, D], [q_batch, q_head, q_row, 1], [1, 1, OWN, D], own
    )
    out_desc = tma.make_tensor_descriptor(
        out, [batch, heads, length_q, D], [out_batch, out_head, out_row, 1], [1, 1, OWN, D], own
    )
    kv_shape = [batch, heads // repeats, length_k, D]
    k_desc = tma.make_tensor_descriptor(
        k, kv_shape, [k_batch, k_head, k_row, 1], [1, 1, BLOCK, D], block
    )
    v_desc = tma.make_tensor_descriptor(
        v, kv_shape, [v_batch, v_head, v_row, 1], [1, 1, BLOCK, D], block
    )
    q_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, OWN, D], own)
    out_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, OWN, D], own)
    k_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], block)
    v_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, BLOCK, D], block)
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    number_bars = (barriers(2, 1), barriers(2, CONSUMERS))
    q_bars = (barriers(CONSUMERS, 1), barriers(CONSUMERS, 1))
    k_bars = (barriers(STAGES, 1), barriers(STAGES, CONSUMERS))
    v_bars = (barriers(STAGES, 1), barriers(STAGES, CONSUMERS))
    sizes = (length_q, length_k, heads, batch * heads, repeats, group)
    buffers = (q_tiles, k_tiles, v_tiles)
    first: gl.constexpr = 0
    second: gl.constexpr = 1
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    sizes, scale, lse, out_desc, buffers, out_tiles, numbers, number_bars, q_bars,
                    k_bars, v_bars, first, D, STAGES, CAUSAL, TAIL,
                ),
            ),
            (
                _consume,
                (
                    sizes, scale, lse, out_desc, buffers, out_tiles, numbers, number_bars, q_bars,
                    k_bars, v_bars, second, D, STAGES, CAUSAL, TAIL,
                ),
            ),
            (
                _produce,
                (
                    sizes, counter, (q_desc, k_desc, v_desc), buffers, numbers, number_bars,
                    q_bars, k_bars, v_bars, D, STAGES, CAUSAL,
                ),
            ),
        ],
        [4, 1],  # warps of all roles but the first
        [240, 24],  # and their registers; the first gets what is left, 240
    )  # fmt: skip
