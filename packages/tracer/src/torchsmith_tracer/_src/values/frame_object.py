"""``sys._getframe()``: what a program may ask of the frame of a function being traced."""

from __future__ import annotations

import types

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import NONE

_GENERATOR = 0x20


class FrameValue(BuiltinObject):
    """The frame as an object of the program's; one for each frame."""

    __slots__ = ("frame",)
    cls = types.FrameType

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        frame = self.frame
        if name == "f_globals":
            return frame.globals
        known = {
            "f_code": frame.info.code,
            "f_lineno": frame.line,
            "f_lasti": frame.instruction.offset,
        }
        if name in known:
            return tx.interp.const(known[name])
        if name == "f_back":
            callers = _running(tx)
            if frame in callers[1:]:
                return frame_object(callers[callers.index(frame) - 1])
            if frame.info.code.co_flags & _GENERATOR and frame not in callers:
                return NONE
        raise Unsupported("unsupported-slot", what=f"attribute {name!r} of a frame")

    def clear(self, tx: Trace) -> Value:
        """``frame.clear()`` of one that has ended."""
        frame = self.frame
        if frame in tx.frames:
            raise tx.interp.error(RuntimeError, "cannot clear an executing frame")
        if frame.suspended():
            raise Unsupported("unsupported-slot", what="clearing the frame of a generator")
        variables, cells, stack = frame.locals, frame.cells, frame.stack

        def undo() -> None:
            frame.locals, frame.cells, frame.stack = variables, cells, stack

        tx.journal.record(undo)
        frame.locals, frame.cells, frame.stack = {}, {}, []
        return NONE


def frame_object(frame: Frame) -> FrameValue:
    """The one object for ``frame``."""
    if not isinstance(frame.shown, FrameValue):
        frame.shown = FrameValue(frame)
    return frame.shown


def _running(tx: Trace) -> list[Frame]:
    return [f for f in tx.frames if not f.globals.own]


def frame_value(tx: Trace, depth: int) -> FrameValue:
    """``sys._getframe(depth)``."""
    callers = _running(tx)
    if not 0 <= depth < len(callers):
        raise Unsupported("opaque-call", what="the frame of a function outside of the compiled one")
    return frame_object(callers[-1 - depth])
