"""Prints one loop IR kernel as a module of Triton source.

The text is complete: importing it needs only triton and ``functions.py``. Static extents, strides
and tile sizes are literals, so that Triton's compiler sees divisibility without any specialisation;
size symbols are 64-bit integer arguments. Addresses are 32-bit where the launcher has shown that
every offset fits, else 64-bit: the same kernel, printed twice.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.codegen.triton.emit import Emitter
from torchsmith_fx_backend._src.codegen.triton.pointwise import PointwisePrinter
from torchsmith_fx_backend._src.codegen.triton.reduction import ReductionPrinter
from torchsmith_fx_backend._src.codegen.triton.scan import ScanPrinter
from torchsmith_fx_backend._src.codegen.triton.scatter import ScatterPrinter
from torchsmith_fx_backend._src.codegen.triton.source import TritonSource
from torchsmith_fx_backend._src.loops.ir import Kernel

_PRINTERS: dict[Schedule, type[Emitter]] = {
    Schedule.POINTWISE: PointwisePrinter,
    Schedule.TILE: PointwisePrinter,
    Schedule.PERSISTENT: ReductionPrinter,
    Schedule.LOOPED: ReductionPrinter,
    Schedule.SPLIT: ReductionPrinter,
    Schedule.SCAN: ScanPrinter,
    Schedule.SCATTER: ScatterPrinter,
}


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
    return _PRINTERS[config.schedule](kernel, config, wide, origins).module()
