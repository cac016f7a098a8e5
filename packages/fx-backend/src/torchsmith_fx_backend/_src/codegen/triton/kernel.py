"""Prints one loop IR kernel as a module of Triton source.

The text is complete: importing it needs only triton and ``functions.py``. Static extents, strides and
tile sizes are literals, so that Triton's compiler sees divisibility without any specialisation;
size symbols are 64-bit integer arguments. Addresses are 32-bit where the launcher has shown that
every offset fits, else 64-bit: the same kernel, printed twice.

A value's *lanes* are the tile dimensions it varies along ("x" outer points, "r" reduction points,
"y" the second axis of a tile); operands of different lanes broadcast, and a load or store uses
just the masks of its own lanes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from torchsmith_fx_backend._src.codegen.triton import index as ix
from torchsmith_fx_backend._src.codegen.triton import scalars
from torchsmith_fx_backend._src.codegen.triton.config import (
    ARG_REDUCTIONS,
    Config,
    Schedule,
    next_power_of_2,
)
from torchsmith_fx_backend._src.codegen.triton.passes import Passes, plan_passes
from torchsmith_fx_backend._src.loops.index import Const, Index, variables
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Node,
    Op,
    Reduce,
    ReduceOp,
    ScalarArg,
    Store,
)
from torchsmith_fx_backend._src.loops.verify import full_values, uses

FAR = "9223372036854775807"  # position of a lane that has seen no value yet

_HEADER = """\
import triton
import triton.language as tl

from torchsmith_fx_backend._src.codegen.triton import functions as ts
"""


@dataclass(frozen=True, slots=True)
class Stage:
    """One ``@triton.jit`` function of the module and the grid to launch it on.

    ``grid`` holds two Python expressions over the parameter names of the symbols.
    """

    function: str
    grid: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Workspace:
    """A temporary of ``length`` (Python expression over symbols) elements, allocated per launch."""

    name: str
    dtype: torch.dtype
    length: str


@dataclass(frozen=True, slots=True)
class Symbol:
    """A scalar parameter: ``name`` in the text, ``kind`` its Triton type (i64 or fp64)."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class TritonSource:
    """A printed kernel and what a launcher needs to know about it.

    Attributes:
        text: the module's source.
        stages: functions in launch order; all take the same parameters.
        pointers: (name, dtype) of the kernel's buffers, in launch order.
        workspaces: temporaries, after the pointers.
        symbols: scalar parameters, last, in the order of ``kernel.symbols``.
        offset_bound: Python expression over the symbols that bounds every offset.
        config: the configuration that was printed.
        wide: whether addresses are 64-bit.
    """

    text: str
    stages: tuple[Stage, ...]
    pointers: tuple[tuple[str, torch.dtype], ...]
    workspaces: tuple[Workspace, ...]
    symbols: tuple[Symbol, ...]
    offset_bound: str
    config: Config
    wide: bool


def content_hash(kernel: Kernel) -> str:
    """Hexadecimal digest of the loop IR; equal kernels of different graphs share it."""
    return hashlib.sha256(repr(kernel).encode()).hexdigest()


def generate(
    kernel: Kernel, config: Config, *, wide: bool = False, origins: Sequence[str] = ()
) -> TritonSource:
    """Prints ``kernel`` under ``config``.

    Args:
        kernel: the loop nest.
        config: schedule and tile sizes, see ``config.choose``.
        wide: compute addresses in 64 bits.
        origins: user source lines, printed as comments.

    Returns:
        The module text with its launch description.
    """
    return _Printer(kernel, config, wide, origins).module()


