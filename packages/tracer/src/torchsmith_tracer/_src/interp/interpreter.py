"""``Interpreter``: runs frames.

The loop is one handler call for each instruction. Before an instruction that may break or raise, it
keeps a checkpoint of the trace and a copy of the stack; when the instruction turns out not to be
traceable, everything is brought back to that point and the chain of stopped frames is reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith_guards import deliver

from torchsmith_tracer._src.breaks.signals import (
    BreakAt,
    InternalError,
    ObservedException,
    Unsupported,
)
from torchsmith_tracer._src.frames.code import VERSION, Instruction
from torchsmith_tracer._src.frames.frame import Frame, LastInstruction
from torchsmith_tracer._src.frames.library import is_library
from torchsmith_tracer._src.interp import (  # noqa: F401 - they fill the table
    host_only,
    opcodes_build,
    opcodes_calls,
    opcodes_control,
    opcodes_exceptions,
    opcodes_locals,
    opcodes_match,
    opcodes_names,
    opcodes_numbers,
)
from torchsmith_tracer._src.interp.registry import RETURN, bind_handlers
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.abandoned import Abandoned
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.exceptions import (
    ExceptionValue,
    leaving_generator,
    note_frame,
    set_context,
)
from torchsmith_tracer._src.values.functions import CellValue, FunctionValue
from torchsmith_tracer._src.values.generators import GeneratorValue

_RERAISES = ("RERAISE", "CLEANUP_THROW")  # the traceback has this frame already
MAX_DEPTH = 200  # frames inlined into each other


def _missing(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("unsupported-opcode", what=ins.opname)


class Interpreter:
    """Runs frames of one trace.

    ``run(frame)`` returns the value or raises ``BreakAt``.
    """

    def __init__(self, tx: Trace) -> None:
        self.tx = tx
        self.abandoned = Abandoned(tx)
        self._pending_throw: Value | None = None

    def run(self, frame: Frame) -> Value:
        """Run a frame to its return.

        Raises:
            BreakAt: an instruction could not be traced; the frames stopped there.
            Unsupported: the same in a frame that cannot be resumed.
            ObservedException: the traced program raised.
        """
        if self.execute(frame) != RETURN:
            raise InternalError(f"{frame.info.code.co_qualname} yielded outside a generator")
        assert frame.result is not None
        return frame.result

    def root_frame(self, fn: FunctionValue, locals: dict[str, Value]) -> Frame:
        """The resumable frame of the entry function."""
        cells = dict(zip(fn.code.co_freevars, fn.closure, strict=True))
        return Frame(fn.code, fn.globals, locals, cells, fn=fn, resumable=True)

    # --- the loop ----------------------------------------------------------------------------
    def execute(self, frame: Frame) -> int:
        """Run until the frame returns or yields: ``RETURN`` or ``YIELD``; ``frame.result``."""
        deliver()
        tx = self.tx
        info = frame.info
        if not info.bound:
            bind_handlers(info, _missing)
        instructions = info.instructions
        visited = None
        if tx.visited is not None:
            visited = tx.visited.setdefault(id(info), (info.code, set()))[1]
        frames = tx.frames
        graph, shapes, guards, journal = tx.logs
        if len(frames) >= MAX_DEPTH:
            raise self._too_deep(frame)
        frames.append(frame)
        handled = frame.outside = self.tx.interp.handled
        if frame.stack:
            self.tx.interp.handled = frame.handled() or handled
        suspended = self.abandoned.suspended
        before: tuple[dict[str, Value], dict[str, CellValue]] | None = None
        try:
            while True:
                try:
                    ip = frame.ip
                    while True:
                        ins = instructions[ip]
                        frame.ip = ip
                        if visited is not None:
                            visited.add(ip)
                        if ins.guarded or suspended:
                            frame.marks = len(graph), len(shapes), len(guards), len(journal)
                            frame.saved = frame.stack.copy()
                        if suspended and ins.drops:
                            before = frame.locals.copy(), frame.cells.copy()
                        elif before is not None:
                            before = None
                        jump = ins.run(tx, frame, ins)  # type: ignore[misc]
                        if suspended and ins.drops:
                            if jump == RETURN:
                                gone = (*frame.stack, *frame.variables().values())
                                self.abandoned.release(gone, frame, frame.result)
                            else:
                                self.abandoned.release(_dropped(frame, before))
                        if jump is None:
                            ip += 1
                        elif jump >= 0:
                            if jump < ip:
                                deliver()
                            ip = jump
                        else:
                            frame.ip = ip + 1
                            return jump
                except ObservedException as e:
                    if not self._unwind(frame, e):
                        self.tx.interp.handled = handled
                        came_from = _came_from(frame)
                        if suspended:
                            self._leave(frame, e)
                        if self._leaves_uncaught(frame):
                            signal = Unsupported("raises", what=e.exc.describe())
                            raise self._stopped(frame, signal) from e
                        frame.ip = came_from  # the line that it shows from now on
                        raise
                except Unsupported as e:
                    self.tx.interp.handled = handled
                    if before is not None:  # the instruction itself may have gone well
                        frame.locals, frame.cells = before
                    raise self._stopped(frame, e) from None
                except BreakAt as e:
                    self.tx.interp.handled = handled
                    e.frames.append(frame.state(in_call=True))
                    raise
                except RecursionError:
                    self.tx.interp.handled = handled
                    if not (ins.guarded or suspended):  # its handler was not even entered
                        frame.marks, frame.saved = tx.checkpoint(), frame.stack.copy()
                    raise self._stopped(frame, self._too_deep(frame)) from None
        finally:
            frames.pop()

    # --- exceptions --------------------------------------------------------------------------
    def _unwind(self, frame: Frame, error: ObservedException) -> bool:
        """Go to the handler of the current instruction; False when there is none."""
        ins = frame.instruction
        again = ins.opname in _RERAISES or (ins.opname == "RAISE_VARARGS" and not ins.arg)
        if not again or self.tx.interp.is_none(error.exc.getattr(self.tx, "__traceback__")):
            entry = note_frame(self.tx, error.exc, frame)
            if entry is not None:
                self.abandoned.passed(entry)
        handler = frame.info.handler_at[frame.ip]
        if handler is None:
            return False
        came_from = _came_from(frame)
        gone = frame.stack[: handler.depth - len(frame.stack) - 1 : -1]
        del frame.stack[handler.depth :]
        if handler.push_lasti:
            frame.stack.append(LastInstruction(came_from))
        frame.stack.append(error.exc)
        frame.kw_names = ()
        if self.abandoned.suspended:
            self._release(frame, gone)
        frame.ip = handler.target
        return True

    def _leave(self, frame: Frame, error: ObservedException) -> None:
        """``error`` leaves ``frame``: its stack is dropped, its variables live on with it."""
        gone = frame.stack[::-1]
        frame.stack.clear()
        if isinstance(error.exc, ExceptionValue):
            self._release(frame, gone, frame, error.exc)

    def _release(self, frame: Frame, gone: Sequence[object], *ending: Frame | Value) -> None:
        try:
            self.abandoned.release(gone, *ending)  # type: ignore[arg-type]
        except Unsupported as e:
            raise self._stopped(frame, e) from None

    def _leaves_uncaught(self, frame: Frame) -> bool:
        """Whether the exception leaves ``frame`` for good: the whole chain is resumable and no
        enclosing frame has a handler. It is then raised natively, with the user's traceback."""
        if not frame.resumable:
            return False
        return all(outer.info.handler_at[outer.ip] is None for outer in self.tx.frames[:-1])

    # --- breaks ------------------------------------------------------------------------------
    def _too_deep(self, frame: Frame) -> Unsupported:
        """Calls are nested too deep. As many frames rebuilt would use up the interpreter's own
        limit, so the entry function's call runs natively, or, where that is what comes back, the
        entry function."""
        frames = self.tx.frames
        again = any(f.info.code is frames[0].info.code for f in frames[1:])
        return Unsupported("inline-depth", what=frame.info.code.co_qualname, again=again)

    def _stopped(self, frame: Frame, signal: Unsupported) -> Exception:
        """Bring the trace back to before the current instruction and say where it stopped."""
        callers = [f for f in self.tx.frames[:-1] if f.resumable and not is_library(f.info.code)]
        # A break in a library's frame is one of the user's call. A callback of the user's that
        # breaks does stop in the frames between.
        if not frame.resumable or (callers and is_library(frame.info.code)):
            return signal
        if signal.kind == "inline-depth" and (
            frame is not self.tx.frames[0] or signal.details["again"]
        ):
            return signal
        if frame.marks is not None:
            self.tx.rollback(frame.marks)
            frame.stack = frame.saved
        if frame is not self.tx.frames[0]:
            signal = host_only.break_of(frame, signal)
        frame.kw_names = _pending_names(frame)
        return BreakAt(signal, [frame.state(in_call=False)])

    # --- generators --------------------------------------------------------------------------
    def resume_generator(
        self, gen: GeneratorValue, frame: Frame, value: Value, exc: Value | None
    ) -> tuple[Value, bool]:
        """Run a suspended generator until it yields or returns: (value, returned)."""
        interp = self.tx.interp
        outer = interp.handled
        gen.running = True
        try:
            if exc is not None:
                delegated = self._throw_into_delegate(frame, exc)
                if delegated is not None:
                    return delegated, False
                if self._pending_throw is not None:
                    exc, self._pending_throw = self._pending_throw, None
                    self._throw(gen, frame, exc)
            elif gen.started:
                frame.stack.append(value)
            gen.started = True
            status = self.execute(frame)
        except ObservedException as e:
            gen.frame = None
            if VERSION < (3, 12):
                raise ObservedException(leaving_generator(self.tx, e.exc)) from None
            raise
        finally:
            gen.running = False
            interp.handled = outer
        assert frame.result is not None
        if status == RETURN:
            gen.frame = None
            return frame.result, True
        self.abandoned.note(gen)
        return frame.result, False

    def _throw(self, gen: GeneratorValue, frame: Frame, exc: Value) -> None:
        """Raise ``exc`` at the point where the generator is suspended."""
        gen.started = True
        frame.marks = self.tx.checkpoint()
        frame.saved = list(frame.stack)
        # The exception belongs to the YIELD that suspended the frame (or to its start).
        frame.ip = max(frame.ip - 1, 0)
        frame.stack.append(NONE)  # in place of what would be sent
        own = frame.handled()
        if own is not None:
            set_context(self.tx, exc, own)
        if not self._unwind(frame, ObservedException(exc)):
            raise ObservedException(exc)  # in no local, to which its traceback would lead

    def _throw_into_delegate(self, frame: Frame, exc: Value) -> Value | None:
        """``throw`` while suspended in ``yield from``: goes to the inner iterator first. A value
        means that it yielded; None that the frame has to go on, at its new ``ip`` or with the
        exception in ``_pending_throw``."""
        self._pending_throw = exc
        if not frame.delegates():
            return None
        inner = frame.stack[-1]
        assert isinstance(inner, Value)
        if self.tx.interp.exception_matches(exc, GeneratorExit):
            try:
                if isinstance(inner, GeneratorValue):
                    inner.close(self.tx)
                else:
                    self._call_if_there(inner, "close")
            except ObservedException as e:
                exc = e.exc
            self._pending_throw = exc  # closing the inner one has used it, too
            return None
        try:
            if isinstance(inner, GeneratorValue):
                return inner.throw(self.tx, exc)
            return self._call_if_there(inner, "throw", exc)
        except ObservedException as e:
            error = e
        if not self.tx.interp.exception_matches(error.exc, StopIteration):
            self._pending_throw = error.exc
            return None
        self._pending_throw = None
        send = frame.info.instructions[frame.ip - 2]
        if VERSION < (3, 12):
            frame.stack.pop()
        frame.stack.append(error.exc.getattr(self.tx, "value"))
        frame.ip = send.target
        return None

    def _call_if_there(self, obj: Value, name: str, *args: Value) -> Value | None:
        try:
            method = obj.getattr(self.tx, name)
        except ObservedException as e:
            if not self.tx.interp.exception_matches(e.exc, AttributeError):
                raise
            return None
        return self.tx.interp.call(method, args)


