"""Schedule of scans: rows are walked in order, different rows in parallel.

Where neighbouring rows are neighbours in memory, vector lanes are rows, as in ``outer``.
"""

from __future__ import annotations

from torchsmith_fx_backend._src.codegen.c.accumulate import scan
from torchsmith_fx_backend._src.codegen.c.analysis import Facts, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter, flat_position
from torchsmith_fx_backend._src.codegen.c.outer import hoist
from torchsmith_fx_backend._src.codegen.c.passes import DEAR
from torchsmith_fx_backend._src.codegen.c.waiting import SHORT, keep, make_room, take
from torchsmith_fx_backend._src.loops.ir import Compute, Scan, Store

_BLOCK = 64  # rows that are walked side by side, and points of a row whose values wait


def emit_scan(out: Emitter, lane: int | None) -> None:
    """Write a kernel with scans; ``lane`` is an outer axis that runs through memory."""
    facts = out.facts
    shared = [axis for axis in facts.outer_axes if axis != lane]
    depth = len(shared) + (lane is not None)
    if depth:
        out.share(depth, facts.work())
    with out.loops(shared):
        if lane is None:
            _rows(out, None)
            return
        with out.blocks(lane, _BLOCK):
            _rows(out, lane)


def _rows(out: Emitter, lane: int | None) -> None:
    """One row, or a block of rows along ``lane``."""
    facts = out.facts
    body = facts.kernel.body
    once = [p for p, node in enumerate(body) if isinstance(node, Store) and not facts.full[p]]
    outer = facts.closure(once) if lane is not None else [p for p in _all(out) if not facts.full[p]]
    full = [p for p in _all(out) if facts.full[p]]
    out.scan_place = "" if lane is None else f"[i{lane} - low]"
    out.scan_flat = out.index(flat_position(facts))
    for position in full:
        if not isinstance(body[position], Scan):
            continue
        for ctype, name, start in scan(facts.kernel, position).variables():
            if lane is None:
                out.line(f"{ctype} {name} = {start};")
            else:
                out.line(f"{ctype} {name}[{_BLOCK}];")
                out.line(f"for (int64_t l = 0; l < {_BLOCK}; l++) {name}[l] = {start};")
    if lane is None:
        out.emit(outer)
        _walk(out, full)
        return
    header = out.loop_header(lane, "low", "high")
    with out.loops(facts.reduce_axes):
        hoist(out, facts.closure(_before_scans(facts, full)), lane, ())
        out.line("#pragma omp simd")
        with out.block(header):
            out.emit(facts.closure(full))
    if outer:  # last: they may be stored over what is read above
        with out.block(header):
            out.emit(outer)


def _before_scans(facts: Facts, full: list[int]) -> list[int]:
    """Those of ``full`` that no scan has a part in."""
    scans = {p for p in full if isinstance(facts.kernel.body[p], Scan)}
    return [p for p in full if scans.isdisjoint(facts.closure([p]))]


def _walk(out: Emitter, full: list[int]) -> None:
    """The points of one row. What is dear before and behind the scans is computed in vectors, a
    block at a time, and waits in between."""
    facts, kernel = out.facts, out.kernel
    body, (*walked, axis) = kernel.body, facts.reduce_axes
    scans = {p: node.value for p in full if isinstance(node := body[p], Scan)}
    stores = [p for p in full if isinstance(body[p], Store)]
    early = [v for v in dict.fromkeys(scans.values()) if v < min(scans) and v in full]
    if _cost(facts, facts.closure(early)) < DEAR:
        early = []
    kept = [*early, *scans]
    late = _cost(facts, facts.closure(stores, stop=facts.closure(scans))) >= DEAR
    size = static(kernel.ranges[axis])
    if not (early or late) or (size is not None and size < SHORT):
        with out.loops(facts.reduce_axes):
            out.emit(full)
        return
    with out.loops(walked), out.blocks(axis, _BLOCK):
        make_room(out, kept if late else early, _BLOCK)
        header = out.loop_header(axis, "low", "high")
        if early:
            out.simd(axis)
            with out.block(header):
                out.emit(facts.closure(early))
                keep(out, early, axis)
        with out.block(header):
            take(out, early, axis)
            if not late:
                out.emit(facts.closure([*scans, *stores], stop=early))
                return
            out.emit(facts.closure(scans, stop=early))
            keep(out, scans, axis)
        out.simd(axis)
        with out.block(header):
            take(out, kept, axis)
            out.emit(facts.closure(stores, stop=kept))


def _cost(facts: Facts, positions: list[int]) -> int:
    return sum(facts.cost(p) for p in positions if isinstance(facts.kernel.body[p], Compute))


def _all(out: Emitter) -> range:
    return range(len(out.kernel.body))
