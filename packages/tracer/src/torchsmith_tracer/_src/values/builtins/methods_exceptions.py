"""Methods of exceptions and exception groups."""

from __future__ import annotations

import types
from typing import cast

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import copying, exception_groups
from torchsmith_tracer._src.values.builtins.registry import constructor, method, traced_method
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.exceptions import (
    BUILTIN_EXCEPTIONS,
    ExceptionValue,
    builtin_base,
    set_field,
)
from torchsmith_tracer._src.values.frame_object import FrameValue
from torchsmith_tracer._src.values.python_instances import ObjectValue
from torchsmith_tracer._src.values.tracebacks import TracebackValue

traced_method(BaseException, "__reduce__", copying.exception_reduce)
traced_method(BaseException, "__setstate__", copying.exception_setstate)
traced_method(OSError, "__reduce__", copying.os_error_reduce)
traced_method(ImportError, "__reduce__", copying.import_error_reduce)
if "__getstate__" in vars(AttributeError):
    traced_method(AttributeError, "__getstate__", copying.attribute_error_getstate)
    traced_method(AttributeError, "__reduce__", copying.attribute_error_reduce)
traced_method(BaseExceptionGroup, "split", exception_groups.split)
traced_method(BaseExceptionGroup, "subgroup", exception_groups.subgroup)
traced_method(BaseExceptionGroup, "derive", exception_groups.derive)


def _init(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value | None:
    if not isinstance(self, ExceptionValue):
        return None
    self.initialize(tx, args, kwargs)
    return NONE


for _cls in BUILTIN_EXCEPTIONS:
    if "__init__" in vars(_cls):
        method(_cls, "__init__")(_init)


@method(BaseException, "with_traceback")
def _with_traceback(tx: Trace, self: Value, tb: Value, /) -> Value:
    assert isinstance(self, ObjectValue)
    set_field(tx, self, "__traceback__", tb)
    return self


@method(BaseException, "add_note")
def _add_note(tx: Trace, self: Value, note: Value, /) -> Value:
    if not issubclass(note.python_type(), str):
        return tx.interp.fold(Exception().add_note, tx.interp.concrete(note))  # it refuses
    assert isinstance(self, ObjectValue)
    if (notes := self.instance_get(tx, "__notes__")) is None:
        notes = ListValue([])
        self.setattr(tx, "__notes__", notes)
    if not issubclass(notes.python_type(), list):
        raise tx.interp.error(TypeError, "Cannot add note: __notes__ is not a list")
    tx.interp.call(notes.getattr(tx, "append"), [note])
    return NONE


def _args(tx: Trace, exc: Value) -> list[Value]:
    return tx.interp.unpack(exc.getattr(tx, "args"))


# Their classes have texts of their own, which are nothing but those of the arguments.
_OF_ARGUMENTS = [c.__str__ for c in (BaseException, KeyError, AttributeError, NameError)]


@method(BaseException, "__str__")
def _str(tx: Trace, self: Value, /) -> Value | None:
    cls = self.python_type()
    base = builtin_base(cls)
    if issubclass(base, BaseExceptionGroup):
        return tx.builder.wrap_new(exception_groups.text).call(tx, [self], {})
    if base.__str__ not in _OF_ARGUMENTS:
        return (
            tx.interp.fold(lambda: str(self.real(tx))) if isinstance(self, ExceptionValue) else None
        )
    items = _args(tx, self)
    if not items:
        return ConstantValue("")
    if len(items) > 1:
        return tx.interp.str_of(TupleValue(items))
    if issubclass(cls, KeyError):
        return tx.interp.repr_of(items[0])
    return tx.interp.str_of(items[0])


for _cls in BUILTIN_EXCEPTIONS - {BaseException}:
    if "__str__" in vars(_cls):
        method(_cls, "__str__")(_str)


@method(BaseException, "__repr__")
def _repr(tx: Trace, self: Value, /) -> Value:
    parts = [str(tx.interp.concrete(tx.interp.repr_of(v))) for v in _args(tx, self)]
    return ConstantValue(f"{self.python_type().__name__}({', '.join(parts)})")


method(types.FrameType, "clear")(lambda tx, self, /: cast("FrameValue", self).clear(tx))


@constructor(types.TracebackType)
def _traceback(
    tx: Trace, tb_next: Value, tb_frame: Value, tb_lasti: Value, tb_lineno: Value
) -> Value | None:
    if not isinstance(tb_frame, FrameValue):
        return None
    if not tx.interp.is_none(tb_next) and tb_next.python_type() is not types.TracebackType:
        raise tx.interp.error(
            TypeError, f"expected traceback object or None, got '{tb_next.type_name}'"
        )
    offset, line = tx.interp.index(tb_lasti), tx.interp.index(tb_lineno)
    return TracebackValue(tb_frame.frame, tb_next, offset, line)
