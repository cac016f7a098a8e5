"""Opcodes for raising, handling and ``with``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame, Handling
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.values.constants import NONE, bool_value

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.base import Value


def _pop(frame: Frame) -> Value:
    return cast("Value", frame.stack.pop())


@opcode("PUSH_EXC_INFO", safe=True)
def _push_exc_info(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc = _pop(frame)
    previous = tx.interp.handled
    frame.stack += (Handling(exc, previous), exc)
    tx.interp.handled = exc
    if frame.raised is not None:
        frame.handling.append(frame.raised)
        frame.raised = None


@opcode("POP_EXCEPT", safe=True)
def _pop_except(tx: Trace, frame: Frame, ins: Instruction) -> None:
    slot = cast("Handling", frame.stack.pop())
    tx.interp.handled = slot.previous
    if slot in frame.stack:  # what was popped is a copy; the exception is about to be raised again
        frame.stack[frame.stack.index(slot)] = NONE
    if frame.handling:
        frame.left = frame.handling.pop()


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(tx: Trace, frame: Frame, ins: Instruction) -> None:
    kinds = _pop(frame)
    exc = cast("Value", frame.stack[-1])
    frame.stack.append(bool_value(tx.interp.except_clause_matches(exc, kinds)))


@opcode("CHECK_EG_MATCH")
def _check_eg_match(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("unsupported-slot", what="except*")


@opcode("PREP_RERAISE_STAR", until=(3, 11))
def _prep_reraise_star(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("unsupported-slot", what="except*")


@opcode("RERAISE")
def _reraise(tx: Trace, frame: Frame, ins: Instruction) -> None:
    # The pushed instruction index is for line numbers only: the handler is looked up for this one.
    raise ObservedException(_pop(frame))


@opcode("RAISE_VARARGS")
def _raise_varargs(tx: Trace, frame: Frame, ins: Instruction) -> None:
    if ins.arg == 0:
        if tx.interp.handled is None:
            raise tx.interp.error(RuntimeError, "No active exception to reraise")
        raise ObservedException(tx.interp.handled)
    cause = _pop(frame) if ins.arg == 2 else None
    raise tx.interp.raise_value(_pop(frame), cause)


# --- with --------------------------------------------------------------------------------------


@opcode("BEFORE_WITH")
def _before_with(tx: Trace, frame: Frame, ins: Instruction) -> None:
    manager = _pop(frame)
    name = manager.python_type().__name__
    enter = tx.interp.special_method(manager, "__enter__")
    if enter is None:
        message = f"{name!r} object does not support the context manager protocol"
        raise tx.interp.error(TypeError, message)
    leave = tx.interp.special_method(manager, "__exit__")
    if leave is None:
        message = (
            f"{name!r} object does not support the context manager protocol "
            "(missed __exit__ method)"
        )
        raise tx.interp.error(TypeError, message)
    frame.stack += (leave, tx.interp.call(enter, []))


@opcode("WITH_EXCEPT_START")
def _with_except_start(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc = cast("Value", frame.stack[-1])
    leave = cast("Value", frame.stack[-4])
    args = [tx.interp.type_of(exc), exc, NONE]
    frame.stack.append(tx.interp.call(leave, args))
