"""Writing C: indented lines, SSA nodes as statements, and loops with their OpenMP pragmas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain

import torch

from torchsmith_fx_backend._src.codegen.c import scalars
from torchsmith_fx_backend._src.codegen.c.accumulate import scan
from torchsmith_fx_backend._src.codegen.c.analysis import PARALLEL_WORK, Facts, static
from torchsmith_fx_backend._src.loops.index import (
    ZERO,
    Const,
    Index,
    add,
    mul,
    product,
    render,
    var,
)
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Literal,
    Load,
    Position,
    Reduce,
    ScalarArg,
    Scan,
    Store,
)
from torchsmith_fx_backend._src.loops.meeting import COMBINED
from torchsmith_fx_backend._src.loops.proof import settled

_CHEAP = 24  # adds that are done twice to learn of what functions are given


class Emitter:
    """The text of one kernel in the making.

    Attributes:
        facts: the kernel's facts.
        faults: what the whole kernel may raise; a position names its own by number.
        names: C text of the SSA values that are in scope, by position.
        staged: C text of the local copies that loads read instead of memory, by position.
        near: operations are printed in their cheaper forms.
        scan_flat, scan_place: C text of the place in a row; what is behind an accumulator's name.
    """

    def __init__(self, facts: Facts) -> None:
        """Start with an empty function body."""
        self.facts = facts
        self.kernel = facts.kernel
        self.faults = facts.kernel.faults
        self.names: dict[int, str] = {}
        self.staged: dict[int, str] = {}
        self.scan_flat, self.scan_place = "0", ""
        self.near = False
        self._lines: list[str] = []
        self._indent = 1
        self._scopes: list[dict[int, str]] = []

    def text(self) -> str:
        """Everything written so far."""
        return "\n".join(self._lines)

    def part(self, facts: Facts) -> Emitter:
        """An emitter for a piece of the kernel, which goes on writing where this one stands."""
        inner = Emitter(facts)
        inner._lines, inner._indent = self._lines, self._indent
        inner.faults = self.faults
        return inner

    def line(self, text: str) -> None:
        """Write one line at the current indentation (pragmas at the same)."""
        self._lines.append("  " * self._indent + text if text else "")

    def open(self, header: str) -> None:
        """``header {``; ``close`` ends the block and the scope of the values named in it."""
        self._scopes.append(dict(self.names))
        self.line(header + " {" if header else "{")
        self._indent += 1

    def close(self) -> None:
        """``}``"""
        self._indent -= 1
        self.line("}")
        self.names = self._scopes.pop()

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        """``header { ... }``; values named inside go out of scope with it."""
        self.open(header)
        yield
        self.close()

    @contextmanager
    def loops(self, axes: Sequence[int]) -> Iterator[None]:
        """A perfect nest of plain loops over ``axes``, outermost first."""
        for axis in axes:
            self.open(self.loop_header(axis))
        yield
        for _ in axes:
            self.close()

    def loop_header(self, axis: int, low: str = "0", high: str | None = None) -> str:
        """``for (...)`` over ``axis``."""
        end = self.index(self.kernel.ranges[axis]) if high is None else high
        return f"for (int64_t i{axis} = {low}; i{axis} < {end}; i{axis}++)"

    @contextmanager
    def blocks(self, axis: int, size: int) -> Iterator[None]:
        """A loop over parts of ``axis`` of ``size`` points, each from ``low`` to ``high``."""
        end = self.index(self.kernel.ranges[axis])
        with self.block(f"for (int64_t low = 0; low < {end}; low += {size})"):
            self.line(f"const int64_t high = {end} - low < {size} ? {end} : low + {size};")
            yield

    def index(self, index: Index) -> str:
        """``index`` as C text over the loop variables."""
        return render(
            settled(index, self.kernel.ranges),
            sym_name=scalars.symbol_name,
            div="/",
            floored=("ts_floordiv", "ts_rem", "ts_size_floordiv", "ts_size_rem"),
            value_name=self.value,
        )

    def simd(self, axis: int, unrolled: bool = False) -> None:
        """Ask for vectors along ``axis`` in the loop that follows, where they can gain."""
        if not self.facts.interleaves(axis, unrolled):
            self.line("#pragma omp simd")

    def walk(
        self, header: str, pragma: str, whole: Sequence[int], body: Callable[[], None]
    ) -> None:
        """The innermost loop around ``body``, which evaluates ``whole``: with cheaper forms of
        functions where no operand of theirs is far, which is asked of all points beforehand."""
        near = self.nears(whole) if pragma else {}
        far = f"far{len(self._lines)}"
        forms: tuple[tuple[bool, str], ...] = ((False, ""),)
        if near:
            forms = (True, f"if (!{far})"), (False, "else")
            self.line(f"int {far} = 0;")
            self.line(f"#pragma omp simd reduction(|:{far})")
            with self.block(header):
                for p, (_, test) in near.items():
                    read = self.facts.operands(p)
                    self.emit(self.facts.closure(read, self.names))
                    self.line(f"{far} |= {test}({', '.join(map(self.value, read))});")
        for self.near, condition in forms:
            with self.block(condition) if near else nullcontext():
                if pragma:
                    self.line(pragma)
                with self.block(header):
                    body()

    def nears(self, positions: Iterable[int]) -> dict[int, tuple[str, str]]:
        """Operations that have a cheaper form, and its names; none if their operands are dear."""
        body, forms = self.kernel.body, scalars.NEAR
        kinds = {p: (n.op, n.dtype) for p in positions if isinstance(n := body[p], Compute)}
        near = {p: forms[kind] for p, kind in kinds.items() if kind in forms}
        read = self.facts.closure(chain(*map(self.facts.operands, near)), self.names)
        return near if sum(map(self.facts.cost, read)) < _CHEAP else {}

    def parallel(self, what: str, points: Index, work: int) -> bool:
        """Write ``#pragma omp parallel {what}`` if that much work is worth a parallel region.

        For sizes known only at launch the pragma decides then.
        """
        known = static(points)
        if known is not None:
            if known * work < PARALLEL_WORK:
                return False
            self.line(f"#pragma omp parallel {what}".rstrip())
            return True
        least = max(1, PARALLEL_WORK // max(work, 1))
        clause = f"if ({self.index(points)} >= {least})"
        self.line(
            f"#pragma omp parallel {what} {clause}" if what else f"#pragma omp parallel {clause}"
        )
        return True

    def share(self, depth: int, work: int) -> None:
        """Share the ``depth`` loops that follow among threads, if ``work`` a point is worth it."""
        self.parallel(shared(depth), self.facts.points(), work)

    def is_parallel(self, points: Index, work: int) -> bool:
        """Whether ``parallel`` would write its pragma."""
        known = static(points)
        return known is None or known * work >= PARALLEL_WORK

    # ------------------------------------------------------------------------------ SSA nodes

    def value(self, position: int) -> str:
        """C text for SSA value ``position``: a name in scope, or a constant."""
        node = self.kernel.body[position]
        if isinstance(node, Literal):
            return scalars.literal(node.value, node.dtype)
        return self.names[position]

    def emit(self, positions: Iterable[int]) -> None:
        """Statements for those nodes that have none in scope yet; stores come last."""
        stores = []
        for position in positions:
            node = self.kernel.body[position]
            if isinstance(node, Store):
                stores.append(node)
            elif not isinstance(node, (Literal, Reduce)) and position not in self.names:
                self.define(position, self._expression(position))
        for node in stores:
            self.store(node, self.index(node.index), self.value(node.value))

    def store(self, node: Store, place: str, value: str) -> None:
        """The statement that writes ``value`` at offset ``place``, as the store's mode says."""
        cell = f"a{node.arg}[{place}]"
        dtype = self.kernel.args[node.arg].dtype
        if node.mode in COMBINED:
            op = COMBINED[node.mode][dtype is torch.bool]
            value = scalars.combined(op, [cell, value], dtype)
        self.line(f"{cell} = {value};")

    def define(self, position: int, text: str) -> None:
        """``const T t<position> = text;``"""
        name = f"t{position}"
        ctype = scalars.value_type(scalars.dtype_of(self.kernel, position))
        self.line(f"const {ctype} {name} = {text};")
        self.names[position] = name

    def _expression(self, position: int) -> str:
        node = self.kernel.body[position]
        match node:
            case Load(dtype=dtype) if position in self.staged:
                return scalars.from_cell(self.staged[position], dtype)
            case Load(arg, index, dtype, None):
                return scalars.from_cell(f"a{arg}[{self.index(index)}]", dtype)
            case Load(arg, index, dtype, int(mask)):
                cell = scalars.from_cell(f"a{arg}[{self.index(index)}]", dtype)
                return f"{self.value(mask)} ? {cell} : {scalars.literal(0, dtype)}"
            case IndexValue(index):
                return self.index(index)
            case Position():
                return self._position(node)
            case ScalarArg(name, dtype):
                return f"({scalars.value_type(dtype)}){scalars.symbol_name(name)}"
            case Scan():
                found = scan(self.kernel, position)
                for line in found.step(self.value(node.value), self.scan_flat, self.scan_place):
                    self.line(line)
                return found.result(self.scan_place)
            case Compute(op, args, dtype) if self.near and (op, dtype) in scalars.NEAR:
                return f"{scalars.NEAR[op, dtype][0]}({', '.join(map(self.value, args))})"
            case Compute(_, args):
                return scalars.compute(node, [self.value(a) for a in args], self.kernel)
            case _:
                raise TypeError(f"{node!r} is not a scalar expression")

    def _position(self, node: Position) -> str:
        value, size = self.value(node.value), self.index(node.extent)
        given = f"({value} < 0 ? {value} + {size} : {value})" if node.wrap else value
        mask = "1" if node.mask is None else self.value(node.mask)
        # gcc 12 reads elsewhere in vectors when it sees that an address is 0 or 1 by a comparison.
        hidden = f" | {scalars.UNKNOWN_ZERO}"
        if node.fault is None:
            return f"ts_nearest({given}, {size}, {mask}){hidden}"
        number = self.faults.index(node.fault) + 1
        return f"ts_position({given}, {size}, {mask}, {value}, {number}, faults){hidden}"


def shared(depth: int) -> str:
    """The pragma's text that shares ``depth`` nested loops among threads."""
    return "for schedule(static)" + (f" collapse({depth})" if depth > 1 else "")


def flat_position(facts: Facts) -> Index:
    """The row-major position within the reduction axes, as an index expression."""
    total: Index = ZERO
    for axis in facts.reduce_axes:
        total = add(mul(total, facts.kernel.ranges[axis]), var(axis))
    return total


def reduce_points(facts: Facts) -> Index:
    """Number of points of one reduction."""
    return product([facts.kernel.ranges[axis] for axis in facts.reduce_axes])


def outer_points(facts: Facts) -> Index:
    """Number of reductions, or of points of a kernel that has none."""
    sizes = [facts.kernel.ranges[axis] for axis in facts.outer_axes]
    return product(sizes) if sizes else Const(1)
