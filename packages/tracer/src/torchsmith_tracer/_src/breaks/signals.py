"""Host-side exceptions that steer tracing. Users never see them; they see errors and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from torchsmith_tracer._src.frames.frame import FrameState
    from torchsmith_tracer._src.values.base import Value


class Unsupported(Exception):
    """A graph break: ``kind`` is a name in ``breaks.kinds.KINDS``; ``details`` fill its template.

    Raised anywhere below an instruction; the interpreter rolls the trace back to the start of
    that instruction and the code generator splits the program there.
    """

    def __init__(self, kind: str, **details: object) -> None:
        super().__init__(kind, details)
        self.kind = kind
        self.details = details


class ObservedException(Exception):
    """The traced program raised: ``exc`` is the symbolic exception instance. The interpreter
    looks for a handler in the frame's exception table, then unwinds to the caller."""

    def __init__(self, exc: Value) -> None:
        super().__init__(exc)
        self.exc = exc


class InternalError(Exception):
    """A broken invariant of the tracer itself: a bug of ours, reported as such."""


class HistoryNeeded(BaseException):
    """The trace depends on the autograd history of tensors, which it has not kept throughout: it is
    begun again. No handler between is to take it for an error."""


class LocksTaken(BaseException):
    """The graph breaks in a function that has taken locks, or ends while it has them: it is traced
    again, and takes them natively."""


class MisledByUs(BaseException):
    """A path raises that was taken in a program which asked whether it is being compiled: it is
    traced again, and told that it is not, as in eager mode."""


class NumbersChange(BaseException):
    """Traced code changes numbers that it has read as constants: it is traced again, and has them
    as inputs, as it would after the next call. ``before``: what was known of them."""

    def __init__(self, before: dict[str, Hashable]) -> None:
        super().__init__()
        self.before = before


class BreakAt(Exception):
    """A graph break with its place: ``frames`` holds the stopped frames, innermost first. All but
    the first are in the middle of a call instruction (``FrameState.in_call``)."""

    def __init__(self, signal: Unsupported, frames: list[FrameState]) -> None:
        super().__init__(signal.kind, signal.details)
        self.signal = signal
        self.frames = frames
