"""Tracebacks of exceptions that were raised while tracing.

Such an exception has passed no real frame. One entry is kept for each frame of the program's that
it did pass, as CPython makes them, and becomes a real entry where the exception becomes a real one:
its frame is that of a function with the name, file, positions and globals of the user's, which was
never run. It has the local variables that lead to a suspended generator, and all that can be made
once more if the exception leaves the traced code: a debugger shows them.
"""

from __future__ import annotations

import types
from functools import lru_cache
from opcode import opmap
from typing import TYPE_CHECKING

from torchsmith_guards import class_dict, class_mro

from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.frame_object import frame_object

if TYPE_CHECKING:
    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.frames.frame import Frame
    from torchsmith_tracer._src.trace import Trace

_GENERATOR, _KEPT_FLAGS = 0x20, 0x03


class TracebackValue(BuiltinObject):
    """An entry: ``frame`` at byte ``offset`` of its code, and the ``next`` entry inwards."""

    __slots__ = tuple("inner frame line offset".split())  # as they are let go of
    cls = types.TracebackType

    def __init__(
        self, frame: Frame, after: Value, offset: int | None = None, line: int | None = None
    ) -> None:
        super().__init__()
        self.frame, self.inner = frame, after
        self.offset = frame.instruction.offset if offset is None else offset
        self.line = frame.info.position(frame.ip)[0] if offset is None else line

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "tb_next":
            return self.inner
        if name == "tb_frame":
            return frame_object(self.frame)
        if name in ("tb_lineno", "tb_lasti"):
            return tx.interp.const(self.line if name == "tb_lineno" else self.offset)
        return super().c_attribute(tx, name, descriptor)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if name != "tb_next":
            super().setattr(tx, name, value)
            return
        if not tx.interp.is_none(value) and value.python_type() is not types.TracebackType:
            raise tx.interp.error(TypeError, f"expected traceback object, got '{value.type_name}'")
        entry: object = value
        while isinstance(entry, TracebackValue):
            if entry is self:
                raise tx.interp.error(ValueError, "traceback loop detected")
            entry = entry.inner
        tx.journal.assign(self, "inner", value)

    def delattr(self, tx: Trace, name: str) -> None:
        if name == "tb_next":
            raise tx.interp.error(TypeError, "can't delete tb_next attribute")
        super().setattr(tx, name, self)

    def reconstruct(self, cg: Emitter) -> str:
        frame = self.frame
        held = cg.kept(self)
        maker = cg.bound(frame_maker(frame, tuple(held)), "frame_maker")
        place = (self.offset, self.line or frame.info.code.co_firstlineno)
        return cg.call(_entry, maker, *map(cg.const, place), *held.values())

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.inner is not NONE:
            cg.set_attr(self, "tb_next", self.inner)


def can_show(variable: Value) -> bool:
    """Whether a frame may hold a variable that nobody reads: an iterator may not be rebuilt."""
    classes = class_mro(variable.python_type())
    return not any(c is types.CellType or "__next__" in class_dict(c) for c in classes)


def frame_maker(frame: Frame, held: tuple[str, ...]) -> types.FunctionType:
    """What makes a real frame for ``frame``, of the variables ``held``, inside of a generator."""
    return types.FunctionType(_without_body(frame.info.code, held), frame.globals.obj)


def lead_to(make: types.FunctionType, error: BaseException, *held: object) -> None:
    """Lead the traceback of ``error`` to a frame that holds what its own would have held."""
    entry = error.__traceback__
    if entry is not None:
        made = _entry(make, entry.tb_lasti, entry.tb_lineno, *held)
        made.tb_next = entry.tb_next
        error.__traceback__ = made


@lru_cache(maxsize=1000)
def _without_body(code: types.CodeType, held: tuple[str, ...]) -> types.CodeType:
    """A generator that does nothing at the same positions: its frame has no caller. Its
    parameters are ``held``."""
    body = [opmap["RETURN_GENERATOR"], 0, opmap["POP_TOP"], 0, opmap["RESUME"], 0]
    body += [opmap["NOP"], 0] * ((len(code.co_code) - len(body)) // 2)
    return code.replace(
        co_code=bytes(body),
        co_exceptiontable=b"",
        co_flags=code.co_flags & _KEPT_FLAGS | _GENERATOR,
        co_varnames=held,
        co_cellvars=(),
        co_freevars=(),
        co_stacksize=max(code.co_stacksize, 1),
        co_nlocals=len(held),
        co_argcount=len(held),
        co_posonlyargcount=0,
        co_kwonlyargcount=0,
    )


def _entry(make: types.FunctionType, offset: int, line: int, *held: object) -> types.TracebackType:
    return types.TracebackType(None, make(*held).gi_frame, offset, line)
