"""Opcodes for raising, handling and ``with``."""

from __future__ import annotations

from typing import cast

from torchsmith_guards import class_mro

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame, Handling
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import exception_groups
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, bool_value
from torchsmith_tracer._src.values.exceptions import set_context, store


@opcode("PUSH_EXC_INFO", safe=True)
def _push_exc_info(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc = frame.pop()
    frame.stack += (Handling(exc, frame.handled()), exc)
    tx.interp.handled = exc


@opcode("POP_EXCEPT", safe=True)
def _pop_except(tx: Trace, frame: Frame, ins: Instruction) -> None:
    slot = cast("Handling", frame.stack.pop())
    tx.interp.handled = slot.previous or frame.outside
    if slot in frame.stack:  # what was popped is a copy; the exception is about to be raised again
        frame.stack[frame.stack.index(slot)] = NONE


@opcode("CHECK_EXC_MATCH")
def _check_exc_match(tx: Trace, frame: Frame, ins: Instruction) -> None:
    kinds = frame.pop()
    exc = frame.top()
    bases = class_mro(exc.python_type())  # whatever metaclasses answer
    frame.stack.append(
        bool_value(any(kind is base for kind in _except_classes(tx, kinds) for base in bases))
    )


@opcode("CHECK_EG_MATCH")
def _check_eg_match(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc, kinds = frame.popn(2)
    found = tx.builder.wrap_new(exception_groups.match_star).call(tx, [exc, kinds], {})
    rest, match = tx.interp.unpack(found)
    if not tx.interp.is_none(match):
        tx.interp.handled = match
        at = max(i for i, item in enumerate(frame.stack) if isinstance(item, Handling))
        slot = cast("Handling", frame.stack[at])
        frame.stack[at] = Handling(match, slot.previous)
    frame.stack += (rest, match)


@opcode("CALL_INTRINSIC_2", since=(3, 12))
def _intrinsic_2(tx: Trace, frame: Frame, ins: Instruction) -> None:
    if ins.arg != 1:
        raise Unsupported("unsupported-slot", what=f"intrinsic operation {ins.arg}")
    _prep_reraise_star(tx, frame, ins)


@opcode("PREP_RERAISE_STAR", until=(3, 11))
def _prep_reraise_star(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(
        tx.builder.wrap_new(exception_groups.reraise_star).call(tx, frame.popn(2), {})
    )


@opcode("RERAISE")
def _reraise(tx: Trace, frame: Frame, ins: Instruction) -> None:
    # The pushed instruction index is for line numbers only: the handler is looked up for this one.
    raise ObservedException(frame.pop())


@opcode("RAISE_VARARGS")
def _raise_varargs(tx: Trace, frame: Frame, ins: Instruction) -> None:
    if ins.arg == 0:
        handled = tx.interp.being_handled()
        if tx.interp.is_none(handled):
            raise tx.interp.error(RuntimeError, "No active exception to reraise")
        raise ObservedException(handled)
    cause = frame.pop() if ins.arg == 2 else None
    exc = _exception_instance(tx, frame.pop())
    if cause is not None:
        if not tx.interp.is_none(cause):
            cause = _exception_instance(tx, cause, "exception causes must derive from ")
        store(tx, exc, "__cause__", cause)
    set_context(tx, exc)
    raise ObservedException(exc)


def _exception_instance(tx: Trace, exc: Value, text: str = "exceptions must derive from ") -> Value:
    if isinstance(exc, ClassValue) and issubclass(exc.obj, BaseException):
        made = tx.interp.call(exc, [])
        if not issubclass(made.python_type(), BaseException):
            message = (
                f"calling {exc.obj!r} should have returned an instance of BaseException, "
                f"not {made.python_type()!r}"
            )
            raise tx.interp.error(TypeError, message)
        return made
    if not issubclass(exc.python_type(), BaseException):
        raise tx.interp.error(TypeError, f"{text}BaseException")
    return exc


def _except_classes(tx: Trace, kinds: Value) -> tuple[type, ...]:
    base = kinds.base_value()
    items = base.unpack(tx) if hasattr(base, "unpack") else [kinds]
    out: list[type] = []
    for item in items:
        if not isinstance(item, ClassValue) or not issubclass(item.obj, BaseException):
            message = "catching classes that do not inherit from BaseException is not allowed"
            raise tx.interp.error(TypeError, message)
        out.append(item.obj)
    return tuple(out)


# --- with --------------------------------------------------------------------------------------


@opcode("BEFORE_WITH")
def _before_with(tx: Trace, frame: Frame, ins: Instruction) -> None:
    manager = frame.pop()
    name = manager.type_name
    if (enter := tx.interp.special_method(manager, "__enter__")) is None:
        message = f"{name!r} object does not support the context manager protocol"
        raise tx.interp.error(TypeError, message)
    if (leave := tx.interp.special_method(manager, "__exit__")) is None:
        message = (
            f"{name!r} object does not support the context manager protocol "
            "(missed __exit__ method)"
        )
        raise tx.interp.error(TypeError, message)
    frame.stack.append(leave)
    frame.stack.append(tx.interp.call_from(frame, enter, [], {}))


@opcode("WITH_EXCEPT_START")
def _with_except_start(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc = frame.top()
    leave = frame.top(4)
    args = [tx.interp.type_of(exc), exc, exc.getattr(tx, "__traceback__")]
    frame.stack.append(tx.interp.call_from(frame, leave, args, {}))
