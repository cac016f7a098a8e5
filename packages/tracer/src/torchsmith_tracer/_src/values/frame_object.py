"""``sys._getframe()``: what a program may ask of the frame of a function being traced."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject

if TYPE_CHECKING:
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.trace import Trace


class FrameValue(BuiltinObject):
    """A frame: number ``depth`` from the innermost one outwards at the time of asking."""

    __slots__ = ("callers", "frame")

    def __init__(self, callers: list[Frame]) -> None:
        super().__init__()
        self.frame = callers[-1]
        self.callers = callers

    def python_type(self) -> type:
        return types.FrameType

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "f_globals":
            return self.frame.globals
        if name == "f_code":
            return tx.interp.const(self.frame.info.code)
        if name == "f_back" and len(self.callers) > 1:
            return FrameValue(self.callers[:-1])
        if name == "f_lineno":
            return tx.interp.const(self.frame.line)
        if name == "f_lasti":
            return tx.interp.const(self.frame.instruction.offset)
        raise Unsupported("unsupported-slot", what=f"attribute {name!r} of a frame")

    def clear(self, tx: Trace) -> None:
        """``frame.clear()`` of one that has ended."""
        frame = self.frame
        if frame in tx.frames:
            raise tx.interp.error(RuntimeError, "cannot clear an executing frame")
        before = frame.info.instructions[max(frame.ip - 1, 0)]
        if before.opname == "YIELD_VALUE":
            raise Unsupported("unsupported-slot", what="clearing the frame of a generator")
        variables, cells, stack = frame.locals, frame.cells, frame.stack

        def undo() -> None:
            frame.locals, frame.cells, frame.stack = variables, cells, stack

        tx.journal.record(undo)
        frame.locals, frame.cells, frame.stack = {}, {}, []


def frame_value(tx: Trace, depth: int) -> FrameValue:
    """``sys._getframe(depth)``."""
    callers = [f for f in tx.frames if not f.globals.own]
    if not 0 <= depth < len(callers):
        raise Unsupported("opaque-call", what="the frame of a function outside of the compiled one")
    return FrameValue(callers[: len(callers) - depth])
