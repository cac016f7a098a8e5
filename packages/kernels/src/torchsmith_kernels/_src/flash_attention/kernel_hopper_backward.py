"""The backward kernels for Hopper: all five products in one pass over the scores.

One persistent program per multiprocessor. Its two consumers own 64 keys each, whose gradients stay
in registers while the queries pass by. The gradients of the queries are sums over programs: each
adds its part to a float32 buffer when it is its turn, from the last block of keys to the first, so
that the sums are the same in every run. Blocks of keys are taken in the same order, so that a
program only ever waits for one that has started before.
"""

from __future__ import annotations

import triton.language as tl
from triton._C.libtriton import ir
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
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
from torchsmith_kernels._src.jit import jit as triton_jit

#: Queries per step, keys per consumer, consumers, and keys per block.
STEP = gl.constexpr(64)
OWN = gl.constexpr(64)
CONSUMERS = gl.constexpr(2)
BLOCK = gl.constexpr(128)


@builtin
def _add_in_3_6(desc, coord, src, _semantic=None):  # type: ignore[no-untyped-def]
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    kind = ir.DESCRIPTOR_REDUCE_KIND.ADD
    _semantic.builder.create_async_tma_reduce(kind, desc.handle, coord, src.handle)


# Triton 3.6 has the instruction, but no name for it on Hopper.
tma_add = getattr(tma, "async_atomic_add", None) or _add_in_3_6


