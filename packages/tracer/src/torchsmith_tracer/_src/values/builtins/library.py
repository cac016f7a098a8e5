"""Standard library callables: operator, math, sys, copy, inspect, dataclasses, logging ..."""

from __future__ import annotations

import _operator
import collections
import copy
import dataclasses
import functools
import inspect
import logging
import math
import operator
import re
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import polyfills
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor, method
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    SequenceValue,
    TupleValue,
)
from torchsmith_tracer._src.values.functions import BoundMethodValue, FunctionValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.mappings import DictValue, SetValue
from torchsmith_tracer._src.values.objects import NewObjectValue, ObjectValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace

# --- operator ----------------------------------------------------------------------------------

_BINARY = [
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "lshift",
    "rshift",
    "and_",
    "or_",
    "xor",
]
_INPLACE = "iadd isub imul itruediv ifloordiv imod ipow imatmul ilshift irshift iand ior ixor"


def _register_operators() -> None:
    for op in _BINARY:

        def binary(tx: Trace, a: Value, b: Value, /, op: str = op) -> Value:
            return tx.interp.binary(op, a, b)

        builtin(getattr(_operator, op))(_two(binary))
    for op in _INPLACE.split():

        def inplace(tx: Trace, a: Value, b: Value, /, op: str = op) -> Value:
            return tx.interp.inplace(op, a, b)

        builtin(getattr(_operator, op))(_two(inplace))
    for op in ("lt", "le", "eq", "ne", "gt", "ge"):

        def compare(tx: Trace, a: Value, b: Value, /, op: str = op) -> Value:
            return tx.interp.compare(op, a, b)

        builtin(getattr(_operator, op))(_two(compare))
    for name, op in (("neg", "neg"), ("pos", "pos"), ("inv", "invert"), ("invert", "invert")):

        def unary(tx: Trace, a: Value, /, op: str = op) -> Value:
            return a.unary(tx, op)

        if getattr(_operator, name) not in _done:
            _done.add(getattr(_operator, name))
            builtin(getattr(_operator, name))(lambda tx, a, /, unary=unary: unary(tx, a))


_done: set[object] = set()


def _two(fn: Callable[..., Value]) -> Callable[..., Value]:
    def implementation(tx: Trace, a: Value, b: Value, /) -> Value:
        return fn(tx, a, b)

    return implementation


_register_operators()


@builtin(operator.getitem)
def _getitem(tx: Trace, obj: Value, key: Value, /) -> Value:
    return obj.getitem(tx, key)


@builtin(operator.setitem)
def _setitem(tx: Trace, obj: Value, key: Value, value: Value, /) -> Value:
    obj.setitem(tx, key, value)
    return NONE


@builtin(operator.delitem)
def _delitem(tx: Trace, obj: Value, key: Value, /) -> Value:
    obj.delitem(tx, key)
    return NONE


@builtin(operator.contains)
def _contains(tx: Trace, obj: Value, item: Value, /) -> Value:
    return obj.contains(tx, item)


@builtin(operator.concat)
def _concat(tx: Trace, a: Value, b: Value, /) -> Value:
    return tx.interp.binary("add", a, b)


@builtin(operator.iconcat)
def _iconcat(tx: Trace, a: Value, b: Value, /) -> Value:
    return tx.interp.inplace("iadd", a, b)


@builtin(operator.truth)
def _truth(tx: Trace, obj: Value, /) -> Value:
    return bool_value(tx.interp.truth(obj))


@builtin(operator.not_)
def _not(tx: Trace, obj: Value, /) -> Value:
    return tx.interp.negate(obj)


@builtin(operator.is_)
def _is(tx: Trace, a: Value, b: Value, /) -> Value:
    return bool_value(tx.interp.is_same(a, b))


@builtin(operator.is_not)
def _is_not(tx: Trace, a: Value, b: Value, /) -> Value:
    return bool_value(not tx.interp.is_same(a, b))


@builtin(operator.countOf)
def _count_of(tx: Trace, obj: Value, item: Value, /) -> Value:
    return ConstantValue(sum(tx.interp.equal(v, item) for v in tx.interp.unpack(obj)))


@builtin(operator.indexOf)
def _index_of(tx: Trace, obj: Value, item: Value, /) -> Value:
    for i, value in enumerate(tx.interp.unpack(obj)):
        if tx.interp.equal(value, item):
            return ConstantValue(i)
    raise tx.interp.error(ValueError, "sequence.index(x): x not in sequence")


@builtin(operator.length_hint)
def _length_hint(tx: Trace, obj: Value, default: Value = ConstantValue(0), /) -> Value:  # noqa: B008
    remaining = getattr(obj, "remaining", None)
    if remaining is not None:
        count = remaining(tx)
        return default if count is None else ConstantValue(count)
    if tx.interp.special_method(obj, "__len__") is not None:
        return obj.length(tx)
    method = tx.interp.special_method(obj, "__length_hint__")
    if method is None:
        return default
    result = tx.interp.call(method, [])
    known = tx.interp.concrete(result)
    if known is NotImplemented:
        return default
    if not isinstance(known, int):
        kind = type(known).__name__
        raise tx.interp.error(TypeError, f"__length_hint__ must be an integer, not {kind}")
    if known < 0:
        raise tx.interp.error(ValueError, "__length_hint__() should return >= 0")
    return result


