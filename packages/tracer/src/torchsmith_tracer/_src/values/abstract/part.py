"""What the parts of the layer have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.abstract.layer import ObjectLayer


class Part:
    """One theme of the layer, for the trace ``tx``; parts reach each other by ``interp`` only."""

    def __init__(self, tx: Trace) -> None:
        self.tx, self.interp = tx, cast("ObjectLayer", self)
