"""Schedule of reductions along memory: one row at a time, rows in parallel.

A row is walked once per pass (see ``passes``); it stays in cache between passes. When there are too
few rows to keep the threads busy, each pass is cut into a fixed number of parts instead, whose
partial results are combined in order: the result does not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.accumulate import Accumulator, accumulator
from torchsmith_fx_backend._src.codegen.c.analysis import PARALLEL_WORK, Facts, static
from torchsmith_fx_backend._src.codegen.c.emit import (
    Emitter,
    flat_position,
    outer_points,
    reduce_points,
    shared,
)
from torchsmith_fx_backend._src.codegen.c.passes import Pass, plan_passes
from torchsmith_fx_backend._src.loops.ir import Reduce, Store

_STACK_BYTES = 128 * 1024  # row buffers up to this size live on the thread's stack
_PARTS, _LINE = 64, 64  # elements of a cache line, at most
_POSITION_LANES = 64  # that keep positions of their own; 16 in rows no longer than ...
_SHORT_ROW = 256  # ... this, whose lanes cost more to join than to fill
_SHORT_SUM = 256  # float32 terms that are added, side by side in lanes, before they go to a double


def emit_inner(out: Emitter) -> None:
    """Write a kernel whose reductions run along memory."""
    facts = out.facts
    rows = static(outer_points(facts))
    length = static(reduce_points(facts))
    work = facts.work()
    in_parts = (
        rows is not None
        and rows < 4
        and (length is None or length * work >= PARALLEL_WORK)
        and static(facts.points()) != 0
    )
    outer = list(facts.outer_axes)
    if in_parts:
        with out.loops(outer):
            _row(out, plan_passes(facts, buffers=False), parts=True)
        return
    passes = plan_passes(facts, buffers=True)
    kept = [position for one in passes for position in one.kept]
    heap = kept and (length is None or _bytes(facts, kept) * length > _STACK_BYTES)
    if not heap:
        if outer:
            out.share(len(outer), work)
        with out.loops(outer):
            for position in kept:
                ctype = scalars.value_type(scalars.dtype_of(facts.kernel, position))
                out.line(f"{ctype} row{position}[{length}] __attribute__((aligned(64)));")
            _row(out, passes, parts=False)
        return
    size = out.index(reduce_points(facts))
    if outer:
        out.parallel("", facts.points(), work)
    with out.block(""):
        for position in kept:
            ctype = scalars.value_type(scalars.dtype_of(facts.kernel, position))
            out.line(f"{ctype} *row{position} = __builtin_malloc(({size}) * sizeof({ctype}));")
        if outer and out.is_parallel(facts.points(), work):
            out.line(f"#pragma omp {shared(len(outer))}")
        with out.loops(outer):
            _row(out, passes, parts=False)
        for position in kept:
            out.line(f"__builtin_free(row{position});")


def _bytes(facts: Facts, kept: Sequence[int]) -> int:
    return sum(scalars.dtype_of(facts.kernel, position).itemsize for position in kept)


def _row(out: Emitter, passes: list[Pass], *, parts: bool) -> None:
    """One row: outer values as they become ready, the passes, and the stores of outer values."""
    facts = out.facts
    body = facts.kernel.body
    outer = [
        p
        for p, node in enumerate(body)
        if not facts.full[p] and not isinstance(node, (Store, Reduce))
    ]
    done = 0
    for one in passes:
        out.emit(p for p in outer if facts.level[p] <= done)
        _walk(out, one, parts=parts)
        done = max([done, *(facts.level[p] for p in one.reduces)])
    out.emit(p for p in outer if facts.level[p] <= done)
    out.emit(p for p, node in enumerate(body) if isinstance(node, Store) and not facts.full[p])


def _walk(out: Emitter, one: Pass, *, parts: bool) -> None:
    """One pass over the reduction axes."""
    facts = out.facts
    accumulators = [accumulator(facts.kernel, position) for position in one.reduces]
    axes = list(facts.reduce_axes)
    if len(axes) > 1 and all(a.vectorises for a in accumulators):
        # The fastest axis through memory goes last; only positions mind the order of a walk.
        lane = facts.best_lane(axes, one.needed)
        axes = [axis for axis in axes if axis != lane] + [lane]
    if parts:
        _in_parts(out, one, accumulators, axes)
    else:
        _accumulate(out, one, accumulators, axes, None)
    for a in accumulators:
        out.define(a.position, a.result())


def _declare(out: Emitter, accumulators: list[Accumulator]) -> None:
    for a in accumulators:
        for v in a.variables():
            out.line(f"{v.ctype} {v.name} = {v.start};")


def _accumulate(
    out: Emitter,
    one: Pass,
    accumulators: list[Accumulator],
    axes: list[int],
    bounds: tuple[str, str] | None,
) -> None:
    """Declare the accumulators and run the loops of a pass; ``bounds`` limit the first of them."""
    _declare(out, accumulators)
    positions = [a for a in accumulators if not a.vectorises]
    extent = static(out.kernel.ranges[axes[-1]])
    width = _POSITION_LANES if extent is None or extent > _SHORT_ROW else min(16, max(extent, 1))
    if positions:
        # No OpenMP clause knows them: each lane of a block keeps the best that it has seen.
        variables = [v for a in positions for v in a.variables()]
        for v in variables:
            out.line(f"{v.ctype} {v.name}_lanes[{width}];")
        with out.block(f"for (int64_t l = 0; l < {width}; l++)"):
            for v in variables:
                out.line(f"{v.name}_lanes[l] = {v.start};")
    _nest(out, one, accumulators, axes, bounds, width)
    for a in positions:
        for text in a.merge_lanes(width):
            out.line(text)


def _nest(
    out: Emitter,
    one: Pass,
    accumulators: list[Accumulator],
    axes: list[int],
    bounds: tuple[str, str] | None,
    width: int,
) -> None:
    facts = out.facts
    lane = axes[-1]
    late = set(one.fetched)  # row buffers are read in the innermost loop, whatever they hold
    for position in one.needed:
        if not late.isdisjoint(facts.operands(position)):
            late.add(position)
    for depth, axis in enumerate(axes[:-1]):
        low, high = bounds if bounds is not None and depth == 0 else ("0", None)
        out.open(out.loop_header(axis, low, high))
        inner = set(axes[depth + 1 :])
        out.emit(
            p
            for p in one.needed
            if not facts.axes[p] & inner
            and p not in late
            and not isinstance(facts.kernel.body[p], Store)
        )
    end = out.index(facts.kernel.ranges[lane])
    low, high = bounds if bounds is not None and len(axes) == 1 else ("0", end)
    short = [a for a in accumulators if a.in_parts]
    clauses = " ".join(a.clause() for a in accumulators if a.vectorises and not a.in_parts)
    clauses += "".join(f" reduction(+:{a.part})" for a in short)
    simd = "" if facts.interleaves(lane) else f"#pragma omp simd {clauses}".rstrip()
    ordered = not all(a.vectorises for a in accumulators)
    block = width if ordered else _SHORT_SUM
    extent = static(facts.kernel.ranges[lane])
    whole = not short or (bounds is None and extent is not None and 0 < extent <= block)
    if not ordered and whole:
        with out.block("") if short else nullcontext():
            _strip(out, one, accumulators, lane, low, high, simd, "")
    else:
        with out.block(f"for (int64_t b{lane} = {low}; b{lane} < {high}; b{lane} += {block})"):
            stop = f"{high} - b{lane} < {block} ? {high} : b{lane} + {block}"
            out.line(f"const int64_t e{lane} = {stop};")
            place = f"_lanes[i{lane} - b{lane}]" if ordered else ""
            _strip(out, one, accumulators, lane, f"b{lane}", f"e{lane}", simd, place)
    for _ in axes[:-1]:
        out.close()


def _strip(
    out: Emitter,
    one: Pass,
    accumulators: list[Accumulator],
    lane: int,
    low: str,
    high: str,
    simd: str,
    place: str,
) -> None:
    """The inner loop over part of ``lane``; short sums go to their accumulators after it."""
    short = [a for a in accumulators if a.in_parts]
    for a in short:
        out.line(f"float {a.part} = 0;")
    header = out.loop_header(lane, low, high)
    out.walk(header, simd, one.needed, lambda: _point(out, one, accumulators, place))
    for a in short:
        out.line(f"{a.variables()[0].name} += {a.part};")


def _point(out: Emitter, one: Pass, accumulators: list[Accumulator], place: str) -> None:
    """What a pass does at one point; ``place`` is where positions are accumulated."""
    facts = out.facts
    flat = out.index(flat_position(facts))
    for position in sorted(one.fetched):
        out.define(position, f"row{position}[{flat}]")
    out.emit(p for p in one.needed if not isinstance(facts.kernel.body[p], Store))
    for position in one.kept:
        out.line(f"row{position}[{flat}] = {out.value(position)};")
    for a in accumulators:
        node = facts.kernel.body[a.position]
        assert isinstance(node, Reduce)
        if a.in_parts:
            out.line(f"{a.part} += {out.value(node.value)};")
            continue
        for text in a.step(out.value(node.value), flat, "" if a.vectorises else place):
            out.line(text)
    out.emit(p for p in one.needed if isinstance(facts.kernel.body[p], Store))


def _in_parts(out: Emitter, one: Pass, accumulators: list[Accumulator], axes: list[int]) -> None:
    """A pass in ``_PARTS`` parallel parts of its longest axis."""
    facts = out.facts
    sizes = {axis: static(facts.kernel.ranges[axis]) for axis in axes}
    ordered = any(not a.vectorises for a in accumulators)
    first = axes[0] if ordered else max(axes, key=lambda a: sizes[a] or 1 << 62)
    loops = [first, *(axis for axis in axes if axis != first)]
    end = out.index(facts.kernel.ranges[first])
    partial = [v for a in accumulators for v in a.variables()]
    for v in partial:
        out.line(f"{v.ctype} {v.name}_parts[{_PARTS}];")
    out.parallel("for schedule(static)", reduce_points(facts), facts.work())
    with out.block(f"for (int64_t part = 0; part < {_PARTS}; part++)"):
        # An axis of its own is cut where cache lines begin, if it begins there.
        line = _LINE if len(loops) == 1 else 1
        cut = f" / {_PARTS * line} * {line}"
        out.line(f"const int64_t low = ({end}) * part{cut};")
        high = f"({end}) * (part + 1){cut}"
        out.line(f"const int64_t high = part == {_PARTS - 1} ? {end} : {high};")
        _accumulate(out, one, accumulators, loops, ("low", "high"))
        for v in partial:
            out.line(f"{v.name}_parts[part] = {v.name};")
    _declare(out, accumulators)
    if accumulators:
        with out.block(f"for (int64_t part = 0; part < {_PARTS}; part++)"):
            for a in accumulators:
                for text in a.merge("_parts[part]"):
                    out.line(text)