# --- math --------------------------------------------------------------------------------------


@builtin(math.prod)
def _prod(tx: Trace, iterable: Value, /, *, start: Value = ConstantValue(1)) -> Value:  # noqa: B008
    total = start
    for item in tx.interp.unpack(iterable):
        total = tx.interp.binary("mul", total, item)
    return total


def _rounding(name: str) -> None:
    real = getattr(math, name)

    def implementation(tx: Trace, x: Value, /) -> Value | None:
        method = None
        if isinstance(x, ObjectValue):
            method = tx.interp.special_method(x, f"__{name}__")
        elif (
            not isinstance(x, ConstantValue)
            and not hasattr(x, "call_builtin")
            and hasattr(x.python_type(), f"__{name}__")
        ):
            method = x.getattr(tx, f"__{name}__")
        return None if method is None else tx.interp.call(method, [])

    builtin(real)(implementation)


for _name in ("floor", "ceil", "trunc"):
    _rounding(_name)


# --- sys and warnings --------------------------------------------------------------------------


@builtin(sys.exc_info)
def _exc_info(tx: Trace) -> Value:
    exc = tx.interp.handled
    if exc is None:
        return TupleValue([NONE, NONE, NONE])
    return TupleValue([tx.interp.type_of(exc), exc, NONE])


@builtin(sys.exception)
def _exception(tx: Trace) -> Value:
    return NONE if tx.interp.handled is None else tx.interp.handled


@builtin(sys.getrecursionlimit)
def _recursion_limit(tx: Trace) -> Value:
    return ConstantValue(sys.getrecursionlimit())


@builtin(sys.intern)
def _intern(tx: Trace, text: Value, /) -> Value:
    return text


