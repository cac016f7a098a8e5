"""Kernels with scans: a loop over blocks of the row, which carries what came before."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from torchsmith_fx_backend._src.codegen.triton import scalars
from torchsmith_fx_backend._src.codegen.triton.emit import Emitter, ceil_div
from torchsmith_fx_backend._src.codegen.triton.source import Stage
from torchsmith_fx_backend._src.loops.ir import ReduceOp, Scan, ScanOp

# The reduction whose neutral value a scan starts from.
_STARTS = {
    ScanOp.SUM: ReduceOp.SUM,
    ScanOp.PROD: ReduceOp.PROD,
    ScanOp.MAX: ReduceOp.MAX,
    ScanOp.MIN: ReduceOp.MIN,
    ScanOp.ARGMAX: ReduceOp.MAX,
    ScanOp.ARGMIN: ReduceOp.MIN,
    ScanOp.LOGSUMEXP: ReduceOp.MAX,
}
_PAIRS = (ScanOp.ARGMAX, ScanOp.ARGMIN)


class ScanPrinter(Emitter):
    """Prints the ``SCAN`` schedule."""

    def stages(self, base: str) -> Iterator[Stage]:
        """One function."""
        kernel = self.kernel
        axes = range(kernel.reduce_from, len(kernel.ranges))
        self._row_lanes("r_lane")
        for number in range(len(kernel.body)):
            if not self.full[number]:
                self._emit(number)
        for number, node in enumerate(kernel.body):
            if isinstance(node, Scan):
                self._start(number, node)
        extent = self._row_extent()
        self._say(f"for step in range({ceil_div(extent, self.config.r_block)}):")
        self.indent += 1
        step = "tl.cast(step, tl.int64)" if self.wide else "step"
        self._say(f"r_index = {step} * RBLOCK + r_lane")
        self._set_mask("r", "r_index", extent, self.config.r_block)
        self._flat("r_index", axes, "r", "r")
        for number, node in enumerate(kernel.body):
            if isinstance(node, Scan):
                self._scan(number, node)
            elif self.full[number]:
                self._emit(number)
        self.indent -= 1
        yield Stage(base, (self._outer_grid(), "1"))

    def _neutral(self, node: Scan) -> tuple[str, torch.dtype]:
        dtype = self.dtypes[node.value]
        return scalars.literal_text(_STARTS[node.op].identity(dtype)), dtype

    def _start(self, number: int, node: Scan) -> None:
        neutral, dtype = self._neutral(node)
        self._say(f"acc{number} = tl.full([XBLOCK, 1], {neutral}, {scalars.TYPES[dtype]})")
        if node.op in _PAIRS:
            self._say(f"pos{number} = tl.full([XBLOCK, 1], 0, tl.int64)")

    def _scan(self, number: int, node: Scan) -> None:
        neutral, dtype = self._neutral(node)
        value = f"tl.broadcast_to({self._value(node.value)}, {self._shape(frozenset('xr'))})"
        if self.masks["r"]:
            value = f"tl.where({self.masks['r']}, {value}, {neutral})"
            value = f"{value}.to({scalars.TYPES[dtype]})"
        name = node.op.value
        if node.op in _PAIRS:
            where = "tl.broadcast_to(r_index.to(tl.int64), [XBLOCK, RBLOCK])"
            if self.masks["r"]:
                where = f"tl.where({self.masks['r']}, {where}, -1)"
            self._say(
                f"acc{number}, pos{number}, v{number} = "
                f"ts.scan_{name}(acc{number}, pos{number}, {value}, {where})"
            )
        else:
            self._say(f"acc{number}, v{number} = ts.scan_{name}(acc{number}, {value})")
        self.values[number] = f"v{number}"
        self.lanes[number] = frozenset("xr")
