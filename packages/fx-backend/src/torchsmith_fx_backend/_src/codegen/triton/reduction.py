"""Kernels with reductions: whole rows in registers, loops over rows, and split rows."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchsmith_fx_backend._src.codegen.triton import scalars
from torchsmith_fx_backend._src.codegen.triton.config import (
    ARG_REDUCTIONS,
    Schedule,
    next_power_of_2,
)
from torchsmith_fx_backend._src.codegen.triton.emit import Emitter, ceil_div
from torchsmith_fx_backend._src.codegen.triton.passes import Passes, plan_passes
from torchsmith_fx_backend._src.codegen.triton.source import Stage, Workspace
from torchsmith_fx_backend._src.loops.ir import Reduce, ReduceOp, Store

FAR = "9223372036854775807"  # position of a lane that has seen no value yet

_REDUCER_OF_ARG = {ReduceOp.ARGMAX: "reduce_max", ReduceOp.ARGMIN: "reduce_min"}
_FOLD = {  # one value more, lane by lane
    ReduceOp.SUM: "{} + {}",
    ReduceOp.PROD: "{} * {}",
    ReduceOp.ANY: "{} | {}",
    ReduceOp.ALL: "{} & {}",
    ReduceOp.MAX: "ts.maximum({}, {})",
    ReduceOp.MIN: "ts.minimum({}, {})",
}


class ReductionPrinter(Emitter):
    """Prints the ``PERSISTENT``, ``LOOPED`` and ``SPLIT`` schedules."""

    def stages(self, base: str) -> Iterator[Stage]:
        """One function, or for a split reduction two."""
        if self.config.schedule is Schedule.PERSISTENT:
            self._persistent()
            yield Stage(base, (self._outer_grid(), "1"))
        elif self.config.schedule is Schedule.LOOPED:
            self._looped()
            yield Stage(base, (self._outer_grid(), "1"))
        else:
            self._declare_partials()
            self._split_partial()
            yield Stage(f"{base}_partial", (self._outer_grid(), str(self.config.splits)))
            outer = self._extent_product(0, self.kernel.reduce_from, self.host)
            x_block = self._split_combine(outer)
            yield Stage(f"{base}_combine", (ceil_div(outer, x_block), "1"))

    def _reduction_lane(self) -> None:
        """The mask of ``r_index`` and the reduction variables, at the current indentation."""
        axes = range(self.kernel.reduce_from, len(self.kernel.ranges))
        # The parts of a split are equally long, so the last one may run over the end.
        whole = self.config.r_block * self.config.splits
        self._set_mask("r", "r_index", self._row_extent(), whole)
        self._flat("r_index", axes, "r", "r")

    def _persistent(self) -> None:
        self._row_lanes("r_index")
        self._reduction_lane()
        for number, node in enumerate(self.kernel.body):
            if isinstance(node, Reduce):
                value, position = self._reduce_operands(node)
                self._finish(number, node, value, position)
            else:
                self._emit(number)

    def _looped(self) -> None:
        passes = plan_passes(self.kernel, online=True)
        self._row_lanes("r_lane")
        self._outer_nodes(passes, 0)
        steps = ceil_div(self._row_extent(), self.config.r_block)
        for level in range(1, passes.count + 1):
            self._pass(passes, level, steps)
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

    def _pass(self, passes: Passes, level: int, steps: str, begin: str = "") -> None:
        """One loop over the reduction axis: full values, accumulations and stores of ``level``."""
        reductions = passes.reductions(level)
        for number, node in reductions:
            self._start_accumulator(number, node)
        ahead = self.config.num_stages
        walk = f"range({steps})" if ahead == 1 else f"tl.range(0, {steps}, num_stages={ahead})"
        self._say(f"for step in {walk}:")
        self.indent += 1
        outside = dict(self.values), dict(self.lanes)
        step = "tl.cast(step, tl.int64)" if self.wide else "step"
        self._say(f"r_index = {begin}{step} * RBLOCK + r_lane")
        self._reduction_lane()
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
                self.workspaces.append(
                    Workspace(f"partial{number}", self.dtypes[node.value], length)
                )
                if node.op in ARG_REDUCTIONS:
                    self.workspaces.append(Workspace(f"where{number}", torch.int64, length))

    def _split_partial(self) -> None:
        passes = plan_passes(self.kernel, online=False)
        self._row_lanes("r_lane")
        extent = self._row_extent()
        outer = self._extent_product(0, self.kernel.reduce_from, self.device)
        step = self.config.splits * self.config.r_block
        self._say(f"part = {self._program(1)}")
        # Whole steps per part, so that only the last step of all needs its mask.
        self._say(f"begin = part * ({ceil_div(extent, step)} * RBLOCK)")
        for number in passes.outer_nodes(0):
            if not isinstance(self.kernel.body[number], Store):
                self._emit(number)
        self._pass(passes, 1, ceil_div(extent, step), "begin + ")
        mask = self._mask(frozenset("x"))
        masked = f", {mask}" if mask else ""
        for number, node in passes.reductions(1):
            value = f"ts.{_REDUCER_OF_ARG.get(node.op, 'reduce_' + node.op.value)}(acc{number})"
            self._say(f"best{number} = {value}")
            self._say(f"tl.store(partial{number} + part * {outer} + x_index, best{number}{masked})")
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
        self._outer_nodes(passes, 0)
        for number, node in passes.reductions(1):
            dtype = self.dtypes[node.value]
            other = scalars.literal_text(node.op.identity(dtype))
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
        self._outer_nodes(passes, 1)
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
        dtype = self.dtypes[node.value]
        value = self._broadcast(node.value)
        mask = self.masks["r"]
        if mask:
            neutral = scalars.typed_constant(node.op.identity(dtype), dtype)
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
            text = f"ts.reduce_{node.op.value}({value})"
            if node.op in (ReduceOp.SUM, ReduceOp.PROD) and not node.dtype.is_floating_point:
                text = f"{text}.to({scalars.TYPES[node.dtype]})"
        self._define(number, text, frozenset("x"))

    def _start_accumulator(self, number: int, node: Reduce) -> None:
        dtype = self.dtypes[node.value]
        neutral = scalars.literal_text(node.op.identity(dtype))
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
            self._say(f"pos{number} = tl.where(better{number}, r_index.to(tl.int64), pos{number})")
            return
        folded = _FOLD[node.op].format(f"acc{number}", value)
        if mask:
            folded = f"tl.where({mask}, {folded}, acc{number})"
        elif not node.dtype.is_floating_point and node.dtype is not torch.bool:
            folded = f"({folded}).to({scalars.TYPES[node.dtype]})"
        self._say(f"acc{number} = {folded}")

    def _finish_accumulator(self, number: int, node: Reduce) -> None:
        position = f"pos{number}" if node.op in ARG_REDUCTIONS else None
        self._finish(number, node, f"acc{number}", position)