class _Printer:
    def __init__(
        self, kernel: Kernel, config: Config, wide: bool, origins: Sequence[str]
    ) -> None:
        self.kernel = kernel
        self.config = config
        self.wide = wide
        self.origins = origins
        self.lines: list[str] = []
        self.indent = 1
        self.full = full_values(kernel)
        self.values: dict[int, str] = {}
        self.lanes: dict[int, frozenset[str]] = {}
        self.variables: dict[int, str] = {}
        self.variable_lanes: dict[int, frozenset[str]] = {}
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
        self.used_axes: set[int] = set()
        for expression in ix.index_expressions(kernel):
            variables(expression, self.used_axes)
        self.dtypes = [self._dtype(node) for node in kernel.body]
        self.spelled_out = self._literals_that_need_a_name()

    # -- module ---------------------------------------------------------------------------------

    def module(self) -> TritonSource:
        digest = content_hash(self.kernel)
        base = f"{self.config.schedule.value}_{digest[:12]}"
        outer = self._extent_product(0, self.kernel.reduce_from, self.host)
        grid_x = _ceil_div(outer, self.config.x_block)
        bodies: list[str] = []
        stages: list[Stage] = []
        match self.config.schedule:
            case Schedule.POINTWISE:
                self._pointwise()
                stages.append(Stage(base, (grid_x, "1")))
                bodies.append(self._function(base))
            case Schedule.TILE:
                stages.append(Stage(base, (self._tile(), "1")))
                bodies.append(self._function(base))
            case Schedule.PERSISTENT:
                self._persistent()
                stages.append(Stage(base, (grid_x, "1")))
                bodies.append(self._function(base))
            case Schedule.LOOPED:
                self._looped()
                stages.append(Stage(base, (grid_x, "1")))
                bodies.append(self._function(base))
            case Schedule.SPLIT:
                self._declare_partials()
                self._split_partial()
                stages.append(Stage(f"{base}_partial", (grid_x, str(self.config.splits))))
                bodies.append(self._function(f"{base}_partial"))
                x_block = self._split_combine(outer)
                stages.append(Stage(f"{base}_combine", (_ceil_div(outer, x_block), "1")))
                bodies.append(self._function(f"{base}_combine"))
        comments = [f"# {line}" for origin in self.origins for line in origin.splitlines()]
        head = "\n".join((*comments, _HEADER)) if comments else _HEADER
        return TritonSource(
            text=head + "\n\n" + "\n\n".join(bodies),
            stages=tuple(stages),
            pointers=tuple(
                (name, arg.dtype)
                for name, arg in zip(self.pointers, self.kernel.args, strict=True)
            ),
            workspaces=tuple(self.workspaces),
            symbols=self.symbols,
            offset_bound=ix.max_offset_text(self.kernel, self.host),
            config=self.config,
            wide=self.wide,
        )

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
        shown = ix.text(extent, {}, symbols)
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

    def _lanes_of_index(self, index: Index) -> frozenset[str]:
        return frozenset[str]().union(
            *(self.variable_lanes[axis] for axis in variables(index))
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
        self._say(
            f"x_index = {self._program(0)} * XBLOCK + tl.arange(0, XBLOCK){suffix}"
        )
        extent = self._extent_product(0, self.kernel.reduce_from, self.device)
        self._set_mask("x", "x_index", extent, x_block)
        self._flat("x_index", range(self.kernel.reduce_from), "x", "x")

    def _reduction_lane(self, whole: bool) -> None:
        """``r_index`` with its mask and the reduction variables, at the current indentation."""
        axes = range(self.kernel.reduce_from, len(self.kernel.ranges))
        extent = self._extent_product(axes.start, axes.stop, self.device)
        if not whole:
            self._say("r_index = r_start + r_lane")
        self._set_mask("r", "r_index", extent, self.config.r_block)
        self._flat("r_index", axes, "r", "r")

    # -- schedules ------------------------------------------------------------------------------

    def _pointwise(self) -> None:
        self.tile = (("x", "XBLOCK"),)
        self._outer_lane(self.config.x_block, "")
        for number in range(len(self.kernel.body)):
            self._emit(number)

    def _tile(self) -> str:
        kernel, config = self.kernel, self.config
        last = len(kernel.ranges) - 1
        self.tile = (("y", "YBLOCK"), ("x", "XBLOCK"))
        self._say(f"YBLOCK: tl.constexpr = {config.y_block}")
        self._say(f"XBLOCK: tl.constexpr = {config.x_block}")
        extent_x = self._extent_text(last, self.device)
        extent_y = self._extent_text(config.y_axis, self.device)
        self._say(f"x_blocks = {_ceil_div(extent_x, config.x_block)}")
        self._say(f"y_blocks = {_ceil_div(extent_y, config.y_block)}")
        self._say(f"program = {self._program(0)}")
        self._say("x_index = program % x_blocks * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
        self._say(
            "y_index = program // x_blocks % y_blocks * YBLOCK + tl.arange(0, YBLOCK)[:, None]"
        )
        self._set_mask("x", "x_index", extent_x, config.x_block)
        self._set_mask("y", "y_index", extent_y, config.y_block)
        rest = [axis for axis in range(last) if axis != config.y_axis]
        if any(axis in self.used_axes for axis in rest):
            self._say("rest = program // (x_blocks * y_blocks)")
        self._flat("rest", rest, "", "z")
        for axis, name in ((last, "x"), (config.y_axis, "y")):
            self.variables[axis] = f"{name}_index"
            self.variable_lanes[axis] = frozenset((name,))
        for number in range(len(kernel.body)):
            self._emit(number)
        counts = [
            _ceil_div(self._extent_text(last, self.host), config.x_block),
            _ceil_div(self._extent_text(config.y_axis, self.host), config.y_block),
            *(self._extent_text(axis, self.host) for axis in rest),
        ]
        return " * ".join(f"({count})" for count in counts)

    def _persistent(self) -> None:
        self.tile = (("x", "XBLOCK"), ("r", "RBLOCK"))
        self._outer_lane(self.config.x_block, "[:, None]")
        self._say(f"RBLOCK: tl.constexpr = {self.config.r_block}")
        wide = ".to(tl.int64)" if self.wide else ""
        self._say(f"r_index = tl.arange(0, RBLOCK)[None, :]{wide}")
        self._reduction_lane(whole=True)
        for number, node in enumerate(self.kernel.body):
            if isinstance(node, Reduce):
                value, position = self._reduce_operands(node)
                self._finish(number, node, value, position)
            else:
                self._emit(number)

    def _looped(self) -> None:
        passes = plan_passes(self.kernel, online=True)
        self._begin_loops()
        self._outer_nodes(passes, 0)
        for level in range(1, passes.count + 1):
            extent = self._extent_product(
                self.kernel.reduce_from, len(self.kernel.ranges), self.device
            )
            self._pass(passes, level, "0", extent)
            for number, node in passes.reductions(level):
                if number in passes.online:
                    best, _ = passes.online[number]
                    self._define(
                        number,
                        f"ts.online_sum(acc{best}, acc{number}, {self._value(best)})",
                        frozenset("x"),
                    )
                else:
                    self._finish_accumulator(number, node)
            self._outer_nodes(passes, level)

    def _begin_loops(self) -> None:
        self.tile = (("x", "XBLOCK"), ("r", "RBLOCK"))
        self._outer_lane(self.config.x_block, "[:, None]")
        self._say(f"RBLOCK: tl.constexpr = {self.config.r_block}")
        wide = ".to(tl.int64)" if self.wide else ""
        self._say(f"r_lane = tl.arange(0, RBLOCK)[None, :]{wide}")

    def _pass(self, passes: Passes, level: int, begin: str, end: str) -> None:
        """One loop over the reduction axis: full values, accumulations and stores of ``level``."""
        reductions = passes.reductions(level)
        for number, node in reductions:
            self._start_accumulator(number, node)
        self._say(f"for r_start in range({begin}, {end}, RBLOCK):")
        self.indent += 1
        outside = dict(self.values), dict(self.lanes)
        self._reduction_lane(whole=False)
        for number in passes.full_nodes(level):
            self._emit(number, again=passes.loads_again(number, level))
        keep = self.masks["r"]
        for number, node in reductions:
            if number in passes.online:
                best, source = passes.online[number]
                value = self._broadcast(source)
                mask = "r_mask" if keep else "r_index >= 0"
                self._say(
                    f"acc{best}, acc{number} = "
                    f"ts.online_update(acc{best}, acc{number}, {value}, {mask})"
                )
                continue
            if number in passes.online_maxima:
                continue
            self._accumulate(number, node)
        # The loop's values are recomputed by later passes; only the accumulators outlive it.
        self.values, self.lanes = outside
        self.indent -= 1

    def _outer_nodes(self, passes: Passes, level: int) -> None:
        for number in passes.outer_nodes(level):
            self._emit(number)

    def _declare_partials(self) -> None:
        outer = self._extent_product(0, self.kernel.reduce_from, self.host)
        length = f"{self.config.splits} * {outer}"
        for number, node in enumerate(self.kernel.body):
            if isinstance(node, Reduce):
                self.workspaces.append(Workspace(f"partial{number}", node_operand_dtype(
                    self.dtypes, node), length))
                if node.op in ARG_REDUCTIONS:
                    self.workspaces.append(Workspace(f"where{number}", torch.int64, length))

    def _split_partial(self) -> None:
        passes = plan_passes(self.kernel, online=False)
        self._begin_loops()
        extent = self._extent_product(
            self.kernel.reduce_from, len(self.kernel.ranges), self.device
        )
        outer = self._extent_product(0, self.kernel.reduce_from, self.device)
        step = self.config.splits * self.config.r_block
        self._say(f"part = {self._program(1)}")
        self._say(f"length = ({extent} + {step - 1}) // {step} * RBLOCK")
        self._say("begin = part * length")
        self._say(f"end = tl.minimum(begin + length, {extent})")
        for number in passes.outer_nodes(0):
            if not isinstance(self.kernel.body[number], Store):
                self._emit(number)
        self._pass(passes, 1, "begin", "end")
        mask = self._mask(frozenset("x"))
        masked = f", {mask}" if mask else ""
        for number, node in passes.reductions(1):
            value = f"ts.{_REDUCER_OF_ARG.get(node.op, 'reduce_' + node.op.value)}(acc{number})"
            self._say(f"best{number} = {value}")
            self._say(
                f"tl.store(partial{number} + part * {outer} + x_index, best{number}{masked})"
            )
            if node.op in ARG_REDUCTIONS:
                found = f"ts.argmax_index(acc{number}, pos{number}, best{number})"
                self._say(f"tl.store(where{number} + part * {outer} + x_index, {found}{masked})")

    def _split_combine(self, outer_text: str) -> int:
        """The second kernel: combines partial results, then does all that follows. Its x block."""
        parts = next_power_of_2(self.config.splits)
        single = outer_text == "1"
        x_block = 1 if single else max(1, min(32, 4096 // parts))
        self.tile = (("x", "XBLOCK"), ("s", "PARTS"))
        self._outer_lane(x_block, "[:, None]")
        outer = self._extent_product(0, self.kernel.reduce_from, self.device)
        self._say(f"PARTS: tl.constexpr = {parts}")
        wide = ".to(tl.int64)" if self.wide else ""
        self._say(f"part = tl.arange(0, PARTS)[None, :]{wide}")
        self._set_mask("s", "part", str(self.config.splits), parts)
        mask = self._mask(frozenset("xs"))
        passes = plan_passes(self.kernel, online=False)
        for number in passes.outer_nodes(0):
            self._emit(number)
        for number, node in passes.reductions(1):
            dtype = node_operand_dtype(self.dtypes, node)
            other = scalars.literal_text(scalars.identity(node.op, dtype))
            options = f", {mask}, other={other}" if mask else ""
            self._say(
                f"value{number} = tl.load(partial{number} + part * {outer} + x_index{options})"
            )
            position = None
            if node.op in ARG_REDUCTIONS:
                options = f", {mask}, other={FAR}" if mask else ""
                position = f"where_value{number}"
                self._say(
                    f"{position} = tl.load(where{number} + part * {outer} + x_index{options})"
                )
            self._finish(number, node, f"value{number}", position)
        for number in passes.outer_nodes(1):
            self._emit(number)
        return x_block

    # -- reductions -----------------------------------------------------------------------------

    def _broadcast(self, number: int) -> str:
        value = self._value(number)
        whole = frozenset(lane for lane, _ in self.tile)
        if self.lanes[number] == whole:
            return value
        return f"tl.broadcast_to({value}, {self._shape(whole)})"

    def _reduce_operands(self, node: Reduce) -> tuple[str, str | None]:
        """Operand with masked lanes set to the identity, and positions for an arg reduction."""
        dtype = node_operand_dtype(self.dtypes, node)
        value = self._broadcast(node.value)
        mask = self.masks["r"]
        if mask:
            neutral = scalars.typed_constant(scalars.identity(node.op, dtype), dtype)
            value = f"tl.where({mask}, {value}, {neutral})"
        if node.op not in ARG_REDUCTIONS:
            return value, None
        position = "tl.broadcast_to(r_index.to(tl.int64), [XBLOCK, RBLOCK])"
        if mask:
            position = f"tl.where({mask}, {position}, {FAR})"
        return value, position

    def _finish(self, number: int, node: Reduce, value: str, position: str | None) -> None:
        """Defines the reduction's result from a block of lanes."""
        if node.op in ARG_REDUCTIONS:
            self._say(f"lanes{number} = {value}")
            self._say(f"best{number} = ts.{_REDUCER_OF_ARG[node.op]}(lanes{number})")
            text = f"ts.argmax_index(lanes{number}, {position}, best{number})"
        else:
            text = scalars.reduce_text(node.op, value)
            if node.op in (ReduceOp.SUM, ReduceOp.PROD) and not node.dtype.is_floating_point:
                text = f"{text}.to({scalars.TYPES[node.dtype]})"
        self._define(number, text, frozenset("x"))

    def _start_accumulator(self, number: int, node: Reduce) -> None:
        dtype = node_operand_dtype(self.dtypes, node)
        neutral = scalars.literal_text(scalars.identity(node.op, dtype))
        kind = scalars.TYPES[dtype]
        if node.op in ARG_REDUCTIONS:
            self._say(f"pos{number} = tl.full([XBLOCK, RBLOCK], {FAR}, tl.int64)")
        self._say(f"acc{number} = tl.full([XBLOCK, RBLOCK], {neutral}, {kind})")

    def _accumulate(self, number: int, node: Reduce) -> None:
        value = self._broadcast(node.value)
        mask = self.masks["r"]
        if node.op in ARG_REDUCTIONS:
            beats = "greater" if node.op is ReduceOp.ARGMAX else "less"
            better = f"(ts.{beats}({value}, acc{number}) | (pos{number} == {FAR}))"
            if mask:
                better = f"{better} & {mask}"
            self._say(f"better{number} = {better}")
            self._say(f"acc{number} = tl.where(better{number}, {value}, acc{number})")
            self._say(
                f"pos{number} = tl.where(better{number}, r_index.to(tl.int64), pos{number})"
            )
            return
        folded = scalars.accumulate_text(node.op, f"acc{number}", value)
        if mask:
            folded = f"tl.where({mask}, {folded}, acc{number})"
        elif not node.dtype.is_floating_point and node.dtype is not torch.bool:
            folded = f"({folded}).to({scalars.TYPES[node.dtype]})"
        self._say(f"acc{number} = {folded}")

    def _finish_accumulator(self, number: int, node: Reduce) -> None:
        position = f"pos{number}" if node.op in ARG_REDUCTIONS else None
        self._finish(number, node, f"acc{number}", position)

    # -- single nodes ---------------------------------------------------------------------------

    def _dtype(self, node: Node) -> torch.dtype:
        return self.kernel.args[node.arg].dtype if isinstance(node, Store) else node.dtype

    def _literals_that_need_a_name(self) -> frozenset[int]:
        """Literals used anywhere but as one operand of an infix operation."""
        body = self.kernel.body
        named: set[int] = set()
        for node in body:
            inline = isinstance(node, Compute) and node.op in scalars.INLINE
            literal = [o for o in uses(node) if isinstance(body[o], Literal)]
            if not inline or len(literal) > 1:
                named.update(literal)
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
                    self._define(number, scalars.scalar_text(node), frozenset())
                    return
                self.values[number] = scalars.literal_text(value)
                self.lanes[number] = frozenset()
            case IndexValue(index):
                lanes = self._lanes_of_index(index)
                shown = ix.text(index, self.variables, self.device)
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
            case Compute(op, args, dtype):
                lanes = frozenset[str]().union(*(self.lanes[arg] for arg in args))
                source = self.dtypes[args[1 if op is Op.WHERE else 0]]
                texts = [self._value(arg) for arg in args]
                self._define(number, scalars.compute_text(op, texts, source, dtype), lanes)
            case Store():
                self._emit_store(number, node)
            case Reduce():
                raise TypeError("reductions are emitted by their schedule")

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
        self._say(f"tl.store({address}, {value}{masked})")

    def _address(self, arg: int, index: Index) -> str:
        shown = ix.text(index, self.variables, self.device)
        if shown == "0":
            return self.pointers[arg]
        simple = shown.replace("_", "").isalnum()
        return f"{self.pointers[arg]} + {shown}" if simple else f"{self.pointers[arg]} + ({shown})"


_REDUCER_OF_ARG = {ReduceOp.ARGMAX: "reduce_max", ReduceOp.ARGMIN: "reduce_min"}


def node_operand_dtype(dtypes: Sequence[torch.dtype], node: Reduce) -> torch.dtype:
    """Dtype of what a reduction reads (an arg reduction's own dtype is int64)."""
    return dtypes[node.value]


def _symbol_parameters(kernel: Kernel) -> tuple[Symbol, ...]:
    """Scalar parameters with names that cannot collide with the printer's own."""
    floating = {
        node.name
        for node in kernel.body
        if isinstance(node, ScalarArg) and node.dtype.is_floating_point
    }
    return tuple(
        Symbol(f"n_{''.join(c if c.isalnum() else '_' for c in name)}",
               "fp64" if name in floating else "i64")
        for name in kernel.symbols
    )


def _ceil_div(extent: str, block: int) -> str:
    if extent.isdigit():
        return str(-(-int(extent) // block))
    return extent if block == 1 else f"({extent} + {block - 1}) // {block}"


def _product_text(left: str, right: str) -> str:
    if left.isdigit() and right.isdigit():
        return str(int(left) * int(right))
    return f"({left.strip('()')} * {right})" if left.startswith("(") else f"({left} * {right})"
