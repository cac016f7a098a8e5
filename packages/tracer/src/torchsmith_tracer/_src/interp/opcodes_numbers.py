"""Opcodes for operators, comparison, subscripts and formatting."""

from __future__ import annotations

from typing import cast

from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.branches import truth
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import joined
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import FALSE, TRUE, bool_value
from torchsmith_tracer._src.values.containers import SliceValue

_BASE = ("add and_ floordiv lshift matmul mul mod or_ pow rshift sub truediv xor").split()
OPERATORS = tuple(_BASE) + tuple("i" + name.rstrip("_") for name in _BASE)
_UNARY = {"UNARY_NEGATIVE": "neg", "UNARY_POSITIVE": "pos", "UNARY_INVERT": "invert"}
_COMPARE = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}


@opcode("BINARY_OP")
def _binary_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = frame.pop(), frame.pop()
    if ins.arg >= 13:
        frame.stack.append(tx.interp.inplace(OPERATORS[ins.arg], a, b))
    else:
        frame.stack.append(tx.interp.binary(OPERATORS[ins.arg], a, b))


@opcode("UNARY_NEGATIVE", "UNARY_INVERT")
@opcode("UNARY_POSITIVE", until=(3, 11))
def _unary(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.pop().unary(tx, _UNARY[ins.opname]))


@opcode("UNARY_NOT")
def _unary_not(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.negate(frame.pop()))


@opcode("TO_BOOL", since=(3, 13))
def _to_bool(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    if not tx.interp.keeps_truth(value):
        value = bool_value(truth(tx, frame, value, frame.info.instructions[ins.index + 1]))
    frame.stack.append(value)


@opcode("COMPARE_OP")
def _compare_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = frame.pop(), frame.pop()
    result = tx.interp.compare(_COMPARE[cast(str, ins.argval)], a, b)
    frame.stack.append(result)


@opcode("IS_OP")
def _is_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    b, a = frame.pop(), frame.pop()
    frame.stack.append(TRUE if tx.interp.is_same(a, b) != bool(ins.arg) else FALSE)


@opcode("CONTAINS_OP")
def _contains_op(tx: Trace, frame: Frame, ins: Instruction) -> None:
    container, item = frame.pop(), frame.pop()
    result = container.contains(tx, item)
    frame.stack.append(tx.interp.negate(result) if ins.arg else result)


@opcode("BINARY_SUBSCR")
def _binary_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    frame.stack.append(container.getitem(tx, key))


@opcode("STORE_SUBSCR")
def _store_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container, value = frame.pop(), frame.pop(), frame.pop()
    container.setitem(tx, key, value)


@opcode("DELETE_SUBSCR")
def _delete_subscr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    key, container = frame.pop(), frame.pop()
    container.delitem(tx, key)


@opcode("BINARY_SLICE", since=(3, 12))
def _binary_slice(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stop, start, container = frame.pop(), frame.pop(), frame.pop()
    key = SliceValue(start, stop, tx.interp.none)
    frame.stack.append(container.getitem(tx, key))


@opcode("STORE_SLICE", since=(3, 12))
def _store_slice(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stop, start, container, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    container.setitem(tx, SliceValue(start, stop, tx.interp.none), value)


# --- formatting --------------------------------------------------------------------------------

_CONVERT = {0: "", 1: "str", 2: "repr", 3: "ascii"}


def _format(tx: Trace, value: Value, conversion: str, spec: Value | None) -> Value:
    if conversion:
        value = tx.interp.convert(value, conversion)
    return tx.interp.format(value, spec)


@opcode("FORMAT_VALUE", until=(3, 12))
def _format_value(tx: Trace, frame: Frame, ins: Instruction) -> None:
    spec = frame.pop() if ins.arg & 4 else None
    value = frame.pop()
    frame.stack.append(_format(tx, value, _CONVERT[ins.arg & 3], spec))


@opcode("FORMAT_SIMPLE", since=(3, 13))
def _format_simple(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_format(tx, frame.pop(), "", None))


@opcode("FORMAT_WITH_SPEC", since=(3, 13))
def _format_with_spec(tx: Trace, frame: Frame, ins: Instruction) -> None:
    spec = frame.pop()
    frame.stack.append(_format(tx, frame.pop(), "", spec))


@opcode("CONVERT_VALUE", since=(3, 13))
def _convert_value(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.convert(frame.pop(), _CONVERT[ins.arg]))


@opcode("BUILD_STRING")
def _build_string(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(joined(frame.popn(ins.arg)))
