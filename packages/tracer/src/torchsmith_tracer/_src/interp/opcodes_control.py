"""Opcodes for jumps, loops, generators and returning."""

from __future__ import annotations

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import VERSION, Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.branches import truth
from torchsmith_tracer._src.interp.registry import RETURN, YIELD, opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import NONE, is_none
from torchsmith_tracer._src.values.generators import GeneratorValue
from torchsmith_tracer._src.values.iterators import IteratorValue


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", safe=True)
def _jump(tx: Trace, frame: Frame, ins: Instruction) -> int:
    return ins.target


@opcode("POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE", until=(3, 11))
@opcode("POP_JUMP_IF_TRUE", since=(3, 12))
def _pop_jump_if_true(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    return ins.target if truth(tx, frame, frame.pop(), ins) else None


@opcode("POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE", until=(3, 11))
@opcode("POP_JUMP_IF_FALSE", since=(3, 12))
def _pop_jump_if_false(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    return None if truth(tx, frame, frame.pop(), ins) else ins.target


@opcode("POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE", until=(3, 11), safe=True)
@opcode("POP_JUMP_IF_NONE", since=(3, 12), safe=True)
def _pop_jump_if_none(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    return ins.target if is_none(frame.pop()) else None


@opcode("POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE", until=(3, 11), safe=True)
@opcode("POP_JUMP_IF_NOT_NONE", since=(3, 12), safe=True)
def _pop_jump_if_not_none(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    return None if is_none(frame.pop()) else ins.target


@opcode("JUMP_IF_TRUE_OR_POP", until=(3, 11))
def _jump_if_true_or_pop(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    if frame.top().bool(tx):
        return ins.target
    frame.stack.pop()
    return None


@opcode("JUMP_IF_FALSE_OR_POP", until=(3, 11))
def _jump_if_false_or_pop(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    if not frame.top().bool(tx):
        return ins.target
    frame.stack.pop()
    return None


# --- loops -----------------------------------------------------------------------------------


@opcode("GET_ITER")
def _get_iter(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.pop().iter(tx))


# From 3.12 on the end of a loop is marked by instructions that FOR_ITER jumps over.
_END_MARKS = {(3, 11): 0, (3, 12): 1}.get(VERSION, 2)


@opcode("FOR_ITER")
def _for_iter(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    value = tx.interp.step(frame.top())
    if value is None:
        frame.stack.pop()
        return ins.target + _END_MARKS
    frame.stack.append(value)
    return None


@opcode("END_FOR", since=(3, 12), until=(3, 12), safe=True)
def _end_for_two(tx: Trace, frame: Frame, ins: Instruction) -> None:
    del frame.stack[-2:]


@opcode("END_FOR", since=(3, 13), safe=True)
def _end_for(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.pop()


# --- returning and generators ----------------------------------------------------------------


@opcode("RETURN_VALUE", safe=True)
def _return_value(tx: Trace, frame: Frame, ins: Instruction) -> int:
    frame.result = frame.pop()
    return RETURN


@opcode("RETURN_CONST", since=(3, 12), safe=True)
def _return_const(tx: Trace, frame: Frame, ins: Instruction) -> int:
    frame.result = tx.interp.code_const(ins.argval)
    return RETURN


@opcode("RETURN_GENERATOR", safe=True)
def _return_generator(tx: Trace, frame: Frame, ins: Instruction) -> None:
    # The generator object was made by the call; its frame starts here, and the POP_TOP that
    # follows drops what the first resumption sends.
    frame.stack.append(NONE)


@opcode("YIELD_VALUE", safe=True)
def _yield_value(tx: Trace, frame: Frame, ins: Instruction) -> int:
    frame.result = frame.pop()
    return YIELD


@opcode("GET_YIELD_FROM_ITER")
def _get_yield_from_iter(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    frame.stack.append(value if isinstance(value, GeneratorValue) else value.iter(tx))


@opcode("SEND")
def _send(tx: Trace, frame: Frame, ins: Instruction) -> int | None:
    value = frame.pop()
    receiver = frame.top()
    try:
        result, done = _send_to(tx, receiver, value)
    except ObservedException as e:
        if not tx.interp.exception_matches(e.exc, StopIteration):
            raise
        result, done = e.exc.getattr(tx, "value"), True
    if not done:
        frame.stack.append(result)
        return None
    if VERSION < (3, 12):
        frame.stack.pop()
    frame.stack.append(result)
    return ins.target


def _send_to(tx: Trace, receiver: Value, value: Value) -> tuple[Value, bool]:
    if isinstance(receiver, GeneratorValue):
        return receiver.resume(tx, value)
    if isinstance(receiver, IteratorValue) and is_none(value):
        item = receiver.step(tx)
        return (NONE, True) if item is None else (item, False)
    if is_none(value):
        return receiver.next(tx), False
    return tx.interp.call(receiver.getattr(tx, "send"), [value]), False


@opcode("END_SEND", since=(3, 12), safe=True)
def _end_send(tx: Trace, frame: Frame, ins: Instruction) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW", since=(3, 12))
def _cleanup_throw(tx: Trace, frame: Frame, ins: Instruction) -> None:
    exc = frame.pop()
    del frame.stack[-2:]
    if not tx.interp.exception_matches(exc, StopIteration):
        raise ObservedException(exc)
    frame.stack += (NONE, exc.getattr(tx, "value"))


@opcode("ASYNC_GEN_WRAP", until=(3, 11))
@opcode("GET_AITER", "GET_ANEXT", "GET_AWAITABLE", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR")
def _async(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("unsupported-slot", what="async code")
