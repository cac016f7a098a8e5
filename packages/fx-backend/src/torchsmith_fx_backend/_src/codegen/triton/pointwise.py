"""Kernels without reduction: flat blocks, and two-dimensional tiles for transposes."""

from __future__ import annotations

from collections.abc import Iterator

from torchsmith_fx_backend._src.codegen.triton.config import Schedule
from torchsmith_fx_backend._src.codegen.triton.emit import Emitter, ceil_div
from torchsmith_fx_backend._src.codegen.triton.source import Stage


class PointwisePrinter(Emitter):
    """Prints the ``POINTWISE`` and ``TILE`` schedules."""

    def stages(self, base: str) -> Iterator[Stage]:
        """One function."""
        if self.config.schedule is Schedule.TILE:
            grid = self._tile()
        else:
            self._pointwise()
            grid = self._outer_grid()
        yield Stage(base, (grid, "1"))

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
        self._say(f"x_blocks = {ceil_div(extent_x, config.x_block)}")
        self._say(f"y_blocks = {ceil_div(extent_y, config.y_block)}")
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
            ceil_div(self._extent_text(last, self.host), config.x_block),
            ceil_div(self._extent_text(config.y_axis, self.host), config.y_block),
            *(self._extent_text(axis, self.host) for axis in rest),
        ]
        return " * ".join(f"({count})" for count in counts)