@triton_jit
def prepare_kernel(
    out: tl.tensor,
    grad: tl.tensor,
    lse: tl.tensor,
    grad_lse: tl.tensor,
    stats: tl.tensor,
    turns: tl.tensor,
    length: tl.tensor,
    padded: tl.tensor,
    heads: tl.tensor,
    planes: tl.tensor,
    scale: tl.tensor,
    out_batch: tl.tensor,
    out_head: tl.tensor,
    out_row: tl.tensor,
    grad_batch: tl.tensor,
    grad_head: tl.tensor,
    grad_row: tl.tensor,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    STEPS: tl.constexpr,
) -> None:
    """Rows of ``stats``: ``-lse / scale``, then ``grad_lse - sum(out * grad)``.

    Padded rows get an infinite ``lse``, which makes their weights 0. ``turns`` becomes 0.
    """
    number = tl.program_id(0)
    start = number % (padded // ROWS) * ROWS
    wide = (number // (padded // ROWS)).to(tl.int64)
    batch = wide // heads
    head = wide % heads
    row = start + tl.arange(0, ROWS)
    column = tl.arange(0, D)[None, :]
    keep = row < length
    far = row[:, None].to(tl.int64)
    y = tl.load(
        out + (batch * out_batch + head * out_head + far * out_row + column), keep[:, None], 0.0
    )
    g = tl.load(
        grad + (batch * grad_batch + head * grad_head + far * grad_row + column),
        keep[:, None],
        0.0,
    )
    mean = tl.sum(y.to(tl.float32) * g.to(tl.float32), 1)
    if grad_lse is not None:
        mean -= tl.load(grad_lse + wide * length + row, keep, 0.0)
    value = tl.load(lse + wide * length + row, keep, float("inf"))
    tl.store(stats + wide * padded + row, -value / scale)
    tl.store(stats + (wide + planes) * padded + row, -mean)
    step = tl.arange(0, ROWS // STEPS)
    # The first one counts blocks taken.
    tl.store(turns + 1 + wide * (padded // STEPS) + start // STEPS + step, step * 0)
    if number == 0:
        tl.store(turns, 0)


@triton_jit
def finish_kernel(
    sums: tl.tensor,
    dq: tl.tensor,
    length: tl.tensor,
    padded: tl.tensor,
    heads: tl.tensor,
    scale: tl.tensor,
    dq_batch: tl.tensor,
    dq_head: tl.tensor,
    dq_row: tl.tensor,
    D: tl.constexpr,
    ROWS: tl.constexpr,
) -> None:
    """``dq = scale * sums``."""
    number = tl.program_id(0)
    plane = (number // (padded // ROWS)).to(tl.int64)
    batch = plane // heads
    head = plane % heads
    row = number % (padded // ROWS) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, D)[None, :]
    keep = row < length
    far = row.to(tl.int64)
    value = tl.load(sums + ((plane * padded + far) * D + column), keep, 0.0)
    place = batch * dq_batch + head * dq_head + far * dq_row + column
    tl.store(dq + place, (value * scale).to(dq.dtype.element_ty), keep)


@jit
def _block(
    number: gl.tensor, blocks: gl.tensor, planes: gl.tensor, group: gl.tensor
) -> tuple[gl.tensor, gl.tensor]:
    """Block of keys, from the last to the first, and plane (batch and kv head) by number."""
    first = number // (blocks * group) * group
    rest = number % (blocks * group)
    width = gl.minimum(group, planes - first)
    return blocks - 1 - rest // width, first + rest % width


@jit
def _first_step(block: gl.tensor, steps: gl.tensor, right: gl.tensor) -> gl.tensor:
    """The first 64 queries of which some see a block of keys."""
    return gl.minimum(gl.maximum((block * BLOCK - right) // STEP, 0), steps)


@jit
def _produce(
    sizes: gl.tuple,
    turns: gl.tensor,
    descriptors: gl.tuple,
    buffers: gl.tuple,
    numbers: gl.tensor,
    number_bars: gl.tuple,
    kv_bars: gl.tuple,
    q_bars: gl.tuple,
    g_bars: gl.tuple,
    D: gl.constexpr,
    STAGES: gl.constexpr,
) -> None:
    """Loads blocks of keys and values; for each all its queries, their gradients and statistics."""
    length_q, length_k, _, kv_heads, planes, repeats, group, right = sizes
    q_desc, k_desc, v_desc, g_desc, stats_desc = descriptors
    k_tiles, v_tiles, q_tiles, g_tiles, lse_rows, mean_rows = buffers
    kv_full, kv_empty = kv_bars
    q_full, q_empty = q_bars
    g_full, g_empty = g_bars
    steps = gl.cdiv(length_q, STEP)
    blocks = gl.cdiv(length_k, BLOCK)
    slot = 0
    phase = 1
    turn = 0
    # Whoever is ready takes the next block: under a causal mask they differ in work.
    number = gl.atomic_add(turns, 1, sem="relaxed")
    while number < blocks * planes:
        give(number, turn, numbers, number_bars)
        block, plane = _block(number, blocks, planes, group)
        batch = plane // kv_heads
        kv_head = plane % kv_heads
        mbarrier.wait(kv_empty.index(0), (turn & 1) ^ 1)
        mbarrier.expect(kv_full.index(0), BLOCK * D * 4)
        for i in gl.static_range(CONSUMERS):
            place = [batch, kv_head, block * BLOCK + i * OWN, 0]
            tma_load(k_desc, place, kv_full.index(0), k_tiles.index(i))
            tma_load(v_desc, place, kv_full.index(0), v_tiles.index(i))
        first = _first_step(block, steps, right)
        for repeat in range(repeats):
            head = kv_head * repeats + repeat
            row = plane * repeats + repeat
            for step in range(first, steps):
                start = step * STEP
                mbarrier.wait(q_empty.index(slot), phase)
                mbarrier.expect(q_full.index(slot), STEP * D * 2 + STEP * 4)
                place = [batch, head, start, 0]
                tma_load(q_desc, place, q_full.index(slot), q_tiles.index(slot))
                tma_load(stats_desc, [row, start], q_full.index(slot), lse_rows.index(slot))
                mbarrier.wait(g_empty.index(slot), phase)
                mbarrier.expect(g_full.index(slot), STEP * D * 2 + STEP * 4)
                tma_load(g_desc, place, g_full.index(slot), g_tiles.index(slot))
                row_mean = [planes * repeats + row, start]
                tma_load(stats_desc, row_mean, g_full.index(slot), mean_rows.index(slot))
                slot, phase = advance(slot, phase, STAGES)
        turn += 1
        number = gl.atomic_add(turns, 1, sem="relaxed")
    give(number, turn, numbers, number_bars)


@jit
def _seen(turn_of: gl.tensor) -> gl.tensor:
    """How many blocks of keys have been added."""
    return gl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b32 $0, [$1];",
        "=r,l",
        [turn_of],
        dtype=gl.int32,
        is_pure=False,
        pack=1,
    )


@jit
def _add(
    sizes: gl.tuple,
    turns: gl.tensor,
    sums_desc: gl.tensor,
    parts: gl.tensor,
    numbers: gl.tensor,
    number_bars: gl.tuple,
    part_bars: gl.tuple,
    D: gl.constexpr,
) -> None:
    """Adds the program's parts of the gradients of queries to the sums, in order of the blocks."""
    length_q, length_k, padded, _, planes, repeats, group, right = sizes
    full, empty = part_bars
    steps = gl.cdiv(length_q, STEP)
    blocks = gl.cdiv(length_k, BLOCK)
    phase = 0
    turn = 0
    number = take(turn, numbers, number_bars, 1)
    while number < blocks * planes:
        block, plane = _block(number, blocks, planes, group)
        first = _first_step(block, steps, right)
        for repeat in range(repeats):
            row = plane * repeats + repeat
            for step in range(first, steps):
                # How many blocks after this one the queries see.
                last = (step * STEP + STEP - 1 + right) // BLOCK
                before = gl.minimum(blocks - 1, last) - block
                turn_of = turns + 1 + (row * (padded // STEP) + step)
                mbarrier.wait(full.index(0), phase)
                phase ^= 1
                if before == 0:
                    for i in gl.static_range(CONSUMERS):
                        tma_store(
                            sums_desc, [row, step * STEP, i * (D // CONSUMERS)], parts.index(i)
                        )
                else:
                    seen = _seen(turn_of)
                    while seen != before:
                        seen = _seen(turn_of)
                    for i in gl.static_range(CONSUMERS):
                        tma_add(sums_desc, [row, step * STEP, i * (D // CONSUMERS)], parts.index(i))
                tma.store_wait(0)
                mbarrier.arrive(empty.index(0), count=1)
                # Not only read from shared memory, but written, before the next one's turn.
                gl.inline_asm_elementwise(
                    """
                    cp.async.bulk.wait_group 0;
                    fence.proxy.async;
                    bar.warp.sync 0xffffffff;
                    st.release.gpu.global.b32 [$1], $2;
                    mov.u32 $0, 0;
                    """,
                    "=r,l,r",
                    [turn_of, before + 1],
                    dtype=gl.int32,
                    is_pure=False,
                    pack=1,
                )
        turn += 1
        number = take(turn, numbers, number_bars, 1)


@jit
def _zero() -> gl.tensor:
    """0, unknown to the compiler.

    Addresses that start from it are not kept in registers, of which there are none to spare.
    """
    return gl.inline_asm_elementwise(
        "mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@jit
def _consume(
    sizes: gl.tuple,
    factors: gl.tuple,
    out_descs: gl.tuple,
    buffers: gl.tuple,
    ds_tiles: gl.tensor,
    parts: gl.tensor,
    numbers: gl.tensor,
    number_bars: gl.tuple,
    kv_bars: gl.tuple,
    q_bars: gl.tuple,
    g_bars: gl.tuple,
    ds_bars: gl.tuple,
    part_bars: gl.tuple,
    OWNER: gl.constexpr,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    TAIL: gl.constexpr,
) -> None:
    """Gradients of 64 keys and values a block, and half of the columns of the queries'.

    Scores are transposed, with keys as rows, so that weights and their gradients can stay in
    registers as left operands of the products for values and keys.
    """
    length_q, length_k, _, kv_heads, planes, repeats, group, right = sizes
    multiplier, scale = factors
    dk_desc, dv_desc = out_descs
    k_tiles, v_tiles, q_tiles, g_tiles, lse_rows, mean_rows = buffers
    kv_full, kv_empty = kv_bars
    q_full, q_empty = q_bars
    g_full, g_empty = g_bars
    ds_full, ds_empty = ds_bars
    part_full, part_empty = part_bars
    half: gl.constexpr = D // CONSUMERS
    scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, STEP, 16])
    wide: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    narrow: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, half, 16])
    operand: gl.constexpr = gl.DotOperandLayout(0, wide, 2)
    dtype: gl.constexpr = q_tiles.dtype
    zero_part = gl.zeros([STEP, half], gl.float32, narrow)
    steps = gl.cdiv(length_q, STEP)
    blocks = gl.cdiv(length_k, BLOCK)
    slot = 0
    phase = 0
    parity = 0
    turn = 0
    number = take(turn, numbers, number_bars, 4)
    while number < blocks * planes:
        block, plane = _block(number, blocks, planes, group)
        first = _first_step(block, steps, right)
        start = block * BLOCK + OWNER * OWN
        dk = gl.zeros([OWN, D], gl.float32, wide)
        dv = gl.zeros([OWN, D], gl.float32, wide)
        mbarrier.wait(kv_full.index(0), turn & 1)
        step = first
        for _ in range(repeats * (steps - first)):
            base = _zero()
            k_own = k_tiles.index(base + OWNER).reshape([OWN, D])
            v_own = v_tiles.index(base + OWNER).reshape([OWN, D])
            q = q_tiles.index(slot).reshape([STEP, D])
            g = g_tiles.index(slot).reshape([STEP, D])
            mbarrier.wait(q_full.index(slot), phase)
            # Products are added to what would be subtracted from them.
            s = lse_rows.index(slot).load(scores).broadcast_to(OWN, STEP)
            mbarrier.wait(g_full.index(slot), phase)
            dp = mean_rows.index(slot).load(scores).broadcast_to(OWN, STEP)
            s = warpgroup_mma(k_own, q.permute([1, 0]), s, is_async=True)
            dp = warpgroup_mma(v_own, g.permute([1, 0]), dp, is_async=True)
            s = warpgroup_mma_wait(1, [s])
            s = s * multiplier
            if TAIL:
                # Keys past the last are 0, and with finite weights so is what they add.
                s = gl.minimum(s, 1.0, propagate_nan=tl.PropagateNan.ALL)
            p = gl.exp2(s)
            if step * STEP + right < start + OWN - 1:
                key = start + gl.arange(0, OWN, gl.SliceLayout(1, scores))
                query = step * STEP + gl.arange(0, STEP, gl.SliceLayout(0, scores))
                p = gl.where(key[:, None] <= query[None, :] + right, p, 0.0)
            # Waiting here also keeps ptxas from moving the wait below it above the exponentials.
            mbarrier.wait(ds_empty.index(0), parity ^ 1)
            dp = warpgroup_mma_wait(0, [dp])
            p16 = gl.convert_layout(p.to(dtype), operand)
            dv = warpgroup_mma(p16, g, dv, is_async=True)
            ds = (p * dp).to(dtype)
            ds_tiles.index(OWNER).store(ds)
            fence_async_shared()
            mbarrier.arrive(ds_full.index(0), count=1)
            ds16 = gl.convert_layout(ds, operand)
            dk = warpgroup_mma(ds16, q, dk, is_async=True)
            mbarrier.wait(ds_full.index(0), parity)
            part = warpgroup_mma(
                ds_tiles.index(base + 0).permute([1, 0]),
                k_tiles.index(base + 0).reshape([OWN, D]).slice(OWNER * half, half, 1),
                zero_part,
                use_acc=False,
                is_async=True,
            )
            part = warpgroup_mma(
                ds_tiles.index(base + 1).permute([1, 0]),
                k_tiles.index(base + 1).reshape([OWN, D]).slice(OWNER * half, half, 1),
                part,
                is_async=True,
            )
            dv, p16, dk, ds16 = warpgroup_mma_wait(2, [dv, p16, dk, ds16])
            mbarrier.arrive(g_empty.index(slot), count=1)
            mbarrier.arrive(q_empty.index(slot), count=1)
            mbarrier.wait(part_empty.index(0), parity ^ 1)
            part = warpgroup_mma_wait(0, [part])
            mbarrier.arrive(ds_empty.index(0), count=1)
            parts.index(OWNER).reshape([STEP, half]).store(part)
            fence_async_shared()
            mbarrier.arrive(part_full.index(0), count=1)
            parity ^= 1
            slot, phase = advance(slot, phase, STAGES)
            step += 1
            step = gl.where(step == steps, first, step)
        # No one else reads this part of the values any more.
        place = [plane // kv_heads, plane % kv_heads, start, 0]
        v_own = v_tiles.index(OWNER).reshape([OWN, D])
        v_own.store(dv.to(dtype))
        fence_async_shared()
        tma_store(dv_desc, place, v_tiles.index(OWNER))
        tma.store_wait(0)
        v_own.store((dk * scale).to(dtype))
        fence_async_shared()
        tma_store(dk_desc, place, v_tiles.index(OWNER))
        tma.store_wait(0)
        mbarrier.arrive(kv_empty.index(0), count=1)
        turn += 1
        number = take(turn, numbers, number_bars, 4)


@jit
def backward_kernel(
    q: gl.tensor,
    k: gl.tensor,
    v: gl.tensor,
    grad: gl.tensor,
    dk: gl.tensor,
    dv: gl.tensor,
    stats: gl.tensor,
    sums: gl.tensor,
    turns: gl.tensor,
    length_q: gl.tensor,
    length_k: gl.tensor,
    padded: gl.tensor,
    batch: gl.tensor,
    kv_heads: gl.tensor,
    repeats: gl.tensor,
    group: gl.tensor,
    right: gl.tensor,
    multiplier: gl.tensor,
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
    grad_batch: gl.tensor,
    grad_head: gl.tensor,
    grad_row: gl.tensor,
    dk_batch: gl.tensor,
    dk_head: gl.tensor,
    dk_row: gl.tensor,
    dv_batch: gl.tensor,
    dv_head: gl.tensor,
    dv_row: gl.tensor,
    D: gl.constexpr,
    STAGES: gl.constexpr,
    TAIL: gl.constexpr,
) -> None:
    """``dk``, ``dv`` and, in ``sums``, ``dq`` without its factor.

    A query sees ``right`` keys after its own place.
    """
    dtype: gl.constexpr = q.dtype.element_ty
    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, 1, OWN, D], dtype)
    square: gl.constexpr = gl.NVMMASharedLayout.get_default_for([OWN, STEP], dtype)
    half: gl.constexpr = D // CONSUMERS
    part: gl.constexpr = gl.NVMMASharedLayout.get_default_for([1, STEP, half], gl.float32)
    line: gl.constexpr = gl.NVMMASharedLayout(0, 32, 2)
    q_shape = [batch, kv_heads * repeats, length_q, D]
    k_shape = [batch, kv_heads, length_k, D]
    tile: gl.constexpr = [1, 1, 64, D]
    q_desc = tma.make_tensor_descriptor(q, q_shape, [q_batch, q_head, q_row, 1], tile, rows)
    k_desc = tma.make_tensor_descriptor(k, k_shape, [k_batch, k_head, k_row, 1], tile, rows)
    v_desc = tma.make_tensor_descriptor(v, k_shape, [v_batch, v_head, v_row, 1], tile, rows)
    g_desc = tma.make_tensor_descriptor(
        grad, q_shape, [grad_batch, grad_head, grad_row, 1], tile, rows
    )
    dk_desc = tma.make_tensor_descriptor(dk, k_shape, [dk_batch, dk_head, dk_row, 1], tile, rows)
    dv_desc = tma.make_tensor_descriptor(dv, k_shape, [dv_batch, dv_head, dv_row, 1], tile, rows)
    planes = batch * kv_heads
    stats_desc = tma.make_tensor_descriptor(
        stats, [2 * planes * repeats, padded], [padded, 1], [1, STEP], line
    )
    sums_desc = tma.make_tensor_descriptor(
        sums, [planes * repeats, padded, D], [padded * D, D, 1], [1, STEP, half], part
    )
    k_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, OWN, D], rows)
    v_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, 1, 1, OWN, D], rows)
    q_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, STEP, D], rows)
    g_tiles = gl.allocate_shared_memory(dtype, [STAGES, 1, 1, STEP, D], rows)
    lse_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, STEP], line)
    mean_rows = gl.allocate_shared_memory(gl.float32, [STAGES, 1, STEP], line)
    ds_tiles = gl.allocate_shared_memory(dtype, [CONSUMERS, OWN, STEP], square)
    parts = gl.allocate_shared_memory(gl.float32, [CONSUMERS, 1, STEP, half], part)
    numbers = gl.allocate_shared_memory(gl.int32, [2, 1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    number_bars = (barriers(2, 1), barriers(2, CONSUMERS + 1))
    kv_bars = (barriers(1, 1), barriers(1, CONSUMERS))
    q_bars = (barriers(STAGES, 1), barriers(STAGES, CONSUMERS))
    g_bars = (barriers(STAGES, 1), barriers(STAGES, CONSUMERS))
    ds_bars = (barriers(1, CONSUMERS), barriers(1, CONSUMERS))
    part_bars = (barriers(1, CONSUMERS), barriers(1, 1))
    sizes = (length_q, length_k, padded, kv_heads, planes, repeats, group, right)
    factors = (multiplier, scale)
    buffers = (k_tiles, v_tiles, q_tiles, g_tiles, lse_rows, mean_rows)
    first: gl.constexpr = 0
    second: gl.constexpr = 1
    gl.warp_specialize(
        [
            (
                _consume,
                (
                    sizes, factors, (dk_desc, dv_desc), buffers, ds_tiles, parts, numbers,
                    number_bars, kv_bars, q_bars, g_bars, ds_bars, part_bars,
                    first, D, STAGES, TAIL,
                ),
            ),
            (
                _consume,
                (
                    sizes, factors, (dk_desc, dv_desc), buffers, ds_tiles, parts, numbers,
                    number_bars, kv_bars, q_bars, g_bars, ds_bars, part_bars,
                    second, D, STAGES, TAIL,
                ),
            ),
            (
                _produce,
                (
                    sizes, turns, (q_desc, k_desc, v_desc, g_desc, stats_desc), buffers, numbers,
                    number_bars, kv_bars, q_bars, g_bars, D, STAGES,
                ),
            ),
            (
                _add,
                (
                    sizes, turns, sums_desc, parts, numbers, number_bars, part_bars, D,
                ),
            ),
        ],
        [4, 1, 1],  # warps of all roles but the first
        [240, 24, 24],  # and their registers; the first gets what is left, 240
    )  # fmt: skip
