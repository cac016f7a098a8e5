"""Calls of builtin classes: numbers, text, containers, iterators, descriptors, ``type``."""

from __future__ import annotations

import collections
import types
from typing import cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import iterators
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.make_class import make_class
from torchsmith_tracer._src.values.builtins.registry import constructor
from torchsmith_tracer._src.values.classes import DescriptorValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    RangeValue,
    SequenceValue,
    SliceValue,
    TupleValue,
)
from torchsmith_tracer._src.values.functions import BoundMethodValue, CellValue, FunctionValue
from torchsmith_tracer._src.values.lookup import in_python, lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.namespaces import DictNamespace, NamespaceValue
from torchsmith_tracer._src.values.python_instances import EnumValue, ObjectValue
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.views import DictViewValue, MappingProxyValue

_FALSE = ConstantValue(False)
_ZERO = ConstantValue(0)


# --- numbers and text --------------------------------------------------------------------------


@constructor(bool)
def _bool(tx: Trace, obj: Value = _FALSE, /) -> Value:
    if (convert := getattr(obj, "as_bool", None)) is not None:
        result: Value = convert(tx)
        return result
    return bool_value(tx.interp.truth(obj))


def _number(
    tx: Trace, cls: type, obj: Value, names: tuple[str, ...], extra: list[Value]
) -> Value | None:
    base = obj.base_value()
    if isinstance(obj, ObjectValue | EnumValue):
        for name in names:
            if (found := lookup(tx, obj.python_type(), name)) is None:
                continue
            if in_python(found):
                result = tx.interp.call_special(obj, name)
                assert result is not None
                exact = float if name == "__float__" else int
                if (
                    name == "__trunc__" or result.python_type() is not exact
                ):  # refused, or warned of
                    raise Unsupported("raises", what=f"{cls.__name__}() of {obj.describe()}")
                if not result.is_constant():
                    return _number(tx, cls, result, names, [])
                return tx.interp.fold(cls, tx.interp.concrete(result))
            break
    if isinstance(base, ConstantValue):
        return tx.interp.fold(cls, base.value, *[tx.interp.concrete(v) for v in extra])
    if base is obj and not isinstance(obj, ObjectValue):
        for name in names:
            if lookup(tx, obj.python_type(), name) is not None:
                return tx.interp.call(obj.getattr(tx, name), [])
    known = tx.interp.try_concrete(obj)
    if base is obj and known is not tx.interp.UNKNOWN:
        return tx.interp.fold(cls, known)
    text = "a string, a bytes-like object" if cls is int else "a string"
    message = f"{cls.__name__}() argument must be {text} or a real number, not {obj.type_name!r}"
    raise tx.interp.error(TypeError, message)


@constructor(int)
def _int(tx: Trace, obj: Value = _ZERO, /, base: Value | None = None) -> Value | None:
    extra = [] if base is None else [base]
    return _number(tx, int, obj, ("__int__", "__index__", "__trunc__"), extra)


constructor(float)(lambda tx, obj=_ZERO, /: _number(tx, float, obj, ("__float__", "__index__"), []))


@constructor(complex)
def _complex(tx: Trace, real: Value = _ZERO, imag: Value | None = None) -> Value:
    if isinstance(real, ObjectValue):
        if (result := tx.interp.call_special(real, "__complex__")) is not None:
            if result.python_type() is not complex:
                raise Unsupported("raises", what=f"complex() of {real.describe()}")
            return result
        real = tx.interp.class_value(float).call(tx, [real], {})
    parts = [tx.interp.concrete(v) for v in (real, imag) if v is not None]
    return tx.interp.fold(complex, *parts)


@constructor(str)
def _str(
    tx: Trace,
    object: Value | None = None,
    encoding: Value | None = None,
    errors: Value | None = None,
) -> Value:
    if encoding is not None or errors is not None:
        parts = [tx.interp.concrete(v) for v in (object, encoding, errors) if v is not None]
        return tx.interp.fold(str, *parts)
    return ConstantValue("") if object is None else tx.interp.str_of(object)


