"""Generators of the traced program: each holds its own frame, which ``run`` resumes."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import VERSION, cells_of
from torchsmith_tracer._src.frames.frame import operands_of, shape_of
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.frame_object import frame_object
from torchsmith_tracer._src.values.iterators import IteratorValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.functions import FunctionValue


_NAMES = ("__name__", "__qualname__")
_KINDS = {0x80: types.CoroutineType, 0x200: types.AsyncGeneratorType}


class GeneratorValue(IteratorValue):
    """A generator (or, with ``coroutine`` flags, a coroutine) object.

    Attributes:
        frame: its activation; None once finished.
        fn, args: the call that made it, to make it again while it has not started.
        started: whether it ran at all.
        names: ``__name__`` and ``__qualname__`` where they are not those of the code.
    """

    __slots__ = ("args", "cls", "fn", "frame", "names", "running", "started")

    def __init__(
        self, frame: Frame, fn: FunctionValue, args: tuple[list[Value], dict[str, Value]]
    ) -> None:
        self.source = None
        self.frame: Frame | None = frame
        self.fn = fn
        kinds = (kind for flag, kind in _KINDS.items() if fn.code.co_flags & flag)
        self.cls = next(kinds, types.GeneratorType)
        self.args = args
        self.names: dict[str, Value] = {}
        self.started = False
        self.running = False

    def describe(self) -> str:
        return f"generator {self.fn.name}"

    def step(self, tx: Trace) -> Value | None:
        value, done = self.resume(tx, NONE)
        return None if done else value

    def next(self, tx: Trace) -> Value:
        return self.send(tx, NONE)

    def send(self, tx: Trace, value: Value) -> Value:
        """``gen.send(value)``; StopIteration carries the return value."""
        return self._item(tx, *self.resume(tx, value))

    def throw(self, tx: Trace, exc: Value) -> Value:
        """``gen.throw(exc)``."""
        return self._item(tx, *self.resume(tx, NONE, exc))

    def _item(self, tx: Trace, result: Value, done: bool) -> Value:
        if done:
            raise tx.interp.error_with(StopIteration, [] if tx.interp.is_none(result) else [result])
        return result

    def close(self, tx: Trace) -> Value:
        """``gen.close()``."""
        if self.frame is None:
            return NONE
        if not self.started:
            tx.journal.assign(self, "frame", None)
            return NONE
        exc = tx.interp.error(GeneratorExit).exc
        try:
            value, done = self.resume(tx, NONE, exc)
        except ObservedException as e:
            if tx.interp.exception_matches(e.exc, (GeneratorExit, StopIteration)):
                return NONE
            raise
        if not done:
            raise tx.interp.error(RuntimeError, "generator ignored GeneratorExit")
        return value if VERSION >= (3, 13) else NONE

    def resume(self, tx: Trace, value: Value, exc: Value | None = None) -> tuple[Value, bool]:
        """(yielded or returned value, whether it returned)."""
        frame = self.frame
        if self.running:
            raise tx.interp.error(ValueError, "generator already executing")
        if frame is None:
            if exc is not None:
                raise ObservedException(exc)
            return NONE, True
        if not self.started and not tx.interp.is_none(value):
            message = "can't send non-None value to a just-started generator"
            raise tx.interp.error(TypeError, message)
        self._remember(tx, frame)
        return tx.loop.resume_generator(self, frame, value, exc)

    def _remember(self, tx: Trace, frame: Frame) -> None:
        """Record how to come back to the present state."""
        ip, stack, variables = frame.ip, list(frame.stack), dict(frame.locals)
        cells = dict(frame.cells)
        started = self.started

        def undo() -> None:
            self.frame, self.started = frame, started
            self.running = False
            frame.ip, frame.stack, frame.locals = ip, stack, variables
            frame.cells = cells

        tx.journal.record(undo)

    def getattr(self, tx: Trace, name: str) -> Value:
        const = tx.interp.const
        if name in _NAMES:
            return self.names.get(name) or const(
                self.fn.name if name == "__name__" else self.fn.qualname
            )
        if self.python_type() is types.GeneratorType:
            suspended = self.frame is not None and self.started and not self.running
            if name == "gi_frame":
                return NONE if self.frame is None else frame_object(self.frame)
            if name == "gi_yieldfrom":
                frame = self.frame if suspended else None
                return NONE if frame is None or not frame.delegates() else frame.top()
            known = {"running": self.running, "suspended": suspended, "code": self.fn.code}
            if name[:3] == "gi_" and name[3:] in known:
                return const(known[name[3:]])
        return super().getattr(tx, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if name not in _NAMES:
            super().setattr(tx, name, value)
            return
        if not issubclass(value.python_type(), str):
            raise tx.interp.error(TypeError, f"{name} must be set to a string object")
        tx.journal.assign(self, "names", {**self.names, name: value})

    def delattr(self, tx: Trace, name: str) -> None:
        if name in _NAMES:
            raise tx.interp.error(TypeError, f"{name} must be set to a string object")
        super().delattr(tx, name)

    def reconstruct(self, cg: Emitter) -> str:
        if self.frame is None:
            return cg.call(_finished)
        if self.started:
            return self._revived(cg, self.frame)
        args, kwargs = self.args
        return cg.call_of(cg.expr(self.fn), args, kwargs)

    def reconstruct_fill(self, cg: Emitter) -> None:
        for name, value in self.names.items():
            cg.set_attr(self, name, value)

    def _revived(self, cg: Emitter, frame: Frame) -> str:
        """A generator of the same code that is suspended at the same place."""
        if self.running:
            raise Unsupported("cannot-rebuild", what=f"the suspended {self.describe()}")
        code = frame.info.code
        cells = cells_of(code)
        names = [n for n in code.co_varnames if n in frame.locals and n not in cells]
        return cg.call(
            _revived,
            cg.const(cg.suspended_code(code, frame.ip - 1, shape_of(frame.stack), names)),
            frame.globals,
            cg.tuple_of([frame.cells[name] for name in cells]),
            *(frame.locals[name] for name in names),
            *operands_of(frame.stack),
        )


def _revived(
    code: types.CodeType,
    space: dict[str, object],
    cells: tuple[types.CellType, ...],
    *state: object,
) -> types.GeneratorType[object, object, object]:
    generator = types.FunctionType(code, space, code.co_name, None, cells or None)(*state)
    next(generator)
    return generator  # type: ignore[no-any-return]


def _finished() -> types.GeneratorType[None, None, None]:
    generator = (None for _ in ())
    next(generator, None)
    return generator  # type: ignore[return-value]
