"""Picks the schedule of a kernel and prints it as one C function."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.analysis import Facts, analyse, static
from torchsmith_fx_backend._src.codegen.c.emit import Emitter, reduce_points
from torchsmith_fx_backend._src.codegen.c.inner import emit_inner
from torchsmith_fx_backend._src.codegen.c.outer import emit_outer
from torchsmith_fx_backend._src.codegen.c.passes import DEAR, plan_passes
from torchsmith_fx_backend._src.codegen.c.pointwise import emit_pointwise
from torchsmith_fx_backend._src.codegen.c.scan import emit_scan
from torchsmith_fx_backend._src.codegen.c.scatter import emit_scatter
from torchsmith_fx_backend._src.loops.index import ONE
from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Load, Op, Reduce, ReduceOp, Store
from torchsmith_fx_backend._src.loops.meeting import meeting_stores

_PICKS = (Op.MINIMUM, Op.MAXIMUM, Op.WHERE)  # a comparison and a selection each
_PLAIN = (ReduceOp.MAX, ReduceOp.MIN, ReduceOp.SUM)
_LONG_ROW = 400  # elements that are worth joining twice as many lanes


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the C function: a data pointer, a size, or a floating-point scalar."""

    kind: str  # "pointer", "integer" or "floating"
    declaration: str
    name: str


def parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """The C parameters in launch order: pointers, then symbols."""
    result = []
    for number, buffer in enumerate(kernel.args):
        const = "" if buffer.written else "const "
        cell = scalars.cell_type(buffer.dtype)
        result.append(Parameter("pointer", f"{const}{cell} *a{number}", f"a{number}"))
    floating = kernel.floating
    for name in kernel.symbols:
        kind, ctype = ("floating", "double") if name in floating else ("integer", "int64_t")
        name = scalars.symbol_name(name)
        result.append(Parameter(kind, f"{ctype} {name}", name))
    return tuple(result)


def kernel_function(kernel: Kernel, name: str, origins: tuple[str, ...] = ()) -> str:
    """``kernel`` as the definition of the C function ``name``.

    Args:
        kernel: a legal kernel; one in canonical form (``loops.canonical``) gives the best loops.
        name: the C identifier.
        origins: source lines of the user, or op names, for the comment above the function.
    """
    declared = [p.declaration for p in parameters(kernel)]
    if kernel.faults:
        declared.append("int64_t *faults")
    out = Emitter(analyse(kernel))
    _emit(out)
    comment = "".join(f"/* {origin.replace('*/', '* /')} */\n" for origin in origins)
    text = out.text()
    if scalars.UNKNOWN_ZERO in text:
        zero = scalars.UNKNOWN_ZERO
        text = f'  int32_t {zero} = 0;\n  __asm__("" : "+r"({zero}));\n{text}'
    wide = "TS_WIDE " if _computes(out.facts) else ""
    return f"{comment}{wide}void {name}({', '.join(declared)}) {{\n{text}\n}}\n"


def _computes(facts: Facts) -> bool:
    """Whether arithmetic takes the time, not memory, nor joining the lanes of a reduction."""
    kernel = facts.kernel
    done = {p: n.op for p, n in enumerate(kernel.body) if isinstance(n, Compute)}
    dear = any(facts.cost(p) >= DEAR for p in done)
    if kernel.reduce_from < len(kernel.ranges):
        stored = any(isinstance(n, Store) and full for n, full in zip(kernel.body, facts.full))
        plain = all(n.op in _PLAIN for n in kernel.body if isinstance(n, Reduce)) and not stored
        long = (static(reduce_points(facts)) or 0) >= _LONG_ROW
        return (dear or plain) and long and not kernel.scans and _outer_lane(facts) is None
    half = any(buffer.dtype in scalars.HALF for buffer in kernel.args)
    picks = 0 if Op.DIV in done.values() else sum(op in _PICKS for op in done.values())
    return dear or half or picks > 1


def _emit(out: Emitter) -> None:
    facts = out.facts
    kernel = facts.kernel
    if meeting_stores(kernel):
        emit_scatter(out)
        return
    if kernel.reduce_from == len(kernel.ranges):
        emit_pointwise(out)
        return
    lane = _outer_lane(facts)
    if kernel.scans:
        emit_scan(out, lane)
    elif lane is None:
        emit_inner(out)
    else:
        emit_outer(out, lane)


def _outer_lane(facts: Facts) -> int | None:
    """The outer axis to vectorise, when that reads memory better than the reduction axes do."""
    kernel = facts.kernel
    if not facts.outer_axes:
        return None
    accesses = [
        p for p, node in enumerate(kernel.body) if isinstance(node, (Load, Store)) and facts.full[p]
    ]
    reduce_lane = facts.best_lane(list(facts.reduce_axes), accesses)
    outer_lane = facts.best_lane(list(facts.outer_axes), accesses)
    length = static(reduce_points(facts))
    needed = [one.needed for one in plan_passes(facts, buffers=False)]
    uses = {p: sum(p in n for n in needed) for p in accesses}
    along = _contiguous(facts, uses, reduce_lane)
    across = _contiguous(facts, uses, outer_lane)
    if _holds(kernel, outer_lane, 8):
        if across > along:
            return outer_lane
        # What is the same for all lanes is read once; along the other axis it would be gathered.
        if across == along and not _keeps_dear_values(facts):
            cost = {
                axis: sum(facts.access_cost(p, axis) for p in accesses)
                for axis in (outer_lane, reduce_lane)
            }
            if 2 * cost[outer_lane] < cost[reduce_lane]:
                return outer_lane
    # Short rows leave most of a vector empty; many of them fill it across.
    if length is None or length >= 16:
        return None
    if _holds(kernel, outer_lane, 32):
        return outer_lane
    many = [a for a in facts.outer_axes if _holds(kernel, a, 32) and not facts.interleaves(a)]
    return facts.best_lane(many, accesses) if many and length % 8 else None


def _holds(kernel: Kernel, axis: int, count: int) -> bool:
    """Whether an axis has that many points, as far as is known."""
    size = static(kernel.ranges[axis])
    return size is None or size >= count


def _keeps_dear_values(facts: Facts) -> bool:
    """Whether a walk along rows saves much arithmetic by keeping values from pass to pass."""
    body = facts.kernel.body
    kept = [p for one in plan_passes(facts, buffers=True) for p in one.kept]
    return any(
        sum(facts.cost(q) for q in facts.closure([p]) if isinstance(body[q], Compute)) >= DEAR
        for p in kept
    )


def _contiguous(facts: Facts, uses: dict[int, int], axis: int) -> int:
    """Bytes per point that are read or written with step one along ``axis``, in all passes.

    Args:
        facts: the kernel's facts.
        uses: accesses, and how many passes make each.
        axis: the axis.
    """
    steps = facts.strides(axis)
    total = 0
    for p, passes in uses.items():
        node = facts.kernel.body[p]
        if isinstance(node, (Load, Store)) and steps[p] == ONE:
            total += facts.kernel.args[node.arg].dtype.itemsize * passes
    return total
