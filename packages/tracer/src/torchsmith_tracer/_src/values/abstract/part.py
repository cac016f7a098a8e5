"""What the parts of the layer have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.abstract.layer import ObjectLayer


class Part:
    """One theme of the layer ``interp``, for the trace ``tx``."""

    def __init__(self, tx: Trace, interp: ObjectLayer) -> None:
        self.tx, self.interp = tx, interp
