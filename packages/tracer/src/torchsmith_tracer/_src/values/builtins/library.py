"""Standard library callables: operator, math, sys, copy, inspect, dataclasses ..."""

from __future__ import annotations

import _operator as _operator_module
import _pickle
import _thread
import copy
import dataclasses
import functools
import inspect
import math
import operator
import os
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import Any

from torchsmith_guards import AttrSource, GuardKind, PinnedSource, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import PlainObject
from torchsmith_tracer._src.values.builtins import copying, polyfills, registry
from torchsmith_tracer._src.values.builtins.python_versions import PYTHON_OPERATOR
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor, method, traced
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ZERO, ConstantValue, bool_value
from torchsmith_tracer._src.values.construction import make_twin
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.frame_object import frame_value
from torchsmith_tracer._src.values.functions import BoundMethodValue, FunctionValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.python_instances import ObjectValue

# --- operator ----------------------------------------------------------------------------------

_BINARY = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor"
_INPLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor"


def _operator(name: str, fn: Callable[..., Value]) -> None:
    one = getattr(_operator_module, name)
    if one in registry.BUILTINS:  # ``inv`` is ``invert``
        return
    if len(fn.__code__.co_varnames) - len(fn.__defaults__ or ()) == 2:
        builtin(one)(lambda tx, a, /: fn(tx, a))
    else:
        builtin(one)(lambda tx, a, b, /: fn(tx, a, b))


def _sequence(tx: Trace, value: Value) -> Value:
    if lookup(tx, value.python_type(), "__getitem__") is None:
        raise tx.interp.error(TypeError, f"{value.type_name!r} object can't be concatenated")
    return value


def _register_operators() -> None:
    for op in _BINARY.split():
        _operator(op, lambda tx, a, b, op=op: tx.interp.binary(op, a, b))
    for op in _INPLACE.split():
        _operator(op, lambda tx, a, b, op=op: tx.interp.inplace(op, a, b))
    for op in ("lt", "le", "eq", "ne", "gt", "ge"):
        _operator(op, lambda tx, a, b, op=op: tx.interp.compare(op, a, b))
    for name, op in (("neg", "neg"), ("pos", "pos"), ("inv", "invert"), ("invert", "invert")):
        _operator(name, lambda tx, a, op=op: a.unary(tx, op))
    _operator("getitem", lambda tx, a, b: a.getitem(tx, b))
    _operator("contains", lambda tx, a, b: a.contains(tx, b))
    _operator("concat", lambda tx, a, b: tx.interp.binary("add", _sequence(tx, a), b))
    _operator("iconcat", lambda tx, a, b: tx.interp.inplace("iadd", _sequence(tx, a), b))
    _operator("truth", lambda tx, a: bool_value(tx.interp.truth(a)))
    _operator("not_", lambda tx, a: tx.interp.negate(a))
    _operator("is_", lambda tx, a, b: bool_value(tx.interp.is_same(a, b)))
    _operator("is_not", lambda tx, a, b: bool_value(not tx.interp.is_same(a, b)))


_register_operators()


@builtin(operator.setitem)
def _setitem(tx: Trace, obj: Value, key: Value, value: Value, /) -> Value:
    obj.setitem(tx, key, value)
    return NONE


@builtin(operator.delitem)
def _delitem(tx: Trace, obj: Value, key: Value, /) -> Value:
    obj.delitem(tx, key)
    return NONE


_NOT_SEARCHED = "argument of type {!r} is not iterable"


@builtin(operator.countOf)
def _count_of(tx: Trace, obj: Value, item: Value, /) -> Value:
    return ConstantValue(sum(tx.interp.equal(v, item) for v in tx.interp.each(obj, _NOT_SEARCHED)))


@builtin(operator.indexOf)
def _index_of(tx: Trace, obj: Value, item: Value, /) -> Value:
    for i, value in enumerate(tx.interp.each(obj, _NOT_SEARCHED)):
        if tx.interp.equal(value, item):
            return ConstantValue(i)
    raise tx.interp.error(ValueError, "sequence.index(x): x not in sequence")


builtin(operator.length_hint)(traced(PYTHON_OPERATOR["length_hint"]))


# --- math --------------------------------------------------------------------------------------


@builtin(math.prod)
def _prod(tx: Trace, iterable: Value, /, *, start: Value = ConstantValue(1)) -> Value:  # noqa: B008
    total = start
    for item in tx.interp.each(iterable):
        total = tx.interp.binary("mul", total, item)
    return total


def _rounding(name: str) -> None:
    real = getattr(math, name)

    def implementation(tx: Trace, x: Value, /) -> Value | None:
        known = isinstance(x, ConstantValue) or hasattr(x, "call_builtin")
        if known and not isinstance(x, ObjectValue):
            return None
        return tx.interp.call_special(x, f"__{name}__")

    builtin(real)(implementation)