@builtin(warnings.warn, warnings.warn_explicit)
def _warn(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("opaque-call", what="warnings.warn")


def _no_logging(name: str) -> None:
    def implementation(tx: Trace, *args: Value, **kwargs: Value) -> Value:
        raise Unsupported("opaque-call", what=f"logging.Logger.{name}")

    builtin(getattr(logging.Logger, name))(implementation)


for _name in ("debug", "info", "warning", "error", "exception", "critical", "log", "_log"):
    _no_logging(_name)


# --- copy --------------------------------------------------------------------------------------


@builtin(copy.copy)
def _copy(tx: Trace, x: Value) -> Value:
    base = x.base_value()
    hook = lookup(tx, x.python_type(), "__copy__") if isinstance(x, ObjectValue) else None
    if hook is not None:
        method = tx.interp.special_method(x, "__copy__")
        assert method is not None
        return tx.interp.call(method, [])
    if base is x:
        if isinstance(x, DictValue):
            return x.copy()
        if isinstance(x, ListValue):
            return x.like(list(x.items))
        if isinstance(x, SetValue) and x.cls is set:
            return SetValue(dict(x.table))
        if isinstance(x, ConstantValue | TupleValue | SetValue | FunctionValue | ClassValue):
            return x
    if isinstance(x, ObjectValue):
        return _copy_object(tx, x)
    raise Unsupported("opaque-call", what=f"copying {x.describe()}")


def _copy_object(tx: Trace, x: ObjectValue) -> Value:
    """What ``copyreg.__reduce_ex__`` and ``_reconstruct`` do for plain classes."""
    for name in ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__", "__deepcopy__"):
        found = lookup(tx, x.cls, name)
        if (
            found is not None
            and found.owner is not object
            and isinstance(found.attr, types.FunctionType | Value)
        ):
            raise Unsupported("opaque-call", what=f"copying {x.describe()}, which defines {name}")
    storage: Value | None = None
    base = x.storage
    if isinstance(base, DictValue):
        storage = base.copy()
    elif isinstance(base, ListValue):
        storage = base.like(list(base.items))
    elif isinstance(base, SetValue):
        storage = SetValue(dict(base.table), None, base.cls)
    elif base is not None:
        storage = base
    new = NewObjectValue(tx.journal, x.cls, tx.interp.type_of(x), storage)
    for name in x.instance_names(tx):
        value = x.instance_get(tx, name)
        if value is not None:
            new.instance_set(tx, name, value)
    return new


@builtin(copy.deepcopy)
def _deepcopy(tx: Trace, x: Value, memo: Value = NONE, _nil: Value = NONE) -> Value:
    return _deep(tx, x, {})


def _deep(tx: Trace, x: Value, memo: dict[Value, Value]) -> Value:
    known = memo.get(x)
    if known is not None:
        return known
    if isinstance(x, ConstantValue | FunctionValue | ClassValue):
        return x
    if isinstance(x, ObjectValue):
        method = None
        if lookup(tx, x.cls, "__deepcopy__") is not None:
            method = tx.interp.special_method(x, "__deepcopy__")
        if method is not None:
            raise Unsupported("opaque-call", what=f"deep copy of {x.describe()}")
        new = _copy_object(tx, x)
        memo[x] = new
        assert isinstance(new, NewObjectValue)
        if new.storage is not None and x.storage is not None:
            new.storage = _deep(tx, x.storage, memo)
        for name in new.instance_names(tx):
            value = new.instance_get(tx, name)
            if value is not None:
                new.instance_set(tx, name, _deep(tx, value, memo))
        return new
    if isinstance(x, DictValue):
        made = DictValue(None, None, x.cls, x.factory)
        memo[x] = made
        for key, value in zip(x.keys(), x.values(tx), strict=True):
            made.put(tx, _deep(tx, key, memo), _deep(tx, value, memo))
        return made
    if isinstance(x, SequenceValue) and type(x) in (ListValue, TupleValue, DequeValue):
        if type(x) is not TupleValue:
            copied = x.like([])
            memo[x] = copied
            assert isinstance(copied, ListValue)
            copied.replace(tx, [_deep(tx, v, memo) for v in x.unpack(tx)])
            return copied
        return TupleValue([_deep(tx, v, memo) for v in x.unpack(tx)])
    if isinstance(x, SetValue):
        return SetValue.of(tx, [_deep(tx, v, memo) for v in x.items], x.cls)
    raise Unsupported("opaque-call", what=f"deep copy of {x.describe()}")


@method(re.Pattern, "sub")
def _pattern_sub(
    tx: Trace,
    self: Value,
    repl: Value,
    string: Value,
    count: Value = ConstantValue(0),  # noqa: B008
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
    real = _real_callable(obj)
    if real is None:
        raise Unsupported("opaque-call", what=f"inspect.signature of {obj.describe()}")
    options = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
    assert callable(real)
    return tx.interp.fold(inspect.signature, real, **options)


@builtin(inspect.isfunction)
def _isfunction(tx: Trace, object: Value) -> Value:
    return bool_value(object.python_type() is types.FunctionType)


@builtin(inspect.isclass)
def _isclass(tx: Trace, object: Value) -> Value:
    return bool_value(isinstance(object, ClassValue))


@builtin(inspect.ismethod)
def _ismethod(tx: Trace, object: Value) -> Value:
    return bool_value(object.python_type() is types.MethodType)


@builtin(dataclasses.fields)
def _fields(tx: Trace, class_or_instance: Value) -> Value:
    value = class_or_instance
    cls = value.obj if isinstance(value, ClassValue) else value.python_type()
    if not dataclasses.is_dataclass(cls):
        message = "must be called with a dataclass type or instance"
        raise tx.interp.error(TypeError, message)
    return TupleValue([tx.builder.wrap_new(f) for f in dataclasses.fields(cls)])


@builtin(dataclasses.is_dataclass)
def _is_dataclass(tx: Trace, obj: Value) -> Value:
    cls = obj.obj if isinstance(obj, ClassValue) else obj.python_type()
    return bool_value(dataclasses.is_dataclass(cls))


@builtin(typing.cast)
def _cast(tx: Trace, typ: Value, val: Value) -> Value:
    return val


@builtin(
    *{
        getattr(form, "__getitem__")  # noqa: B009 - typing hides it
        for form in (typing._SpecialForm, type(typing.List[int]), type(typing.Callable))  # noqa: UP006
    }
)
def _subscript_typing(tx: Trace, self: Value, /, *args: Value) -> Value | None:
    """``Optional[int]``: typing's own code looks at the calling frame."""
    form: Any = getattr(self, "obj", None)
    known = tx.interp.known(args, {})
    if form is None or known is None or len(args) != 1:
        return None
    return tx.interp.fold(lambda: form[known[0][0]])


@builtin(typing.get_origin, typing.get_args)
def _typing_query(tx: Trace, tp: Value) -> Value | None:
    return None


@builtin(typing.get_type_hints)
def _type_hints(tx: Trace, obj: Value, *args: Value, **kwargs: Value) -> Value:
    real = _real_callable(obj)
    if real is None:
        raise Unsupported("opaque-call", what=f"typing.get_type_hints of {obj.describe()}")
    return tx.builder.wrap_new(typing.get_type_hints(real))


@constructor(typing.TypeVar, typing.ParamSpec)
def _type_variable(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    known = tx.interp.known(args, kwargs)
    if known is None:
        raise Unsupported("opaque-call", what="typing.TypeVar with these arguments")
    make: Callable[..., object] = typing.TypeVar
    return tx.builder.wrap_new(make(*known[0], **known[1]))


@builtin(collections.namedtuple)
def _namedtuple(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    raise Unsupported("opaque-call", what="collections.namedtuple")


@builtin(functools.singledispatch)
def _singledispatch(tx: Trace, func: Value) -> Value:
    raise Unsupported("opaque-call", what="functools.singledispatch")
