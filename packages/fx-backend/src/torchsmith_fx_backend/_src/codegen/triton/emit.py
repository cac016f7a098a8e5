"""Printing of what all schedules share: parameters, variables, masks and single nodes.

A value's *lanes* are the tile dimensions it varies along ("x" outer points, "r" reduction points,
"y" the second axis of a tile); operands of different lanes broadcast, and a load or store uses
just the masks of its own lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from torchsmith_fx_backend._src.codegen.triton import index as ix
from torchsmith_fx_backend._src.codegen.triton import scalars
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.codegen.triton.rounding import rounded_away
from torchsmith_fx_backend._src.codegen.triton.source import (
    Stage,
    Symbol,
    TritonSource,
    Workspace,
    content_hash,
)
from torchsmith_fx_backend._src.loops.index import (
    ZERO,
    Const,
    Index,
    loaded,
    product,
    substitute,
    var,
    variables,
)
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Node,
    Op,
    Position,
    Reduce,
    ScalarArg,
    Store,
    StoreMode,
)
from torchsmith_fx_backend._src.loops.meeting import COMBINED
from torchsmith_fx_backend._src.loops.verify import full_values, uses

_HEADER = """\
import triton
import triton.language as tl

from torchsmith_fx_backend._src.codegen.triton import functions as ts
"""


class Emitter:
    """Base of the printers; a subclass defines ``module``."""

    def __init__(self, kernel: Kernel, config: Config, wide: bool, origins: Sequence[str]) -> None:
        self.kernel = kernel
        self.config = config
        self.wide = wide
        self.origins = origins
        self.lines: list[str] = []
        self.indent = 1
        self.full = full_values(kernel)
        self.values: dict[int, str] = {}
        self.lanes: dict[int, frozenset[str]] = {}
        rank = len(kernel.ranges)
        split = kernel.reduce_from
        outer, inner = product(kernel.ranges[:split]), product(kernel.ranges[split:])
        self.extents = (*kernel.ranges, outer, inner)
        self.variables = {rank: "x_index", rank + 1: "r_index"}
        self.variable_lanes = {rank: frozenset("x"), rank + 1: frozenset("r")}
        self.masks: dict[str, str | None] = {}
        self.tile: tuple[tuple[str, str], ...] = ()
        self.workspaces: list[Workspace] = []
        self.pointers = [self._pointer_name(i) for i in range(len(kernel.args))]
        self.symbols = _symbol_parameters(kernel)
        self.host = dict(zip(kernel.symbols, (s.name for s in self.symbols), strict=True))
        self.device = {
            name: local if wide else f"{local}_32"
            for (name, local), symbol in zip(self.host.items(), self.symbols, strict=True)
            if symbol.kind == "i64"
        }
        self.flattened = {i: self._flattened(i) for i in ix.index_expressions(kernel)}
        self.used_axes: set[int] = set()
        for expression in self.flattened.values():
            variables(expression, self.used_axes)
        self.dtypes = [self._dtype(node) for node in kernel.body]
        self.spelled_out = self._literals_that_need_a_name()
        self.rounded = rounded_away(kernel)

    def stages(self, base: str) -> Iterator[Stage]:
        """Prints one function after the other; ``module`` collects the lines at each yield."""
        raise TypeError("a schedule's printer defines its stages")

    def module(self) -> TritonSource:
        """The whole module."""
        base = f"{self.config.schedule.value}_{content_hash(self.kernel)[:12]}"
        bodies: list[str] = []
        stages: list[Stage] = []
        for stage in self.stages(base):
            stages.append(stage)
            bodies.append(self._function(stage.function))
        comments = [f"# {line}" for origin in self.origins for line in origin.splitlines()]
        head = "\n".join((*comments, _HEADER)) if comments else _HEADER
        return TritonSource(
            text=head + "\n\n" + "\n\n".join(bodies),
            stages=tuple(stages),
            pointers=tuple(
                (name, arg.dtype) for name, arg in zip(self.pointers, self.kernel.args, strict=True)
            ),
            workspaces=tuple(self.workspaces),
            symbols=self.symbols,
            offset_bound=ix.max_offset_text(self.kernel, self.host),
            config=self.config,
            wide=self.wide,
        )

    def _outer_grid(self) -> str:
        extent = self._extent_product(0, self.kernel.reduce_from, self.host)
        return ceil_div(extent, self.config.x_block)

    def _function(self, name: str) -> str:
        parameters = [*self.pointers, *(w.name for w in self.workspaces)]
        parameters += [symbol.name for symbol in self.symbols]
        head = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
        if not self.wide:
            for local in self.device.values():
                if any(local in line for line in self.lines):
                    head.append(f"    {local} = tl.cast({local.removesuffix('_32')}, tl.int32)")
        text = "\n".join((*head, *self.lines)) + "\n"
        self.lines = []
        self.values = {}
        self.lanes = {}
        return text

    def _say(self, line: str) -> None:
        self.lines.append("    " * self.indent + line)

    def _pointer_name(self, number: int) -> str:
        arg = self.kernel.args[number]
        role = "inout" if arg.read and arg.written else "out" if arg.written else "in"
        return f"{role}{number}"

    # -- extents, variables and masks ------------------------------------------------------------

    def _extent_text(self, axis: int, symbols: dict[str, str]) -> str:
        extent = self.kernel.ranges[axis]
        if symbols is self.host:
            shown = ix.text(extent, symbols)
        else:
            shown = ix.kernel_text(extent, self.extents, {}, symbols)
        return shown if shown.isalnum() or isinstance(extent, Const) else f"({shown})"

    def _extent_product(self, begin: int, end: int, symbols: dict[str, str]) -> str:
        """Text of the product of extents ``begin .. end-1``; constants are folded."""
        constant = 1
        parts: list[str] = []
        for axis in range(begin, end):
            extent = self.kernel.ranges[axis]
            if isinstance(extent, Const):
                constant *= extent.value
            else:
                parts.append(self._extent_text(axis, symbols))
        if constant != 1 or not parts:
            parts.append(str(constant))
        return " * ".join(parts) if len(parts) == 1 else f"({' * '.join(parts)})"

    def _flat(self, flat: str, axes: Sequence[int], lane: str, prefix: str) -> None:
        """Defines the used variables of ``axes`` from their flat row-major index."""
        moving = [a for a in axes if self.kernel.ranges[a] != Const(1)]
        below = "1"
        for axis in axes:
            self.variables[axis] = "0"
            self.variable_lanes[axis] = frozenset()
        for position in range(len(moving) - 1, -1, -1):
            axis = moving[position]
            extent = self._extent_text(axis, self.device)
            value = flat if below == "1" else f"{flat} // {below}"
            if position > 0:
                value = f"{value} % {extent}"
                below = extent if below == "1" else _product_text(below, extent)
            if axis in self.used_axes:
                name = flat if value == flat else f"{prefix}{axis}"
                if name != flat:
                    self._say(f"{name} = {value}")
                self.variables[axis] = name
                self.variable_lanes[axis] = frozenset((lane,)) if lane else frozenset()

    def _flattened(self, index: Index) -> Index:
        """``index`` with the two axes past the last for ``x_index`` and ``r_index``."""
        rank, split = len(self.kernel.ranges), self.kernel.reduce_from
        if self.config.schedule in (Schedule.TILE, Schedule.SCATTER):
            return index
        index = ix.flatten(index, self.kernel.ranges, range(split), var(rank))
        return ix.flatten(index, self.kernel.ranges, range(split, rank), var(rank + 1))

    def _lanes_of_index(self, index: Index) -> frozenset[str]:
        flat = self.flattened[index]
        found = loaded(flat)
        if found:
            flat = substitute(flat, {}, positions={leaf.value: ZERO for leaf in found})
        lanes = [self.variable_lanes[axis] for axis in variables(flat)]
        return frozenset[str]().union(*lanes, *(self.lanes[leaf.value] for leaf in found))

    def _index_text(self, index: Index) -> str:
        return ix.kernel_text(
            self.flattened[index], self.extents, self.variables, self.device, self.values
        )

    def _shape(self, lanes: frozenset[str]) -> str:
        return "[" + ", ".join(b if lane in lanes else "1" for lane, b in self.tile) + "]"

    def _mask(self, lanes: frozenset[str]) -> str | None:
        parts = [self.masks[lane] for lane, _ in self.tile if lane in lanes]
        shown = [part for part in parts if part is not None]
        return " & ".join(shown) if shown else None

    def _program(self, axis: int) -> str:
        cast = ".to(tl.int64)" if self.wide else ""
        return f"tl.program_id({axis}){cast}"

    def _set_mask(self, lane: str, index: str, extent: str, block: int) -> None:
        if extent.isdigit() and int(extent) % block == 0:
            self.masks[lane] = None
            return
        self.masks[lane] = f"{lane}_mask"
        self._say(f"{lane}_mask = {index} < {extent}")

    def _outer_lane(self, x_block: int, suffix: str) -> None:
        """``x_index`` with its mask and the outer variables."""
        self._say(f"XBLOCK: tl.constexpr = {x_block}")
        self._say(f"x_index = {self._program(0)} * XBLOCK + tl.arange(0, XBLOCK){suffix}")
        extent = self._extent_product(0, self.kernel.reduce_from, self.device)
        self._set_mask("x", "x_index", extent, x_block)
        self._flat("x_index", range(self.kernel.reduce_from), "x", "x")

    def _row_lanes(self, name: str) -> None:
        """Tiles of outer points and points along the row: ``name`` counts the latter in a tile."""
        self.tile = (("x", "XBLOCK"), ("r", "RBLOCK"))
        self._outer_lane(self.config.x_block, "[:, None]")
        self._say(f"RBLOCK: tl.constexpr = {self.config.r_block}")
        wide = ".to(tl.int64)" if self.wide else ""
        self._say(f"{name} = tl.arange(0, RBLOCK)[None, :]{wide}")

    def _row_extent(self) -> str:
        return self._extent_product(self.kernel.reduce_from, len(self.kernel.ranges), self.device)

    # -- single nodes ---------------------------------------------------------------------------

    def _dtype(self, node: Node) -> torch.dtype:
        return self.kernel.args[node.arg].dtype if isinstance(node, Store) else node.dtype

    def _literals_that_need_a_name(self) -> frozenset[int]:
        """Literals used anywhere but as one operand of an infix operation; and -0.0."""
        body = self.kernel.body
        named: set[int] = set()
        for node in body:
            inline = isinstance(node, Compute) and node.op in scalars.INLINE
            literal = [(o, each) for o in uses(node) if isinstance(each := body[o], Literal)]
            every = not inline or len(literal) > 1
            named.update(o for o, each in literal if every or scalars.is_negative_zero(each.value))
        return frozenset(named)

    def _value(self, number: int) -> str:
        return self.values[number]

    def _define(self, number: int, text: str, lanes: frozenset[str]) -> None:
        name = f"v{number}"
        self._say(f"{name} = {text}")
        self.values[number] = name
        self.lanes[number] = lanes

    def _emit(self, number: int, again: bool = False) -> None:
        node = self.kernel.body[number]
        match node:
            case Literal(value):
                if number in self.spelled_out:
                    self._define(number, scalars.typed_constant(value, node.dtype), frozenset())
                    return
                self.values[number] = scalars.literal_text(value)
                self.lanes[number] = frozenset()
            case IndexValue(index):
                lanes = self._lanes_of_index(index)
                shown = self._index_text(index)
                if lanes:
                    text = f"({shown}).to(tl.int64)"
                else:
                    text = f"tl.full([], 0, tl.int64) + {shown}"
                self._define(number, text, lanes)
            case ScalarArg(name, dtype):
                local = self.host[name]
                if dtype is torch.bool:
                    text = f"{local} != 0"
                else:
                    text = f"tl.cast({local}, {scalars.TYPES[dtype]})"
                self._define(number, text, frozenset())
            case Load():
                self._emit_load(number, node, again)
            case Position():
                self._emit_position(number, node)
            case Compute(op, args, dtype):
                lanes = frozenset[str]().union(*(self.lanes[arg] for arg in args))
                source = self.dtypes[args[1 if op is Op.WHERE else 0]]
                texts = [self._value(arg) for arg in args]
                exact = number not in self.rounded
                self._define(number, scalars.compute_text(op, texts, source, dtype, exact), lanes)
            case Store():
                self._emit_store(number, node)
            case Reduce():
                raise TypeError("reductions are emitted by their schedule")

    def _emit_position(self, number: int, node: Position) -> None:
        """Lanes outside of the tile, or where the mask is false, hold anything: they become 0."""
        value, lanes = self._value(node.value), self.lanes[node.value]
        keep = [] if node.mask is None else [self._value(node.mask)]
        if node.mask is not None:
            lanes = lanes | self.lanes[node.mask]
        mask = self._mask(lanes)
        keep += [mask] if mask else []
        size = ix.kernel_text(node.extent, self.extents, {}, self.device)
        if node.wrap:
            value = f"tl.where({value} < 0, {value} + ({size}), {value})"
        if node.fault is None:
            value = f"tl.minimum(tl.maximum({value}, 0), ({size}) - 1)"
        if keep:
            value = f"tl.where({' & '.join(keep)}, {value}, 0)"
        if node.fault is not None:
            if not value.isidentifier():
                self._say(f"given{number} = {value}")
                value = f"given{number}"
            inside = f"({value} >= 0) & ({value} < {size})"
            message = node.fault.message.format(index="of a tensor", size=size)
            self._say(f"tl.device_assert({inside}, {message!r})")
            value = f"tl.where({inside}, {value}, 0)"
        self._define(number, value, lanes)

    def _emit_load(self, number: int, node: Load, again: bool) -> None:
        lanes = self._lanes_of_index(node.index)
        address = self._address(node.arg, node.index)
        options = ""
        if node.mask is None:
            mask = self._mask(lanes)
            options = f", {mask}" if mask else ""
        else:
            whole = lanes | self.lanes[node.mask]
            if whole != lanes:
                address = f"tl.broadcast_to({address}, {self._shape(whole)})"
            lanes = whole
            parts = [self._value(node.mask), *([self._mask(lanes)] if self._mask(lanes) else [])]
            zero = "0.0" if node.dtype.is_floating_point else "0"
            options = f", {' & '.join(str(part) for part in parts)}, other={zero}"
        if again and lanes:
            options += ', eviction_policy="evict_last"'
        self._define(number, f"tl.load({address}{options})", lanes)

    def _emit_store(self, number: int, node: Store) -> None:
        pointwise = "r" not in dict(self.tile)
        whole = frozenset(lane for lane, _ in self.tile if lane != "s")
        level = whole if pointwise or self.full[number] else frozenset("x")
        address = self._address(node.arg, node.index)
        if self._lanes_of_index(node.index) != level:
            address = f"tl.broadcast_to({address}, {self._shape(level)})"
        mask = self._mask(level)
        masked = f", {mask}" if mask else ""
        value = self._value(node.value)
        if self.lanes[node.value] == frozenset():
            value = f"tl.broadcast_to({value}, {self._shape(level)})"
        if node.mode is StoreMode.SUM:
            self._say(f"tl.atomic_add({address}, {value}{masked}, sem='relaxed')")
            return
        if node.mode in COMBINED:
            value = self._combined(node, f"tl.load({address}{masked})", value)
        self._say(f"tl.store({address}, {value}{masked})")

    def _combined(self, node: Store, old: str, new: str) -> str:
        """What is there and what comes, in the buffer's dtype."""
        dtype = self.kernel.args[node.arg].dtype
        op = COMBINED[node.mode][dtype is torch.bool]
        wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
        texts = [scalars.cast_text(text, dtype, wide) for text in (old, new)]
        text = scalars.compute_text(op, texts, wide, wide)
        return text if wide is dtype else scalars.cast_text(f"({text})", wide, dtype)

    def _address(self, arg: int, index: Index) -> str:
        shown = self._index_text(index)
        if shown == "0":
            return self.pointers[arg]
        simple = shown.replace("_", "").isalnum()
        return f"{self.pointers[arg]} + {shown}" if simple else f"{self.pointers[arg]} + ({shown})"


def _symbol_parameters(kernel: Kernel) -> tuple[Symbol, ...]:
    """Scalar parameters with names that cannot collide with the printer's own."""
    floating = kernel.floating
    return tuple(
        Symbol(
            f"n_{''.join(c if c.isalnum() else '_' for c in name)}",
            "fp64" if name in floating else "i64",
        )
        for name in kernel.symbols
    )


def ceil_div(extent: str, block: int) -> str:
    """Text of ``extent / block`` rounded up; a number when ``extent`` is one."""
    if extent.isdigit():
        return str(-(-int(extent) // block))
    return extent if block == 1 else f"({extent} + {block - 1}) // {block}"


def _product_text(left: str, right: str) -> str:
    if left.isdigit() and right.isdigit():
        return str(int(left) * int(right))
    return f"({left} * {right})"
