"""Which frames compute on the host alone: with NumPy and Python, on numbers, without any tensor.

There is nothing to compile in what is left of such a function after a break. So it goes on natively
to its end, where each further draw and branch would be a break of its own, and its caller is
resumed in compiled code.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from torchsmith_tracer._src.breaks.report import BreakReport
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.frame import Frame, Null
from torchsmith_tracer._src.frames.library import is_library_module
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import RangeValue, SequenceValue
from torchsmith_tracer._src.values.functions import (
    BoundMethodValue,
    BuiltinValue,
    CellValue,
    FunctionValue,
)
from torchsmith_tracer._src.values.iterators import RangeIterator
from torchsmith_tracer._src.values.namespaces import PyModuleValue
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue
from torchsmith_tracer._src.values.opaque import OpaqueValue
from torchsmith_tracer._src.values.python_instances import ObjectValue
from torchsmith_tracer._src.values.symnum import SymNumValue

_ANYTHING = BuiltinValue | ConstantValue | SymNumValue | ArrayValue | RangeValue | RangeIterator
_OF_FRAMES = ("raises", "inline-depth")
# Of torch, or looking at the frames around.
_REFUSED = ("torch", "warnings", "_warnings", "inspect", "traceback", "sys")
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_MODULE: Any = vars(type)["__module__"]
_DATA = (int, float, complex, str, bytes, type(None))


def break_of(frame: Frame, signal: Unsupported) -> Unsupported:
    """What to report of a break in a frame that was called by traced code."""
    if signal.kind in _OF_FRAMES or not _is_host_only(frame):
        return signal
    what, name = BreakReport.of(signal, ()).what, frame.info.code.co_qualname
    return Unsupported("host-function", what=what, function=name, native=True)


def _is_host_only(frame: Frame) -> bool:
    """Whether neither the variables of ``frame`` nor what its code names can lead to a tensor."""
    held = [*frame.locals.values(), *frame.cells.values(), *frame.stack]
    seen: set[types.CodeType] = set()
    if not _names_host(frame.info.code, frame.globals.obj, seen):
        return False
    return all(_is_host(value, seen) for value in held)


def _is_host(value: object, seen: set[types.CodeType]) -> bool:
    match value:
        case Null() | None:
            return True
        case SequenceValue():
            return not value.growing and all(_is_host(item, seen) for item in value.items)
        case CellValue():
            return _is_host(value.contents, seen) if value.contents else value.obj is None
        case BoundMethodValue():
            return _is_host(value.func, seen) and _is_host(value.self_value, seen)
        case FunctionValue():
            if value.code in seen:
                return True
            named = _names_host(value.code, value.globals.obj, seen)
            return named and all(_is_host(cell, seen) for cell in value.closure)
        case PyModuleValue():
            return _is_host_object(value.obj, seen)
        case OpaqueValue() | ObjectValue():
            return _is_host_object(value.obj, seen)
    return isinstance(value, Value) and isinstance(value, _ANYTHING)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _names_host(code: types.CodeType, space: object, seen: set[types.CodeType]) -> bool:
    """Whether the globals that the code may read (attributes of the same name count) are none of
    torch, nor objects of the program's."""
    assert isinstance(space, dict)
    if code in seen:
        return True
    seen.add(code)
    names = {name for inner in _codes(code) for name in inner.co_names}
    return all(_is_host_object(space[name], seen) for name in names if name in space)


def _is_host_object(obj: object, seen: set[types.CodeType]) -> bool:
    """Asks no code of the program's, which attributes and ``__class__`` may be."""
    kind = type(obj)
    if kind is types.FunctionType:
        assert isinstance(obj, types.FunctionType)
        if not is_library_module(obj.__module__):
            return obj.__closure__ is None and _names_host(obj.__code__, obj.__globals__, seen)
    if kind in _DATA:
        return True
    name = _MODULE.__get__(kind)
    if kind is types.ModuleType:
        name = vars(obj).get("__name__")
    elif issubclass(kind, type):
        name = _MODULE.__get__(obj)
    elif isinstance(name, types.MemberDescriptorType):  # functions of Cython
        name = name.__get__(obj)
    elif kind in _FUNCTIONS:
        name = getattr(obj, "__module__", None) or _MODULE.__get__(type(obj.__self__))  # type: ignore[attr-defined]
    if not isinstance(name, str) or name.partition(".")[0] in _REFUSED:
        return False
    return is_library_module(name)
