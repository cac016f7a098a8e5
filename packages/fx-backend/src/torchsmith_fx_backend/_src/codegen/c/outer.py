"""Schedule of reductions across memory: an outer axis is the contiguous one.

Vector lanes are neighbouring *results*: a block of them accumulates side by side while the
reduction axes are walked, so every load is contiguous. Blocks run in parallel.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.accumulate import Accumulator, accumulator
from torchsmith_fx_backend._src.codegen.c.analysis import Facts, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter, flat_position
from torchsmith_fx_backend._src.codegen.c.passes import Pass, plan_passes
from torchsmith_fx_backend._src.loops.index import product
from torchsmith_fx_backend._src.loops.ir import Reduce, ReduceOp, Store

_LANES = "for (int64_t l = 0; l < width; l++)"


def emit_outer(out: Emitter, lane: int) -> None:
    """Write a kernel whose reductions step across memory; ``lane`` is the contiguous outer axis."""
    facts = out.facts
    others = [axis for axis in facts.outer_axes if axis != lane]
    extent = facts.kernel.ranges[lane]
    block = _block_size(static(extent), static(product([facts.kernel.ranges[a] for a in others])))
    end = out.index(extent)
    out.share(len(others) + 1, facts.work())
    with out.loops(others), out.block(f"for (int64_t low = 0; low < {end}; low += {block})"):
        out.line(f"const int64_t width = {end} - low < {block} ? {end} - low : {block};")
        _block(out, lane, block)


def _block_size(extent: int | None, others: int | None) -> int:
    """Results per block: long runs through memory, but several blocks for the threads to share."""
    if extent is None:
        return 256
    wanted = extent if (others or 1) >= 8 else extent // 8
    return min(max(64, min(512, wanted // 16 * 16)), max(extent, 1))


def _block(out: Emitter, lane: int, block: int) -> None:
    facts = out.facts
    body = facts.kernel.body
    # Outer values behind a reduction that full values use: computed once per block, one per lane.
    arrays = [
        p
        for p, node in enumerate(body)
        if not facts.full[p]
        and facts.level[p] > 0
        and not isinstance(node, (Store, Reduce))
        and any(facts.full[u] for u in facts.users[p])
    ]
    for p in arrays:
        ctype = scalars.value_type(scalars.dtype_of(facts.kernel, p))
        out.line(f"{ctype} lanes{p}[{block}];")
    everything = range(len(body))
    hoist(out, [p for p in everything if not facts.full[p]], lane, facts.reduce_axes)
    done = 0
    ready: set[int] = set()
    for one in plan_passes(facts, buffers=False):
        accumulators = [accumulator(facts.kernel, position) for position in one.reduces]
        _walk(out, one, accumulators, lane, block, ready)
        done = max([done, *(facts.level[p] for p in one.reduces)])
        fresh = [p for p in arrays if facts.level[p] <= done and p not in ready]
        if fresh:
            out.simd(lane)
            with out.block(_LANES):
                out.line(f"const int64_t i{lane} = low + l;")
                _evaluate(out, fresh, ready)
                for p in fresh:
                    out.line(f"lanes{p}[l] = {out.value(p)};")
            ready.update(fresh)
    stores = [p for p, node in enumerate(body) if isinstance(node, Store) and not facts.full[p]]
    if stores:
        out.simd(lane)
        with out.block(_LANES):
            out.line(f"const int64_t i{lane} = low + l;")
            _evaluate(out, stores, ready)
            out.emit(stores)


def hoist(out: Emitter, positions: Iterable[int], lane: int, inner: Iterable[int]) -> None:
    """Statements for those values that are the same for all lanes and do not change along the
    ``inner`` axes: gcc leaves an exponential, say, in a vector loop though it is the same there."""
    changing = {lane, *inner}
    facts, body = out.facts, out.kernel.body
    out.emit(p for p in positions if not (facts.axes[p] & changing or type(body[p]) is Store))


def _evaluate(out: Emitter, roots: Iterable[int], ready: set[int]) -> None:
    """Statements for ``roots`` within one lane, from finished reductions and kept lanes."""
    facts = out.facts
    reduces = {p for p, node in enumerate(facts.kernel.body) if isinstance(node, Reduce)}
    for p in facts.closure(roots, reduces | ready):
        node = facts.kernel.body[p]
        if p in out.names or isinstance(node, Store):
            continue
        if isinstance(node, Reduce):
            out.define(p, accumulator(facts.kernel, p).result("[l]"))
        elif p in ready:
            out.define(p, f"lanes{p}[l]")
        else:
            out.emit([p])


def _walk(
    out: Emitter, one: Pass, accumulators: list[Accumulator], lane: int, block: int, ready: set[int]
) -> None:
    """One pass: the reduction axes outside, the lanes inside."""
    facts = out.facts
    variables = [v for a in accumulators for v in a.variables()]
    for v in variables:
        out.line(f"{v.ctype} {v.name}[{block}];")
    if variables:
        with out.block(_LANES):
            for v in variables:
                out.line(f"{v.name}[l] = {v.start};")
    stores = [p for p in one.needed if isinstance(facts.kernel.body[p], Store)]
    *slow, fast = facts.reduce_axes
    unroll = 1 if stores else _unroll(facts, one, accumulators)
    end = out.index(facts.kernel.ranges[fast])
    hoist(out, one.needed, lane, facts.reduce_axes)
    with ExitStack() as nest:
        for depth, axis in enumerate(slow):
            nest.enter_context(out.block(out.loop_header(axis)))
            hoist(out, one.needed, lane, facts.reduce_axes[depth + 1 :])
        if unroll > 1:
            at = f"r{accumulators[0].position}"  # passes may share a scope
            out.line(f"int64_t {at} = 0;")
            out.open(f"for (; {at} + {unroll} <= {end}; {at} += {unroll})")
            out.simd(lane, unrolled=True)
            with out.block(_LANES):
                out.line(f"const int64_t i{lane} = low + l;")
                for a in accumulators:
                    out.line(f"{scalars.value_type(a.dtype)} part{a.position} = 0;")
                for step in range(unroll):
                    with out.block(""):
                        out.line(f"const int64_t i{fast} = {at} + {step};")
                        _evaluate(out, one.needed, ready)
                        for a in accumulators:
                            out.line(f"part{a.position} += {_operand(out, a, ready)};")
                for a in accumulators:
                    out.line(f"acc{a.position}[l] += part{a.position};")
            out.close()
            out.open(out.loop_header(fast, at))
        else:
            out.open(out.loop_header(fast))
        flat = out.index(flat_position(facts))
        hoist(out, one.needed, lane, ())
        out.simd(lane)
        with out.block(_LANES):
            out.line(f"const int64_t i{lane} = low + l;")
            _evaluate(out, one.needed, ready)
            for a in accumulators:
                for text in a.step(_operand(out, a, ready), flat, "[l]"):
                    out.line(text)
            out.emit(stores)
        out.close()


def _operand(out: Emitter, a: Accumulator, ready: set[int]) -> str:
    """C text of the value that ``a`` takes in."""
    node = out.kernel.body[a.position]
    assert isinstance(node, Reduce)
    _evaluate(out, [node.value], ready)
    return out.value(node.value)


def _unroll(facts: Facts, one: Pass, accumulators: list[Accumulator]) -> int:
    """How many steps share one visit to the accumulators, which lie in memory.

    Sums only: up to eight float32 terms added before they go to the double lose nothing that a
    pairwise sum would keep.
    """
    if not accumulators or any(a.op is not ReduceOp.SUM for a in accumulators):
        return 1
    size = sum(facts.cost(p) for p in one.needed)
    return 8 if size <= 8 else 4 if size <= 20 else 1
