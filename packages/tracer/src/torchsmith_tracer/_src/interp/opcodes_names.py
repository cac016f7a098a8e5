"""Opcodes for globals, names of class bodies, attributes and imports."""

from __future__ import annotations

from typing import cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.code import VERSION, Instruction
from torchsmith_tracer._src.frames.frame import NULL, Frame
from torchsmith_tracer._src.interp.opcodes_locals import NULL_FIRST
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue


def _push_callable(frame: Frame, value: Value) -> None:
    if NULL_FIRST:
        frame.stack += (NULL, value)
    else:
        frame.stack += (value, NULL)


@opcode("LOAD_GLOBAL")
def _load_global(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.globals.load(tx, str(ins.argval))
    if ins.arg & 1:
        _push_callable(frame, value)
    else:
        frame.stack.append(value)


@opcode("STORE_GLOBAL")
def _store_global(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.globals.store(tx, str(ins.argval), frame.pop())


@opcode("DELETE_GLOBAL")
def _delete_global(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.globals.delete(tx, str(ins.argval))


@opcode("LOAD_NAME")
def _load_name(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = str(ins.argval)
    found = None if frame.names is None else tx.interp.namespace_get(frame.names, name)
    frame.stack.append(found if found is not None else frame.globals.load(tx, name))


@opcode("LOAD_FROM_DICT_OR_GLOBALS", since=(3, 12))
def _load_from_dict_or_globals(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = str(ins.argval)
    found = tx.interp.namespace_get(frame.pop(), name)
    frame.stack.append(found if found is not None else frame.globals.load(tx, name))


@opcode("STORE_NAME")
def _store_name(tx: Trace, frame: Frame, ins: Instruction) -> None:
    assert frame.names is not None
    value = frame.pop()
    frame.names.setitem(tx, tx.interp.const(ins.argval), value)


@opcode("DELETE_NAME")
def _delete_name(tx: Trace, frame: Frame, ins: Instruction) -> None:
    assert frame.names is not None
    name = str(ins.argval)
    if tx.interp.namespace_get(frame.names, name) is None:
        raise tx.interp.error(NameError, f"name {name!r} is not defined", name=name)
    frame.names.delitem(tx, tx.interp.const(name))


@opcode("LOAD_LOCALS", since=(3, 12))
def _load_locals(tx: Trace, frame: Frame, ins: Instruction) -> None:
    assert frame.names is not None
    frame.stack.append(frame.names)


@opcode("SETUP_ANNOTATIONS")
def _setup_annotations(tx: Trace, frame: Frame, ins: Instruction) -> None:
    assert frame.names is not None
    if tx.interp.namespace_get(frame.names, "__annotations__") is None:
        key = tx.interp.const("__annotations__")
        frame.names.setitem(tx, key, tx.interp.dict({}))


@opcode("LOAD_ATTR")
def _load_attr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    value = cast("Value", stack.pop()).getattr(tx, cast(str, ins.argval))
    if ins.arg & 1 and _LOW_BIT_IS_METHOD:
        _push_callable(frame, value)
    else:
        stack.append(value)


_LOW_BIT_IS_METHOD = VERSION >= (3, 12)


@opcode("LOAD_METHOD", until=(3, 11))
def _load_method(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.pop().getattr(tx, str(ins.argval))
    frame.stack += (NULL, value)


@opcode("STORE_ATTR")
def _store_attr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    owner = frame.pop()
    value = frame.pop()
    owner.setattr(tx, str(ins.argval), value)


@opcode("DELETE_ATTR")
def _delete_attr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.pop().delattr(tx, str(ins.argval))


@opcode("LOAD_SUPER_ATTR", since=(3, 12))
def _load_super_attr(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    obj = cast("Value", stack.pop())
    cls = cast("Value", stack.pop())
    maker = cast("Value", stack.pop())
    if isinstance(maker, ClassValue) and maker.obj is super:
        receiver = tx.interp.super(cls, obj)
    else:
        receiver = tx.interp.call(maker, [cls, obj] if ins.arg & 2 else [])
    value = receiver.getattr(tx, str(ins.argval))
    if ins.arg & 1:
        _push_callable(frame, value)
    else:
        stack.append(value)


# --- imports -----------------------------------------------------------------------------------


@opcode("IMPORT_NAME")
def _import_name(tx: Trace, frame: Frame, ins: Instruction) -> None:
    fromlist = frame.pop()
    level = frame.pop()
    module = tx.interp.import_module(
        str(ins.argval), frame.globals, fromlist.as_constant(), level.as_constant()
    )
    frame.stack.append(module)


@opcode("IMPORT_FROM")
def _import_from(tx: Trace, frame: Frame, ins: Instruction) -> None:
    module = frame.top()
    frame.stack.append(tx.interp.import_from(module, str(ins.argval)))


@opcode("IMPORT_STAR", until=(3, 11))
def _import_star(tx: Trace, frame: Frame, ins: Instruction) -> None:
    raise Unsupported("unsupported-slot", what="import * inside compiled code")
