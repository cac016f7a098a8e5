"""Opcodes that build and unpack containers."""

from __future__ import annotations

from typing import cast

from torchsmith_tracer._src.frames.code import VERSION, Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import ListValue, SliceValue, TupleValue
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.sets import SetValue


@opcode("BUILD_TUPLE", safe=True)
def _build_tuple(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(TupleValue(frame.popn(ins.arg)))


@opcode("BUILD_LIST", safe=True)
def _build_list(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(ListValue(frame.popn(ins.arg)))


@opcode("BUILD_SET")
def _build_set(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(SetValue.of(tx, frame.popn(ins.arg)))


@opcode("BUILD_MAP")
def _build_map(tx: Trace, frame: Frame, ins: Instruction) -> None:
    flat = frame.popn(2 * ins.arg)
    frame.stack.append(tx.interp.dict_of(zip(flat[::2], flat[1::2], strict=True)))


@opcode("BUILD_CONST_KEY_MAP")
def _build_const_key_map(tx: Trace, frame: Frame, ins: Instruction) -> None:
    keys = cast("TupleValue", frame.stack.pop()).items
    frame.stack.append(tx.interp.dict_of(zip(keys, frame.popn(ins.arg), strict=True)))


@opcode("BUILD_SLICE", safe=True)
def _build_slice(tx: Trace, frame: Frame, ins: Instruction) -> None:
    parts = frame.popn(ins.arg)
    step = parts[2] if ins.arg == 3 else tx.interp.none
    frame.stack.append(SliceValue(parts[0], parts[1], step))


# The target of the following opcodes is the container of a display or comprehension, which the
# program cannot see yet, or a literal list that is being extended.


@opcode("LIST_APPEND")
def _list_append(tx: Trace, frame: Frame, ins: Instruction) -> None:
    item = frame.pop()
    cast("ListValue", frame.stack[-ins.arg]).append(tx, item)


@opcode("LIST_EXTEND")
def _list_extend(tx: Trace, frame: Frame, ins: Instruction) -> None:
    items = frame.pop()
    target = cast("ListValue", frame.stack[-ins.arg])
    new = tx.interp.unpack(items, "Value after * must be an iterable, not {}")
    target.extend(tx, new)


@opcode("SET_ADD")
def _set_add(tx: Trace, frame: Frame, ins: Instruction) -> None:
    item = frame.pop()
    cast("SetValue", frame.stack[-ins.arg]).add(tx, item)


@opcode("SET_UPDATE")
def _set_update(tx: Trace, frame: Frame, ins: Instruction) -> None:
    items = frame.pop()
    cast("SetValue", frame.stack[-ins.arg]).update(tx, items)


@opcode("MAP_ADD")
def _map_add(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    key = frame.pop()
    cast("DictValue", frame.stack[-ins.arg]).put(tx, key, value)


@opcode("DICT_UPDATE")
def _dict_update(tx: Trace, frame: Frame, ins: Instruction) -> None:
    source = frame.pop()
    target = cast("DictValue", frame.stack[-ins.arg])
    if not tx.interp.is_mapping(source):
        raise tx.interp.error(TypeError, f"{source.type_name!r} object is not a mapping")
    tx.interp.dict_update(target, source)


@opcode("DICT_MERGE")
def _dict_merge(tx: Trace, frame: Frame, ins: Instruction) -> None:
    source = frame.pop()
    target = cast("DictValue", frame.stack[-ins.arg])
    # The callee sits below the positional arguments; from 3.13 on the null slot is between them.
    below = 3 if VERSION >= (3, 13) else 2
    function = cast("Value", frame.stack[-(below + ins.arg)])
    tx.interp.merge_keywords(function, target, source)


@opcode("LIST_TO_TUPLE", until=(3, 11))
def _list_to_tuple(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(TupleValue(cast("ListValue", frame.stack.pop()).items))


# --- unpacking ---------------------------------------------------------------------------------


@opcode("UNPACK_SEQUENCE")
def _unpack_sequence(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    items = tx.interp.unpack_exactly(value, ins.arg)
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def _unpack_ex(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    before, after = ins.arg & 0xFF, ins.arg >> 8
    items = tx.interp.unpack(value, "cannot unpack non-iterable {} object")
    if len(items) < before + after:
        message = (
            f"not enough values to unpack (expected at least {before + after}, got {len(items)})"
        )
        raise tx.interp.error(ValueError, message)
    end = len(items) - after
    frame.stack.extend(reversed(items[end:]))
    frame.stack.append(ListValue(items[before:end]))
    frame.stack.extend(reversed(items[:before]))
