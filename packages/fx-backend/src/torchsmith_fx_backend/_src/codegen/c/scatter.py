"""Schedule of kernels whose points may write the same element.

Threads and vector lanes share out the axes that are owned (see ``loops.meeting``), so that each
element has one writer; along the others points follow each other. Without an owned axis to make
vectors of, values are computed in vectors, a block at a time, and then written one by one.
"""

from __future__ import annotations

from torchsmith_fx_backend._src.codegen.c.analysis import Facts, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter
from torchsmith_fx_backend._src.codegen.c.passes import DEAR
from torchsmith_fx_backend._src.codegen.c.pointwise import emit_lane
from torchsmith_fx_backend._src.codegen.c.waiting import SHORT, keep, make_room, take
from torchsmith_fx_backend._src.loops.index import ONE, coefficient
from torchsmith_fx_backend._src.loops.ir import Literal, Position, Store
from torchsmith_fx_backend._src.loops.meeting import meeting_stores, owned_axes

_BLOCK = 128  # points whose values wait to be written
_CHUNK = 256  # elements of an owned inner axis per task when there is no other owned axis


def emit_scatter(out: Emitter) -> None:
    """Write the loops of a kernel in which points may meet."""
    facts = out.facts
    ranges = facts.kernel.ranges
    owned = owned_axes(facts.kernel)
    met = [axis for axis in facts.outer_axes if axis not in owned]
    lane = _lane(facts, owned)
    shared = [axis for axis in owned if axis != lane]
    work = facts.work() * 2
    if shared:
        out.share(len(shared), work)
    elif lane is not None and out.is_parallel(facts.points(), work):
        out.share(1, work)
        with out.blocks(lane, _CHUNK), out.loops(met):
            emit_lane(out, lane, "low", "high")
        return
    with out.loops(shared):
        if lane is not None:
            with out.loops(met):
                emit_lane(out, lane, "0", out.index(ranges[lane]))
        elif met:
            with out.loops(met[:-1]):
                _in_blocks(out, met[-1])
        else:
            out.emit(range(len(facts.kernel.body)))


def _lane(facts: Facts, owned: list[int]) -> int | None:
    """An owned axis along which every meeting store walks through memory."""
    kernel = facts.kernel
    for axis in reversed(owned):
        size = static(kernel.ranges[axis])
        stores = [kernel.body[p] for p in meeting_stores(kernel)]
        if size is not None and size < SHORT:
            continue
        if all(isinstance(n, Store) and coefficient(n.index, axis) == ONE for n in stores):
            return axis
    return None


def _in_blocks(out: Emitter, axis: int) -> None:
    """The loop over ``axis``: dear values in vectors, then positions and writes one by one."""
    facts, kernel = out.facts, out.kernel
    meeting = meeting_stores(kernel)
    placed = _behind_positions(facts)
    early = [p for p in range(len(kernel.body)) if p not in placed]
    values = {n.value for p in meeting if isinstance(n := kernel.body[p], Store)}
    kept = [v for v in values if v in early and not isinstance(kernel.body[v], Literal)]
    if sum(facts.cost(p) for p in facts.closure(kept)) < DEAR:
        with out.block(out.loop_header(axis)):
            out.emit(range(len(kernel.body)))
        return
    with out.blocks(axis, _BLOCK):
        make_room(out, kept, _BLOCK)
        out.simd(axis)
        with out.block(out.loop_header(axis, "low", "high")):
            plain = [p for p in early if isinstance(kernel.body[p], Store)]
            out.emit(facts.closure([*kept, *plain]))
            keep(out, kept, axis)
        with out.block(out.loop_header(axis, "low", "high")):
            take(out, kept, axis)
            late = [p for p in placed if isinstance(kernel.body[p], Store)]
            out.emit(facts.closure(late, stop=kept))


def _behind_positions(facts: Facts) -> set[int]:
    """The values that depend on positions, the stores where points meet, and what fails."""
    found = set(meeting_stores(facts.kernel))
    for position, node in enumerate(facts.kernel.body):
        if isinstance(node, Position) or not found.isdisjoint(facts.operands(position)):
            found.add(position)
    return found
