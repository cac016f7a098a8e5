"""Schedule of kernels without reduction: a vectorised inner axis, everything else in parallel.

The inner axis is the one along which memory is walked best. When some accesses run along one axis
and others along another (a transposed copy, for instance), both are cut into tiles that fit the
first-level cache. A nest whose conditions or remainders change along the way is cut there first
(``loops.pieces``): along the inner axis into loops that follow each other, else into nests.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.analysis import Facts, analyse, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter
from torchsmith_fx_backend._src.loops.index import ONE, ZERO, loaded, product
from torchsmith_fx_backend._src.loops.ir import Kernel, Load, Store
from torchsmith_fx_backend._src.loops.pieces import pieces

_TILE = 32
_BLOCK = 1024  # elements of which it is asked at once whether any is far
_CHUNK = 8192  # elements of the inner axis per task when the outer axes alone are too few


def emit_pointwise(out: Emitter) -> None:
    """Write the loop nests of a kernel without reduction."""
    walk = _walk(out.facts)
    lane = walk.lane
    for part in pieces(out.kernel, [axis for axis in out.facts.outer_axes if axis != lane]):
        facts, whole = _walked(part, out.facts, walk)
        cut = pieces(part, [] if lane is None else [lane])
        rows = [_walked(row, facts, whole) for row in cut]
        walks = [whole, *(w for _, w in rows)]
        if all(w.rows and not w.chunked and w.lane == lane for w in walks):
            _rows(out.part(facts), whole, [f for f, _ in rows])
            continue
        for row, how in rows:
            _nest(out.part(row), how)


@dataclass(frozen=True, slots=True)
class _Walk:
    """How a nest is walked.

    Attributes:
        lane: the inner axis; None for a kernel without axes.
        others: the other axes, outermost first, without ``cross``.
        cross: the axis that is cut into tiles together with ``lane``.
        chunked: the inner axis is cut into tasks.
    """

    lane: int | None
    others: list[int]
    cross: int | None = None
    chunked: bool = False

    @property
    def rows(self) -> bool:
        """Whether whole rows along ``lane`` are walked within other axes."""
        return bool(self.others) and self.cross is None


def _walk(facts: Facts) -> _Walk:
    axes = list(facts.outer_axes)
    if not axes:
        return _Walk(None, [])
    lane = facts.best_lane(axes, range(len(facts.kernel.body)))
    others = [axis for axis in axes if axis != lane]
    cross = _cross_axis(facts, lane, others)
    if cross is not None:
        return _Walk(lane, [axis for axis in others if axis != cross], cross)
    rows = static(product([facts.kernel.ranges[axis] for axis in others]))
    size = static(facts.kernel.ranges[lane])
    few = rows is None or rows < 16
    wide = size is None or size >= 2 * _CHUNK
    return _Walk(lane, others, None, bool(others) and few and wide)


def _walked(kernel: Kernel, facts: Facts, walk: _Walk) -> tuple[Facts, _Walk]:
    """Facts and walk of a piece; ``facts`` and ``walk`` are those of what it was cut from."""
    if kernel is facts.kernel:
        return facts, walk
    found = analyse(kernel)
    return found, _walk(found)


def _nest(out: Emitter, walk: _Walk) -> None:
    facts = out.facts
    everything = range(len(facts.kernel.body))
    lane, others = walk.lane, walk.others
    if lane is None:
        out.emit(everything)
    elif walk.cross is not None:
        _tiled(out, others, walk.cross, lane)
    elif others:
        _rows(out, walk, [facts])
    elif out.nears(everything):
        out.share(1, facts.work())
        with out.blocks(lane, _BLOCK):
            emit_lane(out, lane, "low", "high")
    else:
        if not out.parallel("for simd schedule(static)", facts.points(), facts.work()):
            out.simd(lane)
        with out.block(out.loop_header(lane)):
            out.emit(everything)


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


def _rows(out: Emitter, walk: _Walk, parts: list[Facts]) -> None:
    """Perfect nest over the other axes, then the inner loops, one for each piece of a row."""
    facts, lane = out.facts, walk.lane
    assert lane is not None
    parallel = out.is_parallel(facts.points(), facts.work())
    chunked = walk.chunked and parallel
    if parallel:
        out.share(len(walk.others) + chunked, facts.work())
    with out.loops(walk.others):
        if chunked:
            with out.blocks(lane, _CHUNK):
                emit_lane(out, lane, "low", "high")
        elif len(parts) == 1:
            emit_lane(out, lane, "0", out.index(facts.kernel.ranges[lane]))
        else:
            for part in parts:
                with out.block(""):
                    one = out.part(part)
                    emit_lane(one, lane, "0", one.index(part.kernel.ranges[lane]))


def emit_lane(out: Emitter, lane: int, low: str, high: str) -> None:
    """A vectorised loop over ``lane``, behind what does not change along it."""
    facts = out.facts
    positions = range(len(facts.kernel.body))
    out.emit(
        p
        for p in positions
        if lane not in facts.axes[p] and not isinstance(facts.kernel.body[p], Store)
    )
    simd = "" if facts.interleaves(lane) else "#pragma omp simd"
    out.walk(out.loop_header(lane, low, high), simd, positions, lambda: out.emit(positions))


def _tiled(out: Emitter, others: list[int], cross: int, lane: int) -> None:
    """Tiles over ``cross`` x ``lane``, so that both walks stay within cached lines."""
    facts = out.facts
    out.share(len(others) + 2, facts.work() * 2)
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
                emit_lane(out, lane, f"b{lane}", f"e{lane}")


def _stage(out: Emitter, cross: int, lane: int) -> None:
    """Copy the tile of each load that runs along ``cross`` into a local array, as it lies.

    Reading the array across is cheap: it is in the first-level cache, and its odd row length
    spreads a column over all cache sets, which a large power of two would not.
    """
    along, across = out.facts.strides(lane), out.facts.strides(cross)
    for position, node in enumerate(out.kernel.body):
        if not isinstance(node, Load) or node.mask is not None or loaded(node.index):
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