for _name in ("floor", "ceil", "trunc"):
    _rounding(_name)


# --- locks -------------------------------------------------------------------------------------


builtin(_thread.allocate_lock)(lambda tx: make_twin(tx, _thread.LockType, (), {}))


# --- sys ---------------------------------------------------------------------------------------


@builtin(sys.exc_info)
def _exc_info(tx: Trace) -> Value:
    exc = tx.interp.being_handled()
    if tx.interp.is_none(exc):
        return TupleValue([NONE, NONE, NONE])
    return TupleValue([tx.interp.type_of(exc), exc, exc.getattr(tx, "__traceback__")])


builtin(sys.exception)(lambda tx: tx.interp.being_handled())


def _switch(read: Callable[[], object], write: Callable[..., object]) -> None:
    """What the process has one of; setting it to what it is changes nothing."""
    builtin(read)(lambda tx: tx.world.query(read))

    @builtin(write)
    def _set(tx: Trace, value: Value, /) -> Value | None:
        same = tx.interp.is_same if read is sys.gettrace else tx.interp.equal
        return NONE if same(tx.world.query(read), value) else None


_switch(sys.gettrace, sys.settrace)
_switch(sys.getrecursionlimit, sys.setrecursionlimit)


@builtin(sys._getframe)
def _getframe(tx: Trace, depth: Value = ZERO, /) -> Value:
    return frame_value(tx, tx.interp.index(depth))


if sys.version_info >= (3, 12):

    @builtin(sys._getframemodulename)
    def _getframemodulename(tx: Trace, depth: Value = ZERO) -> Value:
        space = frame_value(tx, tx.interp.index(depth)).frame.globals
        return space.lookup(tx, "__name__") or NONE


@builtin(sys.audit)
def _audit(tx: Trace, event: Value, /, *args: Value) -> Value:
    tx.journal.call_later(sys.audit, event, *args)
    return NONE


@builtin(sys.intern)
def _intern(tx: Trace, text: Value, /) -> Value:
    if issubclass(text.python_type(), str) and text.python_type() is not str:
        raise tx.interp.error(TypeError, f"can't intern {text.type_name}")
    return tx.interp.fold(sys.intern, tx.interp.concrete(text))


# --- copy and pickle: the standard library's own code is traced ----------------------------------


@builtin(copy.copy, copy.deepcopy)
def _copy(tx: Trace, x: Value, *rest: Value) -> Value | None:
    if isinstance(x, ConstantValue) or x.python_type() is types.BuiltinFunctionType:
        return x
    if isinstance(x, PlainObject | FunctionValue):
        return None
    raise Unsupported("opaque-call", what=f"copying {x.describe()}")


builtin(_pickle.dumps)(traced(copying.dumps))
builtin(_pickle.loads)(traced(copying.loads))


# --- re ----------------------------------------------------------------------------------------


@builtin(re.compile)
def _compile_pattern(tx: Trace, *args: Value) -> Value | None:
    if (known := tx.interp.known(args, {})) is None:
        return None
    try:
        return tx.interp.fold(re.compile, *known[0])
    except Unsupported:  # it warns, which it does once for what it remembers
        re.purge()
        raise


@method(re.Pattern, "sub")
def _pattern_sub(
    tx: Trace, self: Value, repl: Value, string: Value, count: Value = ZERO
) -> Value | None:
    if isinstance(repl, ConstantValue):
        return None
    replacement = tx.builder.wrap_new(polyfills.pattern_sub)
    return replacement.call(tx, [self, repl, string, count], {})


@method(re.Pattern, "finditer")
def _finditer(tx: Trace, self: Value, /, *args: Value) -> Value:
    pattern = tx.interp.concrete(self)
    assert isinstance(pattern, re.Pattern)
    known: list[Any] = [tx.interp.concrete(a) for a in args]
    return tx.interp.iterator([tx.interp.const(m) for m in pattern.finditer(*known)])


# --- inspect, dataclasses, typing --------------------------------------------------------------


def _real_callable(fn: Value) -> object | None:
    """The real callable behind a value, when there is one."""
    if isinstance(fn, FunctionValue):
        return fn.fn
    if isinstance(fn, BoundMethodValue):
        inner = _real_callable(fn.func)
        return None if inner is None else types.MethodType(inner, object())  # type: ignore[arg-type]
    if isinstance(fn, ClassValue) and fn.recipe is None:
        return fn.obj
    obj = getattr(fn, "obj", None)
    return obj if callable(obj) else None


@builtin(inspect.signature)
def _signature(tx: Trace, obj: Value, **kwargs: Value) -> Value:
    if (real := _real_callable(obj)) is None:
        raise Unsupported("opaque-call", what=f"inspect.signature of {obj.describe()}")
    options = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
    assert callable(real)
    source = obj.source if isinstance(obj, FunctionValue) else None
    _signature_facts(tx, real, source)
    return tx.interp.fold(inspect.signature, real, **options)