@constructor(bytes)
def _bytes(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    hosts = [tx.interp.concrete(a) for a in args]
    return tx.interp.fold(bytes, *hosts, **{k: tx.interp.concrete(v) for k, v in kwargs.items()})


# --- containers --------------------------------------------------------------------------------


def _items(tx: Trace, iterable: Value | None) -> list[Value]:
    if iterable is None:
        return []
    if isinstance(iterable, SequenceValue):
        return list(iterable.items)  # untouched elements stay lazy
    return tx.interp.unpack(iterable)


constructor(list)(lambda tx, iterable=None, /: ListValue(_items(tx, iterable)))


@constructor(tuple)
def _tuple(tx: Trace, iterable: Value | None = None, /) -> Value:
    return iterable if type(iterable) is TupleValue else TupleValue(_items(tx, iterable))


@constructor(set)
def _set(tx: Trace, iterable: Value | None = None, /) -> Value:
    return _filled(tx, SetValue(), iterable)


@constructor(frozenset)
def _frozenset(tx: Trace, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, SetValue) and iterable.cls is frozenset:
        return iterable
    return _filled(tx, SetValue(cls=frozenset), iterable)


def _filled(tx: Trace, made: SetValue, iterable: Value | None) -> SetValue:
    if iterable is not None:
        made.update(tx, iterable)
    return made


constructor(dict)(lambda tx, *args, **kwargs: fill_dict(tx, DictValue(), "dict", args, kwargs))


def fill_dict(
    tx: Trace, new: DictValue, name: str, args: tuple[Value, ...], kwargs: dict[str, Value]
) -> DictValue:
    """``dict(*args, **kwargs)`` into ``new``."""
    if len(args) > 1:
        raise tx.interp.error(TypeError, f"{name} expected at most 1 argument, got {len(args)}")
    if args:
        tx.interp.dict_update(new, args[0])
    for key, value in kwargs.items():
        new.put(tx, ConstantValue(key), value)
    return new


@constructor(collections.OrderedDict)
def _ordered_dict(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    new = DictValue(None, None, collections.OrderedDict)
    return fill_dict(tx, new, "OrderedDict", args, kwargs)


@constructor(collections.defaultdict)
def _default_dict(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    new = DictValue(None, None, collections.defaultdict, default_factory(tx, args))
    return fill_dict(tx, new, "defaultdict", args[1:], kwargs)


def default_factory(tx: Trace, args: tuple[Value, ...]) -> Value | None:
    """The factory of a ``defaultdict`` that is made with ``args``."""
    factory = None if not args or tx.interp.is_none(args[0]) else args[0]
    if isinstance(factory, ConstantValue | SequenceValue | DictValue):
        raise tx.interp.error(TypeError, "first argument must be callable or None")
    return factory


@constructor(collections.deque)
def _deque(tx: Trace, iterable: Value | None = None, maxlen: Value = NONE) -> Value:
    return DequeValue(_items(tx, iterable), most_items(tx, maxlen))


def most_items(tx: Trace, maxlen: Value) -> int | None:
    """The ``maxlen`` that a deque is made with."""
    limit = None if tx.interp.is_none(maxlen) else tx.interp.index(maxlen)
    if limit is not None and limit < 0:
        raise tx.interp.error(ValueError, "maxlen must be non-negative")
    return limit


@constructor(types.MappingProxyType)
def _mapping_proxy(tx: Trace, mapping: Value, /) -> Value:
    kind = mapping.python_type()
    if lookup(tx, kind, "__getitem__") is None or issubclass(kind, list | tuple):
        message = f"mappingproxy() argument must be a mapping, not {mapping.type_name}"
        raise tx.interp.error(TypeError, message)
    return MappingProxyValue(mapping)


@constructor(slice)
def _slice(tx: Trace, a: Value, b: Value | None = None, c: Value = NONE, /) -> Value:
    return SliceValue(NONE, a, NONE) if b is None else SliceValue(a, b, c)


@constructor(range)
def _range(tx: Trace, a: Value, b: Value | None = None, c: Value | None = None, /) -> Value:
    start, stop = (_ZERO, a) if b is None else (a, b)
    step = ConstantValue(1) if c is None else c
    parts: list[Value] = []
    for value in (start, stop, step):
        known = isinstance(value, ConstantValue | ObjectValue)
        symbolic = not known and issubclass(value.python_type(), int)
        parts.append(value if symbolic else ConstantValue(tx.interp.index(value)))
    if isinstance(parts[2], ConstantValue) and parts[2].value == 0:
        raise tx.interp.error(ValueError, "range() arg 3 must not be zero")
    return RangeValue(parts[0], parts[1], parts[2])


# --- iterators ---------------------------------------------------------------------------------


@constructor(enumerate)
def _enumerate(tx: Trace, iterable: Value, start: Value = _ZERO) -> Value:
    return iterators.EnumerateValue(iterable.iter(tx), tx.interp.index(start))


@constructor(zip)
def _zip(tx: Trace, *iterables: Value, strict: Value = _FALSE) -> Value:
    return iterators.ZipValue([it.iter(tx) for it in iterables], strict=tx.interp.truth(strict))


@constructor(map)
def _map(tx: Trace, fn: Value, first: Value, /, *more: Value) -> Value:
    return iterators.MapValue(fn, [it.iter(tx) for it in (first, *more)])


@constructor(filter)
def _filter(tx: Trace, fn: Value, iterable: Value, /) -> Value:
    return iterators.FilterValue(None if tx.interp.is_none(fn) else fn, iterable.iter(tx))


@constructor(reversed)
def _reversed(tx: Trace, sequence: Value, /) -> Value:
    if isinstance(sequence, ObjectValue):
        found = lookup(tx, sequence.cls, "__reversed__")
        if found is not None and found.attr is None:
            name = sequence.cls.__name__
            raise tx.interp.error(TypeError, f"{name!r} object is not reversible")
        if in_python(found):
            made = tx.interp.call_special(sequence, "__reversed__")
            assert made is not None
            return made
    base = sequence.base_value()
    if isinstance(base, DictValue):
        return iterators.DictIterator(base, "keys", reverse=True)
    if isinstance(base, DictViewValue):
        return iterators.DictIterator(base.mapping, base.kind, reverse=True)
    if isinstance(base, RangeValue):
        return tx.interp.range_iterator(base.host(tx)[::-1])
    kind = sequence.python_type()
    if (
        not (lookup(tx, kind, "__getitem__") and lookup(tx, kind, "__len__"))
        or isinstance(base, SetValue)
    ) and not (isinstance(sequence, ObjectValue) and lookup(tx, kind, "__getitem__")):
        raise tx.interp.error(TypeError, f"{sequence.type_name!r} object is not reversible")
    if (own := getattr(sequence, "reversed", None)) is not None:
        result: Value = own(tx)
        return result
    return iterators.ReversedValue(sequence, tx.interp.index(sequence.length(tx)))


# --- descriptors -------------------------------------------------------------------------------


@constructor(property)
def _property(
    tx: Trace, fget: Value = NONE, fset: Value = NONE, fdel: Value = NONE, doc: Value = NONE
) -> Value:
    given = {"fget": fget, "fset": fset, "fdel": fdel, "__doc__": doc}
    parts = {k: v for k, v in given.items() if not tx.interp.is_none(v)}
    return DescriptorValue(property, parts)


@constructor(staticmethod)
def _staticmethod(tx: Trace, function: Value, /) -> Value:
    return DescriptorValue(staticmethod, {"__func__": function})


@constructor(classmethod)
def _classmethod(tx: Trace, function: Value, /) -> Value:
    return DescriptorValue(classmethod, {"__func__": function})


# --- functions and cells -----------------------------------------------------------------------


@constructor(types.MethodType)
def _method_type(tx: Trace, function: Value, instance: Value, /) -> Value:
    return BoundMethodValue(function, instance)


constructor(types.CellType)(lambda tx, contents=None, /: CellValue(contents))


@constructor(types.FunctionType)
def _function_type(
    tx: Trace,
    code: Value,
    globals: Value,
    name: Value = NONE,
    argdefs: Value = NONE,
    closure: Value = NONE,
    kwdefaults: Value = NONE,
) -> Value:
    if isinstance(base := globals.base_value(), DictValue):
        globals = DictNamespace(tx, base)
    if not isinstance(globals, NamespaceValue):
        raise Unsupported("opaque-call", what="making a function with a new globals dict")
    real = cast("types.CodeType", tx.interp.concrete(code))
    cells = [] if tx.interp.is_none(closure) else tx.interp.unpack(closure)
    defaults = None if tx.interp.is_none(argdefs) else tx.interp.unpack(argdefs)
    fn = FunctionValue(real, globals, cast("list[CellValue]", cells), defaults)
    if not tx.interp.is_none(name):
        fn.name = str(tx.interp.concrete(name))
    if isinstance(kwdefaults, DictValue):
        fn.set_kwdefaults({str(k): v for k, (_, v) in kwdefaults.table.items()})
    return fn


# --- type and super ----------------------------------------------------------------------------


@constructor(type)
def _type(tx: Trace, obj: Value, *rest: Value, **kwargs: Value) -> Value:
    if not rest:
        return tx.interp.type_of(obj)
    if len(rest) != 2:
        raise tx.interp.error(TypeError, "type() takes 1 or 3 arguments")
    bases = tx.interp.unpack(rest[0])
    namespace = rest[1].base_value()
    if not isinstance(namespace, DictValue):
        kind = rest[1].python_type().__name__
        raise tx.interp.error(TypeError, f"type.__new__() argument 3 must be dict, not {kind}")
    name = str(tx.interp.concrete(obj))
    return make_class(tx, name, bases, namespace.copy(), kwargs)


@constructor(super)
def _super(tx: Trace, cls: Value | None = None, obj: Value | None = None, /) -> Value:
    if cls is not None and obj is not None:
        return tx.interp.super(cls, obj)
    if cls is not None:
        raise Unsupported("opaque-call", what="super() with one argument")
    frame = tx.frames[-1]
    if (cell := frame.cells.get("__class__")) is None:
        raise tx.interp.error(RuntimeError, "super(): __class__ cell not found")
    if (name := frame.first) is None:
        raise tx.interp.error(RuntimeError, "super(): no arguments")
    owner = cell.load(tx)
    first = frame.locals.get(name)
    if first is None and name in frame.cells:
        first = frame.cells[name].load(tx)
    if owner is None:
        raise tx.interp.error(RuntimeError, "super(): empty __class__ cell")
    if first is None:
        raise tx.interp.error(RuntimeError, "super(): arg[0] deleted")
    return tx.interp.super(owner, first)


constructor(object)(lambda tx: tx.interp.instantiate(tx.interp.class_value(object)))
