"""Kernels whose points may write the same element: one lane owns each element and walks its points.

Lanes are points of the owned axes (see ``loops.meeting``). What a lane wrote is read again in the
next step, perhaps by another thread, since loads and stores may be laid out differently: hence the
barrier.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchsmith_fx_backend._src.codegen.triton.emit import Emitter, ceil_div
from torchsmith_fx_backend._src.codegen.triton.source import Stage
from torchsmith_fx_backend._src.loops.index import ONE
from torchsmith_fx_backend._src.loops.meeting import owned_axes


class ScatterPrinter(Emitter):
    """Prints the ``SCATTER`` schedule."""

    def stages(self, base: str) -> Iterator[Stage]:
        """One function."""
        owned = owned_axes(self.kernel)
        met = [axis for axis, size in enumerate(self.kernel.ranges) if axis not in owned]
        self.tile = (("x", "XBLOCK"),)
        self._say(f"XBLOCK: tl.constexpr = {self.config.x_block}")
        self._say(f"x_index = {self._program(0)} * XBLOCK + tl.arange(0, XBLOCK)")
        self._set_mask("x", "x_index", self._points(owned, self.device), self.config.x_block)
        self._flat("x_index", owned, "x", "x")
        self._say(f"for step in range({self._points(met, self.device)}):")
        self.indent += 1
        self._say(f"point = {'tl.cast(step, tl.int64)' if self.wide else 'step'}")
        self._flat("point", met, "", "p")
        for number in range(len(self.kernel.body)):
            self._emit(number)
        self._say("tl.debug_barrier()")
        self.indent -= 1
        yield Stage(base, (ceil_div(self._points(owned, self.host), self.config.x_block), "1"))

    def _points(self, axes: Sequence[int], symbols: dict[str, str]) -> str:
        moving = [axis for axis in axes if self.kernel.ranges[axis] != ONE]
        parts = [self._extent_text(axis, symbols) for axis in moving] or ["1"]
        if all(part.isdigit() for part in parts):
            return str(math.prod(map(int, parts)))
        return parts[0] if len(parts) == 1 else f"({' * '.join(parts)})"