def _signature_facts(tx: Trace, real: object, source: Source | None = None) -> None:
    """What the signature of a callable is read from is guarded."""
    real = getattr(real, "__func__", real)
    if isinstance(real, types.FunctionType):
        tx.world.signature(real, source or PinnedSource(real))
        return
    if isinstance(real, type) and lookup(tx, real, "__signature__") is not None:
        raise Unsupported("opaque-call", what="inspect.signature of a class that has its own")
    if isinstance(real, functools.partial) or hasattr(real, "__wrapped__"):
        raise Unsupported("opaque-call", what="inspect.signature of what stands for another")
    kinds = [(type(real), "__call__")]
    if isinstance(real, type):
        kinds += [(real, "__new__"), (real, "__init__")]
    for found in (lookup(tx, cls, name) for cls, name in kinds):
        if found is not None and isinstance(found.attr, types.FunctionType | types.MethodType):
            _signature_facts(tx, found.attr)


@builtin(getattr(os._Environ, "__getitem__"))  # noqa: B009 - its type stub hides it
def _environ_getitem(tx: Trace, self: Value, key: Value) -> Value | None:
    """One variable of the environment, without a guard on the names of all others."""
    known = tx.interp.try_concrete(key)
    if not isinstance(self, ObjectValue) or self.source is None or not isinstance(known, str):
        return None
    table = AttrSource(self.source, "_data")
    if (value := tx.world.item(vars(self.obj)["_data"], table, os.fsencode(known))) is None:
        raise tx.interp.error_with(KeyError, [key])
    return tx.interp.fold(os.fsdecode, value.as_constant())


@builtin(inspect.isfunction)
def _isfunction(tx: Trace, object: Value) -> Value:
    return bool_value(object.python_type() is types.FunctionType)


builtin(inspect.isclass)(lambda tx, object: bool_value(isinstance(object, ClassValue)))
builtin(inspect.ismethod)(lambda tx, object: bool_value(object.python_type() is types.MethodType))


@builtin(dataclasses.fields)
def _fields(tx: Trace, class_or_instance: Value) -> Value:
    value = class_or_instance
    cls = value.obj if isinstance(value, ClassValue) else value.python_type()
    if not dataclasses.is_dataclass(cls):
        raise tx.interp.error(TypeError, "must be called with a dataclass type or instance")
    found = lookup(tx, cls, _FIELDS)
    if found is None or isinstance(found.attr, Value):
        return TupleValue([tx.builder.wrap_new(f) for f in dataclasses.fields(cls)])
    shown = {id(f) for f in dataclasses.fields(cls)}
    fields = tx.world.class_table(cls, found.owner, _FIELDS)
    return TupleValue([tx.builder.wrap(f, source) for f, source in fields if id(f) in shown])


_FIELDS = "__dataclass_fields__"


@builtin(dataclasses.is_dataclass)
def _is_dataclass(tx: Trace, obj: Value) -> Value:
    cls = obj.obj if isinstance(obj, ClassValue) else obj.python_type()
    return bool_value(lookup(tx, cls, _FIELDS) is not None)


builtin(typing.cast)(lambda tx, typ, val: val)


@builtin(
    *{
        getattr(type(form), "__getitem__")  # noqa: B009 - typing hides it
        for form in (typing.Union, typing.List[int], typing.List, typing.Tuple, typing.Callable)  # noqa: UP006
    }
)
def _subscript_typing(tx: Trace, self: Value, /, *args: Value) -> Value | None:
    """``Optional[int]``: typing's own code looks at the calling frame."""

    def host(value: Value) -> object:
        alias = getattr(value, "obj", None)
        if isinstance(alias, _ALIAS) and value.source is not None:
            tx.builder.guard(value.source, GuardKind.ID, alias, "part of a type")
            return alias
        parts = value.unpack(tx) if type(value) is TupleValue else None
        return tx.interp.concrete(value) if parts is None else tuple(map(host, parts))

    form: Any = getattr(self, "obj", None)
    return None if form is None else tx.interp.fold(lambda: form[host(*args)])


_ALIAS = inspect.getmro(type(typing.List[int]))[1]  # noqa: UP006 - of ``Optional[int]``, too

builtin(typing.get_origin, typing.get_args)(lambda tx, tp: None)


@constructor(typing.TypeVar, typing.ParamSpec)
def _type_variable(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    if (known := tx.interp.known(args, kwargs)) is None:
        raise Unsupported("opaque-call", what="typing.TypeVar with these arguments")
    make: Callable[..., object] = typing.TypeVar
    return tx.builder.wrap_new(make(*known[0], **known[1]))