def _dropped(
    frame: Frame, before: tuple[dict[str, Value], dict[str, CellValue]] | None
) -> list[object]:
    """What the instruction has taken off the stack of ``frame`` and out of its variables."""
    kept = {id(v) for v in (*frame.stack, *frame.locals.values(), *frame.cells.values())}
    held = [*frame.saved[::-1], *(v for table in before or () for v in table.values())]
    return [v for v in held if id(v) not in kept]


def _pending_names(frame: Frame) -> tuple[str, ...]:
    """Keyword names that a KW_NAMES before the current call has set (3.11 and 3.12)."""
    if VERSION >= (3, 13) or frame.ip == 0:
        return ()
    instructions = frame.info.instructions
    before = instructions[frame.ip - 1]
    if before.opname == "PRECALL" and frame.ip > 1:
        before = instructions[frame.ip - 2]
    if before.opname == "KW_NAMES" and instructions[frame.ip].opname in ("CALL", "PRECALL"):
        return before.argval  # type: ignore[return-value]
    return ()


def _came_from(frame: Frame) -> int:
    """The instruction of an exception that leaves ``frame``: one that a handler raises again comes
    from where the handler was entered."""
    ins = frame.instruction
    place = frame.stack[-ins.arg] if ins.opname == "RERAISE" and ins.arg else None
    return place.index if isinstance(place, LastInstruction) else frame.ip
