"""Schedule of kernels without reduction: a vectorised inner axis, everything else in parallel.

The inner axis is the one along which memory is walked best. When some accesses run along one axis
and others along another (a transposed copy, for instance), both are cut into tiles that fit the
first-level cache.
"""

from __future__ import annotations

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.analysis import Facts, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter
from torchsmith_fx_backend._src.loops.index import ONE, ZERO, product
from torchsmith_fx_backend._src.loops.ir import Load, Store

_TILE = 32
_CHUNK = 8192  # elements of the inner axis per task when the outer axes alone are too few


def emit_pointwise(out: Emitter) -> None:
    """Write the loop nest of a kernel without reduction."""
    facts = out.facts
    axes = list(facts.outer_axes)
    everything = range(len(facts.kernel.body))
    if not axes:
        out.emit(everything)
        return
    lane = facts.best_lane(axes, everything)
    others = [axis for axis in axes if axis != lane]
    cross = _cross_axis(facts, lane, others)
    if cross is not None:
        _tiled(out, [axis for axis in others if axis != cross], cross, lane)
    elif not others:
        if not out.parallel("for simd schedule(static)", facts.points(), facts.work()):
            out.line("#pragma omp simd")
        with out.block(out.loop_header(lane)):
            out.emit(everything)
    else:
        _rows(out, others, lane)


def _cross_axis(facts: Facts, lane: int, others: list[int]) -> int | None:
    """Another axis that some access walks with step one while stepping far along ``lane``."""
    along = facts.strides(lane)
    far = [p for p, step in along.items() if step is None or (step != ONE and step != ZERO)]
    best, most = None, 0
    for axis in others:
        size = static(facts.kernel.ranges[axis])
        if size is not None and size < 8:
            continue
        steps = facts.strides(axis)
        # Twice for a store: its cache lines travel both ways.
        hits = sum(
            2 if isinstance(facts.kernel.body[p], Store) else 1 for p in far if steps[p] == ONE
        )
        if hits > most:
            best, most = axis, hits
    return best


def _rows(out: Emitter, others: list[int], lane: int) -> None:
    """Perfect nest over ``others``, then the inner loop."""
    facts = out.facts
    extent = facts.kernel.ranges[lane]
    rows = product([facts.kernel.ranges[axis] for axis in others])
    few = static(rows) is None or (static(rows) or 0) < 16
    size = static(extent)
    wide = size is None or size >= 2 * _CHUNK
    parallel = out.is_parallel(facts.points(), facts.work())
    chunked = parallel and few and wide
    depth = len(others) + chunked
    if parallel:
        collapse = f" collapse({depth})" if depth > 1 else ""
        out.parallel(f"for schedule(static){collapse}", facts.points(), facts.work())
    with out.loops(others):
        if not chunked:
            _lane(out, lane, "0", out.index(extent))
            return
        end = out.index(extent)
        with out.block(f"for (int64_t low = 0; low < {end}; low += {_CHUNK})"):
            out.line(f"const int64_t high = {end} - low < {_CHUNK} ? {end} : low + {_CHUNK};")
            _lane(out, lane, "low", "high")


def _lane(out: Emitter, lane: int, low: str, high: str) -> None:
    facts = out.facts
    positions = range(len(facts.kernel.body))
    out.emit(
        p
        for p in positions
        if lane not in facts.axes[p] and not isinstance(facts.kernel.body[p], Store)
    )
    out.line("#pragma omp simd")
    with out.block(out.loop_header(lane, low, high)):
        out.emit(positions)


def _tiled(out: Emitter, others: list[int], cross: int, lane: int) -> None:
    """Tiles over ``cross`` x ``lane``, so that both walks stay within cached lines."""
    facts = out.facts
    depth = len(others) + 2
    out.parallel(f"for schedule(static) collapse({depth})", facts.points(), facts.work() * 2)
    with out.loops(others):
        ends = {axis: out.index(facts.kernel.ranges[axis]) for axis in (cross, lane)}
        out.line(f"for (int64_t b{cross} = 0; b{cross} < {ends[cross]}; b{cross} += {_TILE})")
        with out.block(f"for (int64_t b{lane} = 0; b{lane} < {ends[lane]}; b{lane} += {_TILE})"):
            for axis in (cross, lane):
                end = ends[axis]
                out.line(
                    f"const int64_t e{axis} = "
                    f"{end} - b{axis} < {_TILE} ? {end} : b{axis} + {_TILE};"
                )
            _stage(out, cross, lane)
            with out.block(out.loop_header(cross, f"b{cross}", f"e{cross}")):
                _lane(out, lane, f"b{lane}", f"e{lane}")


def _stage(out: Emitter, cross: int, lane: int) -> None:
    """Copy the tile of each load that runs along ``cross`` into a local array, as it lies.

    Reading the array across is cheap: it is in the first-level cache, and its odd row length
    spreads a column over all cache sets, which a large power of two would not.
    """
    along, across = out.facts.strides(lane), out.facts.strides(cross)
    for position, node in enumerate(out.kernel.body):
        if not isinstance(node, Load) or node.mask is not None:
            continue
        if across[position] != ONE or along[position] in (None, ZERO, ONE):
            continue
        ctype = scalars.cell_type(node.dtype)
        place = f"tile{position}[i{lane} - b{lane}][i{cross} - b{cross}]"
        out.line(f"{ctype} tile{position}[{_TILE}][{_TILE + 1}];")
        with out.block(out.loop_header(lane, f"b{lane}", f"e{lane}")):
            out.line("#pragma omp simd")
            with out.block(out.loop_header(cross, f"b{cross}", f"e{cross}")):
                out.line(f"{place} = a{node.arg}[{out.index(node.index)}];")
        out.staged[position] = place
