"""Opcodes for the value stack, constants, fast locals and cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.frames.code import VERSION, Instruction, own_cells
from torchsmith_tracer._src.frames.frame import NULL, Frame, Null
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.functions import CellValue
from torchsmith_tracer._src.values.lazy import LazyValue, realize

NULL_FIRST = VERSION < (3, 13)  # where calls put the empty slot: before or after the callable


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "COPY_FREE_VARS", safe=True)
def _nop(tx: Trace, frame: Frame, ins: Instruction) -> None:
    pass


@opcode("POP_TOP", safe=True)
def _pop_top(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.pop()


@opcode("PUSH_NULL", safe=True)
def _push_null(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(NULL)


@opcode("COPY", safe=True)
def _copy(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.stack[-ins.arg])


@opcode("SWAP", safe=True)
def _swap(tx: Trace, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]


@opcode("LOAD_CONST", safe=True)
def _load_const(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.code_const(ins.argval))


@opcode("KW_NAMES", until=(3, 12), safe=True)
def _kw_names(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.kw_names = cast("tuple[str, ...]", ins.argval)


@opcode("LOAD_ASSERTION_ERROR", safe=True)
def _load_assertion_error(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.const(AssertionError))


# --- fast locals -----------------------------------------------------------------------------


def _unbound(tx: Trace, frame: Frame, name: str) -> Exception:
    # These opcodes are the most frequent ones and change nothing before they raise: the state that
    # the interpreter would have kept is that of now.
    frame.marks, frame.saved = tx.checkpoint(), frame.stack.copy()
    message = f"cannot access local variable {name!r} where it is not associated with a value"
    return tx.interp.error(UnboundLocalError, message)  # its ``name`` is None


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", safe=True)
def _load_fast(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = ins.argval
    try:
        value = frame.locals[name]  # type: ignore[index]
    except KeyError:
        raise _unbound(tx, frame, str(name)) from None
    frame.stack.append(realize(tx, value) if type(value) is LazyValue else value)


@opcode("STORE_FAST", safe=True)
def _store_fast(tx: Trace, frame: Frame, ins: Instruction) -> None:
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(ins.argval, None)  # type: ignore[call-overload]
    else:
        frame.locals[ins.argval] = value  # type: ignore[assignment, index]


def _load(tx: Trace, frame: Frame, name: str) -> Value:
    if (value := frame.locals.get(name)) is None:
        raise _unbound(tx, frame, name)
    return realize(tx, value)


def _store(frame: Frame, name: str) -> None:
    value = frame.stack.pop()
    if isinstance(value, Null):
        frame.locals.pop(name, None)
    else:
        frame.locals[name] = value  # type: ignore[assignment]


# The same for names whose slot may hold a cell.


def _load_slot(tx: Trace, frame: Frame, name: str) -> Value:
    if (value := frame.locals.get(name) or frame.cells.get(name)) is None:
        raise _unbound(tx, frame, name)
    return realize(tx, value)


def _store_slot(frame: Frame, name: str) -> None:
    value = frame.stack[-1]
    if isinstance(value, CellValue):
        frame.cells[name] = value
        frame.locals.pop(name, None)
        frame.stack.pop()
        return
    frame.cells.pop(name, None)
    _store(frame, name)


def _take_slot(frame: Frame, name: str) -> Value | Null:
    value = frame.locals.pop(name, None)
    return frame.cells.pop(name, NULL) if value is None else value


@opcode("LOAD_FAST/cell", "LOAD_FAST_CHECK/cell")
def _load_fast_cell(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_load_slot(tx, frame, str(ins.argval)))


@opcode("STORE_FAST/cell")
def _store_fast_cell(tx: Trace, frame: Frame, ins: Instruction) -> None:
    _store_slot(frame, str(ins.argval))


def _register(
    kind: str,
    load: Callable[[Trace, Frame, str], Value],
    store: Callable[[Frame, str], None],
    take: Callable[[Frame, str], Value | Null],
) -> None:
    """The other opcodes, for slots that are read and written in these ways."""

    @opcode("DELETE_FAST" + kind)
    def delete(tx: Trace, frame: Frame, ins: Instruction) -> None:
        load(tx, frame, str(ins.argval))
        take(frame, str(ins.argval))

    @opcode("LOAD_FAST_AND_CLEAR" + kind, since=(3, 12), safe=True)
    def load_and_clear(tx: Trace, frame: Frame, ins: Instruction) -> None:
        frame.stack.append(take(frame, str(ins.argval)))


_register("", _load, _store, lambda frame, name: frame.locals.pop(name, NULL))
_register("/cell", _load_slot, _store_slot, _take_slot)


# --- cells -----------------------------------------------------------------------------------


@opcode("MAKE_CELL", safe=True)
def _make_cell(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = str(ins.argval)
    frame.cells[name] = CellValue(frame.locals.pop(name, None))


@opcode("LOAD_CLOSURE", until=(3, 12), safe=True)
def _load_closure(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(_cell(frame, str(ins.argval)))


def _cell(frame: Frame, name: str) -> CellValue:
    if (cell := frame.cells.get(name)) is None:
        raise InternalError(f"no cell {name!r} in {frame.info.code.co_qualname}")
    return cell


def load_cell(tx: Trace, frame: Frame, name: str) -> Value:
    """Contents of a cell or free variable; NameError or UnboundLocalError when empty."""
    if (value := _cell(frame, name).load(tx)) is None:
        if name in own_cells(frame.info.code):
            raise _unbound(tx, frame, name)
        message = (
            f"cannot access free variable {name!r} where it is not associated with a value "
            "in enclosing scope"
        )
        raise tx.interp.error(NameError, message, name=name)
    return value


@opcode("LOAD_DEREF")
def _load_deref(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(load_cell(tx, frame, str(ins.argval)))


@opcode("STORE_DEREF")
def _store_deref(tx: Trace, frame: Frame, ins: Instruction) -> None:
    _cell(frame, str(ins.argval)).store(tx, frame.pop())


@opcode("DELETE_DEREF")
def _delete_deref(tx: Trace, frame: Frame, ins: Instruction) -> None:
    load_cell(tx, frame, str(ins.argval))
    _cell(frame, str(ins.argval)).store(tx, None)


@opcode("LOAD_CLASSDEREF", until=(3, 11))
def _load_classderef(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = str(ins.argval)
    assert frame.names is not None
    found = tx.interp.namespace_get(frame.names, name)
    frame.stack.append(found if found is not None else load_cell(tx, frame, name))


@opcode("LOAD_FROM_DICT_OR_DEREF", since=(3, 12))
def _load_from_dict_or_deref(tx: Trace, frame: Frame, ins: Instruction) -> None:
    name = str(ins.argval)
    space = frame.pop()
    found = tx.interp.namespace_get(space, name)
    frame.stack.append(found if found is not None else load_cell(tx, frame, name))
