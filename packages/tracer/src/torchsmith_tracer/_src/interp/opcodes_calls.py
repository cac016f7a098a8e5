"""Opcodes for calls, making functions and classes, and intrinsics."""

from __future__ import annotations

import types
from typing import cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.code import VERSION, Instruction
from torchsmith_tracer._src.frames.frame import NULL, Frame
from torchsmith_tracer._src.interp.opcodes_locals import NULL_FIRST
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.exceptions import leaving_generator
from torchsmith_tracer._src.values.functions import CellValue, FunctionValue
from torchsmith_tracer._src.values.mappings import DictValue


def _operands(frame: Frame, n: int) -> tuple[Value, list[Value]]:
    """Pop callable, null slot or self, and ``n`` arguments."""
    stack = frame.stack
    base = len(stack) - n - 2
    first, second, *args = stack[base:]
    del stack[base:]
    if NULL_FIRST:
        if first is NULL:
            return second, args  # type: ignore[return-value]
    elif second is NULL:
        return first, args  # type: ignore[return-value]
    return first, [second, *args]  # type: ignore[return-value, list-item]


@opcode("CALL", since=(3, 13))
def _call(tx: Trace, frame: Frame, ins: Instruction) -> None:
    fn, args = _operands(frame, ins.arg)
    frame.stack.append(tx.interp.call_from(frame, fn, args, {}))


@opcode("CALL", until=(3, 12))
def _call_with_names(tx: Trace, frame: Frame, ins: Instruction) -> None:
    fn, args = _operands(frame, ins.arg)
    names, frame.kw_names = frame.kw_names, ()
    frame.stack.append(tx.interp.call_from(frame, fn, args, _take_named(args, names)))


def _take_named(args: list[Value], names: tuple[str, ...]) -> dict[str, Value]:
    """The last arguments, which have names."""
    first = len(args) - len(names)
    kwargs = dict(zip(names, args[first:], strict=True))
    del args[first:]
    return kwargs


@opcode("CALL_KW", since=(3, 13))
def _call_kw(tx: Trace, frame: Frame, ins: Instruction) -> None:
    names = cast("tuple[str, ...]", frame.pop().as_constant())
    fn, args = _operands(frame, ins.arg)
    frame.stack.append(tx.interp.call_from(frame, fn, args, _take_named(args, names)))


@opcode("CALL_FUNCTION_EX")
def _call_function_ex(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    mapping = cast("Value", stack.pop()) if ins.arg & 1 else None
    sequence = cast("Value", stack.pop())
    if VERSION < (3, 13):
        fn = cast("Value", stack.pop())
        stack.pop()
    else:
        stack.pop()
        fn = cast("Value", stack.pop())
    kwargs = {} if mapping is None else tx.interp.keywords(mapping)
    if not tx.interp.is_iterable(sequence):
        text = tx.interp.function_text(fn)
        message = f"{text} argument after * must be an iterable, not {sequence.type_name}"
        raise tx.interp.error(TypeError, message)
    args = tx.interp.unpack(sequence)
    stack.append(tx.interp.call_from(frame, fn, args, kwargs))


# --- functions ---------------------------------------------------------------------------------

_DEFAULTS, _KWDEFAULTS, _ANNOTATIONS, _CLOSURE = 1, 2, 4, 8


@opcode("MAKE_FUNCTION", until=(3, 12))
def _make_function(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    code = cast("types.CodeType", cast("Value", stack.pop()).as_constant())
    fn = FunctionValue(code, frame.globals)
    for flag in (_CLOSURE, _ANNOTATIONS, _KWDEFAULTS, _DEFAULTS):
        if ins.arg & flag:
            _set_attribute(tx, fn, flag, cast("Value", stack.pop()))
    stack.append(fn)


@opcode("MAKE_FUNCTION", since=(3, 13))
def _make_plain_function(tx: Trace, frame: Frame, ins: Instruction) -> None:
    code = cast("types.CodeType", frame.pop().as_constant())
    frame.stack.append(FunctionValue(code, frame.globals))


@opcode("SET_FUNCTION_ATTRIBUTE", since=(3, 13))
def _set_function_attribute(tx: Trace, frame: Frame, ins: Instruction) -> None:
    fn = cast("FunctionValue", frame.stack.pop())
    _set_attribute(tx, fn, ins.arg, frame.pop())
    frame.stack.append(fn)


def _set_attribute(tx: Trace, fn: FunctionValue, flag: int, value: Value) -> None:
    if flag == _DEFAULTS:
        fn.set_defaults(tuple(tx.interp.unpack(value)))
    elif flag == _KWDEFAULTS:
        assert isinstance(value, DictValue)
        fn.set_kwdefaults({str(k): v for k, (_, v) in value.table.items()})
    elif flag == _CLOSURE:
        fn.closure = tuple(cast("list[CellValue]", tx.interp.unpack(value)))
    else:
        fn.annotations = _annotations(tx, value)


def _annotations(tx: Trace, value: Value) -> Value:
    """Annotations come as a flat tuple of names and values."""
    if not isinstance(value, TupleValue):
        return value
    flat = value.items
    return tx.interp.dict_of(zip(flat[::2], flat[1::2], strict=True))


@opcode("LOAD_BUILD_CLASS", safe=True)
def _load_build_class(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.builder.wrap_new(__build_class__))


# --- intrinsics --------------------------------------------------------------------------------


@opcode("CALL_INTRINSIC_1", since=(3, 12))
def _intrinsic_1(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    if ins.arg == 3:
        frame.stack.append(leaving_generator(tx, value))
    elif ins.arg == 5:
        frame.stack.append(value.unary(tx, "pos"))
    elif ins.arg == 6:
        frame.stack.append(TupleValue(cast("ListValue", value).items))
    else:
        raise Unsupported("unsupported-slot", what=f"intrinsic operation {ins.arg}")


@opcode("PRINT_EXPR", until=(3, 11))
def _print_expr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("print")
