"""Opcodes for operators, comparison, subscripts and formatting."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.values.constants import FALSE, TRUE, bool_value
from torchsmith_tracer._src.values.containers import SliceValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.base import Value

_BASE = ("add and_ floordiv lshift matmul mul mod or_ pow rshift sub truediv xor").split()
OPERATORS = tuple(_BASE) + tuple("i" + name.rstrip("_") for name in _BASE)
_COMPARE = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


def _pop(frame: Frame) -> Value:
    return cast("Value", frame.stack.pop())


@opcode("BINARY_OP")
def _binary_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = _pop(frame), _pop(frame)
    if ins.arg >= 13:
        frame.stack.append(tx.interp.inplace(OPERATORS[ins.arg], a, b))
    else:
        frame.stack.append(tx.interp.binary(OPERATORS[ins.arg], a, b))


@opcode("UNARY_NEGATIVE")
def _unary_negative(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_pop(frame).unary(tx, "neg"))


@opcode("UNARY_POSITIVE", until=(3, 11))
def _unary_positive(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_pop(frame).unary(tx, "pos"))


@opcode("UNARY_INVERT")
def _unary_invert(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_pop(frame).unary(tx, "invert"))


@opcode("UNARY_NOT")
def _unary_not(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.negate(_pop(frame)))


@opcode("TO_BOOL", since=(3, 13))
def _to_bool(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = _pop(frame)
    frame.stack.append(value if tx.interp.keeps_truth(value) else bool_value(value.bool(tx)))


@opcode("COMPARE_OP")
def _compare_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = _pop(frame), _pop(frame)
    result = tx.interp.compare(_COMPARE[cast(str, ins.argval)], a, b)
    frame.stack.append(result)


@opcode("IS_OP")
def _is_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = _pop(frame), _pop(frame)
    same = tx.interp.is_same(a, b)
    if not same and a.source is not None and b.source is not None:
        tx.builder.distinct(a, b)
    frame.stack.append(TRUE if same != bool(ins.arg) else FALSE)


@opcode("CONTAINS_OP")
def _contains_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    container, item = _pop(frame), _pop(frame)
    result = container.contains(tx, item)
    frame.stack.append(tx.interp.negate(result) if ins.arg else result)


@opcode("BINARY_SUBSCR")
def _binary_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container = _pop(frame), _pop(frame)
    frame.stack.append(container.getitem(tx, key))


@opcode("STORE_SUBSCR")
def _store_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container, value = _pop(frame), _pop(frame), _pop(frame)
    container.setitem(tx, key, value)


@opcode("DELETE_SUBSCR")
def _delete_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container = _pop(frame), _pop(frame)
    container.delitem(tx, key)


@opcode("BINARY_SLICE", since=(3, 12))
def _binary_slice(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stop, start, container = _pop(frame), _pop(frame), _pop(frame)
    key = SliceValue(start, stop, tx.interp.none)
    frame.stack.append(container.getitem(tx, key))


@opcode("STORE_SLICE", since=(3, 12))
def _store_slice(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stop, start, container, value = _pop(frame), _pop(frame), _pop(frame), _pop(frame)
    container.setitem(tx, SliceValue(start, stop, tx.interp.none), value)


# --- formatting --------------------------------------------------------------------------------

_CONVERT = {0: "", 1: "str", 2: "repr", 3: "ascii"}


def _format(tx: Trace, value: Value, conversion: str, spec: Value | None) -> Value:
    if conversion:
        value = tx.interp.convert(value, conversion)
    return tx.interp.format(value, spec)


@opcode("FORMAT_VALUE", until=(3, 12))
def _format_value(tx: Trace, frame: Frame, ins: Instruction) -> None:
    spec = _pop(frame) if ins.arg & 4 else None
    value = _pop(frame)
    frame.stack.append(_format(tx, value, _CONVERT[ins.arg & 3], spec))


@opcode("FORMAT_SIMPLE", since=(3, 13))
def _format_simple(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_format(tx, _pop(frame), "", None))


@opcode("FORMAT_WITH_SPEC", since=(3, 13))
def _format_with_spec(tx: Trace, frame: Frame, ins: Instruction) -> None:
    spec = _pop(frame)
    frame.stack.append(_format(tx, _pop(frame), "", spec))


@opcode("CONVERT_VALUE", since=(3, 13))
def _convert_value(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.convert(_pop(frame), _CONVERT[ins.arg]))


@opcode("BUILD_STRING")
def _build_string(tx: Trace, frame: Frame, ins: Instruction) -> None:
    parts = frame.stack[len(frame.stack) - ins.arg :]
    del frame.stack[len(frame.stack) - ins.arg :]
    texts = [str(cast("Value", part).as_constant()) for part in parts]
    frame.stack.append(tx.interp.const("".join(texts)))
