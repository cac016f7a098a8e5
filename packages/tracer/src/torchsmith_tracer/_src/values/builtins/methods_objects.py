"""Methods of object, type, exceptions, generators, properties, functions and strings."""

from __future__ import annotations

import collections
import contextlib
import re
import sys
import types
from collections.abc import Callable
from typing import cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.addresses import AddressedText, VaryingText, joined
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import copying, polyfills
from torchsmith_tracer._src.values.builtins.functions import is_instance
from torchsmith_tracer._src.values.builtins.registry import method, traced_method
from torchsmith_tracer._src.values.builtins.slots import attribute_name
from torchsmith_tracer._src.values.classes import STAND_INS, ClassValue, DescriptorValue
from torchsmith_tracer._src.values.constants import NONE, NOT_IMPLEMENTED, ConstantValue, bool_value
from torchsmith_tracer._src.values.construction import construct, new_exception, new_instance
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.exceptions import set_field
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinValue, FunctionValue
from torchsmith_tracer._src.values.generators import GeneratorValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import ObjectValue, storage_base

# --- object ------------------------------------------------------------------------------------


def _new(tx: Trace, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    target = args[0] if args else None
    if not isinstance(target, ClassValue):
        name = cls.obj.__name__ if isinstance(cls, ClassValue) else "object"
        message = f"{name}.__new__(): not enough arguments"
        if target is not None:
            kind = target.type_name
            message = f"{name}.__new__(X): X is not a type object ({kind})"
        raise tx.interp.error(TypeError, message)
    if isinstance(cls, ClassValue):
        _check_safe(tx, cls.obj, target.obj)
    maker = lookup(tx, target.obj, "__new__")
    # Called by name with arguments: those beyond the class are for a builtin part only.
    if isinstance(cls, ClassValue) and cls.obj is object:
        if len(args) > 1 or kwargs:
            overrides = maker is not None and maker.owner is not object
            init = lookup(tx, target.obj, "__init__")
            if overrides or (init is not None and init.owner is object):
                message = "object.__new__() takes exactly one argument (the type to instantiate)"
                raise tx.interp.error(TypeError, message)
        return new_instance(tx, target, [], {}, None)
    if issubclass(target.obj, BaseException):
        return new_exception(tx, target, args[1:], kwargs, None)  # ``__init__`` is not called
    if isinstance(cls, ClassValue) and target.obj is cls.obj and not issubclass(cls.obj, type):
        return tx.interp.call_class(target, args[1:], kwargs)
    return new_instance(tx, target, args[1:], kwargs, None)


def _check_safe(tx: Trace, base: type, cls: type) -> None:
    """``base.__new__(cls)`` must make what instances of ``cls`` are laid out as."""
    given = f"{base.__name__}.__new__({cls.__name__})"
    if not issubclass(cls, base):
        message = f"{given}: {cls.__name__} is not a subtype of {base.__name__}"
        raise tx.interp.error(TypeError, message)
    if storage_base(cls) is not storage_base(base) and not issubclass(base, BaseException):
        named = cls
        while isinstance(named.__new__, types.FunctionType) and named.__base__ is not None:
            named = named.__base__
        raise tx.interp.error(TypeError, f"{given} is not safe, use {named.__name__}.__new__()")


_BASES: tuple[type, ...] = (
    *(object, dict, list, tuple, set, frozenset, int, float, str, bytes, complex, bool),
)
_BASES += (BaseException, collections.deque, collections.OrderedDict, collections.defaultdict)
for _base in _BASES:
    method(_base, "__new__")(_new)


@method(object, "__init__")
def _object_init(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    if args or kwargs:
        init = lookup(tx, self.python_type(), "__init__")
        if init is not None and init.owner is not object:
            message = "object.__init__() takes exactly one argument (the instance to initialize)"
            raise tx.interp.error(TypeError, message)
    return NONE


@method(type, "__init__")
def _type_init(tx: Trace, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    if kwargs and len(args) == 1:
        raise tx.interp.error(TypeError, "type.__init__() takes no keyword arguments")
    if len(args) not in (1, 3):
        raise tx.interp.error(TypeError, "type.__init__() takes 1 or 3 arguments")
    return NONE


@method(object, "__init_subclass__")
def _init_subclass(tx: Trace, cls: Value, /, **kwargs: Value) -> Value:
    if kwargs:
        name = cast("ClassValue", cls).obj.__name__
        raise tx.interp.error(TypeError, f"{name}.__init_subclass__() takes no keyword arguments")
    return NONE


method(object, "__subclasshook__")(lambda tx, cls, other, /: NOT_IMPLEMENTED)


@method(object, "__sizeof__")
def _sizeof(tx: Trace, self: Value, /) -> Value:
    raise Unsupported("opaque-call", what=f"the size of {self.describe()}")


traced_method(object, "__reduce_ex__", copying.reduce_ex)
traced_method(object, "__reduce__", copying.object_reduce)
traced_method(object, "__getstate__", copying.getstate)
for _base, _reducer in copying.REDUCERS.items():
    traced_method(_base, "__reduce__", _reducer)


def _reduce_builtin(tx: Trace, self: Value, protocol: Value | None = None, /) -> Value | None:
    """By name: of a module or a class."""
    assert isinstance(self, BuiltinValue)
    owner = getattr(self.obj, "__self__", None)
    if not isinstance(owner, types.ModuleType | type | None):
        return None
    return tx.interp.fold(self.obj.__reduce__)


_IN_C = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
for _type in _IN_C:
    method(_type, "__reduce__", "__reduce_ex__")(_reduce_builtin)


@method(types.SimpleNamespace, "__init__")
def _namespace_init(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    table = DictValue()
    if args:
        tx.interp.dict_update(table, args[0])
    for key, value in (*table.table.values(), *((ConstantValue(k), v) for k, v in kwargs.items())):
        self.setattr(tx, attribute_name(tx, key), value)
    return NONE


traced_method(types.SimpleNamespace, "__repr__", polyfills.namespace_repr)
traced_method(types.SimpleNamespace, "__eq__", polyfills.namespace_eq)


# --- type --------------------------------------------------------------------------------------


@method(type, "__call__")
def _type_call(tx: Trace, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    return construct(tx, cast("ClassValue", cls), args, kwargs)


@method(type, "__instancecheck__")
def _instancecheck(tx: Trace, cls: Value, obj: Value, /) -> Value:
    return bool_value(type.__subclasscheck__(cast("ClassValue", cls).obj, obj.python_type()))


@method(type, "__subclasscheck__")
def _subclasscheck(tx: Trace, cls: Value, other: Value, /) -> Value:
    mine, theirs = cast("ClassValue", cls).obj, other
    if not isinstance(theirs, ClassValue):
        raise tx.interp.error(TypeError, "issubclass() arg 1 must be a class")
    return bool_value(mine in tx.world.mro(theirs.obj))


@method(type, "mro")
def _mro(tx: Trace, cls: Value, /) -> Value:
    mro = tx.world.mro(cast("ClassValue", cls).obj)
    return ListValue([tx.interp.class_value(c) for c in mro])


@method(type, "__subclasses__")
def _subclasses(tx: Trace, cls: Value, /) -> Value:
    real = cast("ClassValue", cls).obj
    known = [] if real in tx.world.born else _outside(real)
    if len(known) > _MOST or not all(map(_is_global, known)):  # others would be kept alive
        raise Unsupported("opaque-call", what="type.__subclasses__()")
    outside = () if real in tx.world.born else tx.interp.unpack(tx.world.query(_outside, real))
    made: list[type] = type.__subclasses__(real)
    alive = tx.world.born & tx.interp.patched_classes.keys()
    born = [tx.interp.class_value(c) for c in made if c in alive]
    return ListValue([*outside, *born])


def _outside(cls: type) -> list[type]:
    """The subclasses that are no stand-ins of a trace."""
    found: list[type] = type.__subclasses__(cls)
    return [c for c in found if STAND_INS.get(id(c)) is not c]


def _is_global(cls: type) -> bool:
    return getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls


_MOST = 100  # each one is guarded


# --- generators --------------------------------------------------------------------------------


@method(types.GeneratorType, "send")
def _send(tx: Trace, self: Value, value: Value, /) -> Value:
    return cast("GeneratorValue", self).send(tx, value)


method(types.GeneratorType, "close")(lambda tx, self, /: cast("GeneratorValue", self).close(tx))


def _throw_in_parts() -> None:
    """Only to be warned of it, from 3.12 on."""
    with contextlib.suppress(GeneratorExit):
        (_ for _ in ()).throw(GeneratorExit, None)


@method(types.GeneratorType, "throw")
def _throw(
    tx: Trace, self: Value, kind: Value, value: Value | None = None, tb: Value = NONE, /
) -> Value:
    if value is not None:
        tx.interp.hosted(_throw_in_parts)
    value = value or NONE
    if isinstance(kind, ClassValue) and issubclass(kind.obj, BaseException):
        if is_instance(tx, value, kind):
            exc = value
        elif tx.interp.is_none(value):
            exc = tx.interp.call(kind, [])
        elif isinstance(value, TupleValue):
            exc = tx.interp.call(kind, value.unpack(tx))
        else:
            exc = tx.interp.call(kind, [value])
    elif issubclass(kind.python_type(), BaseException):
        if not tx.interp.is_none(value):
            raise tx.interp.error(TypeError, "instance exception may not have a separate value")
        exc = kind
    else:
        want = "classes or instances deriving from BaseException"
        message = f"exceptions must be {want}, not {kind.type_name}"
        raise tx.interp.error(TypeError, message)
    if not issubclass(exc.python_type(), BaseException):  # what was thrown could not be made
        wrong = exc.type_name
        message = f"should have returned an instance of BaseException, not {wrong}"
        exc = tx.interp.error(TypeError, f"calling {cast('ClassValue', kind).obj!r} {message}").exc
    if not tx.interp.is_none(tb):
        set_field(tx, cast("ObjectValue", exc), "__traceback__", tb)
    return cast("GeneratorValue", self).throw(tx, exc)


# --- descriptors and functions -----------------------------------------------------------------


def _with_part(self: Value, name: str, fn: Value) -> Value:
    old = cast("DescriptorValue", self)
    return DescriptorValue(property, {**old.parts, name: fn})


for _name, _part in (("getter", "fget"), ("setter", "fset"), ("deleter", "fdel")):
    method(property, _name)(
        lambda tx, self, fn, /, _part=_part: (
            _with_part(self, _part, fn) if isinstance(self, DescriptorValue) else None
        )
    )


@method(types.FunctionType, "__get__")
def _function_get(tx: Trace, self: Value, instance: Value, owner: Value = NONE, /) -> Value:
    if tx.interp.is_none(instance) or not isinstance(self, FunctionValue):
        return self
    return BoundMethodValue(self, instance)


@method(staticmethod, "__get__")
@method(classmethod, "__get__")
@method(property, "__get__")
def _descriptor_get(
    tx: Trace, self: Value, instance: Value, owner: Value | None = None, /
) -> Value | None:
    if not isinstance(self, DescriptorValue):
        return None
    cls = tx.interp.type_of(instance) if owner is None else owner
    return tx.interp.bind_descriptor(self, None if tx.interp.is_none(instance) else instance, cls)


def _of_code(name: str) -> None:
    def listed(tx: Trace, self: Value, /) -> Value:
        found = getattr(tx.interp.concrete(self), name)()
        return tx.interp.iterator([tx.interp.const(entry) for entry in found])

    method(types.CodeType, name)(listed)


_of_code("co_positions")
_of_code("co_lines")


# --- text --------------------------------------------------------------------------------------


@method(str, "join")
def _join(tx: Trace, self: Value, iterable: Value, /) -> Value:
    separator = tx.interp.concrete(self)
    assert isinstance(separator, str)
    items = tx.interp.unpack(iterable, "can only join an iterable")
    texts: list[Value] = []
    for i, item in enumerate(items):
        if not issubclass(item.python_type(), str):
            message = f"sequence item {i}: expected str instance, {item.type_name} found"
            raise tx.interp.error(TypeError, message)
        if not isinstance(item, AddressedText):
            item = ConstantValue(str.__str__(cast(str, tx.interp.concrete(item))))
        texts += [ConstantValue(str.__str__(separator)), item] if i else [item]
    return joined(texts)


def _end(name: str, place: int) -> None:
    """``startswith`` and ``endswith``, of what a text with addresses is known to have there."""

    def method_of_str(tx: Trace, self: Value, wanted: Value, /, *bounds: Value) -> Value | None:
        part = self.parts[place] if isinstance(self, AddressedText) and not bounds else None
        known = tx.interp.concrete(wanted) if isinstance(part, str) else None
        if not isinstance(part, str) or not isinstance(known, str) or len(part) < len(known):
            return None
        return bool_value(getattr(part, name)(known))

    method(str, name)(method_of_str)


_end("startswith", 0)
_end("endswith", -1)


class _Formatted:
    """Stands for a value inside the host's ``str.format``; texts that vary are put in ``left``, and
    their places marked."""

    __slots__ = ("_left", "_tx", "_value")

    def __init__(self, tx: Trace, value: Value, left: list[Value]) -> None:
        self._tx = tx
        self._value = value
        self._left = left

    def __format__(self, spec: str) -> str:
        # Within a specification they must be known.
        known = lambda mark: str(self._tx.interp.concrete(self._left[int(mark[1])]))
        spec = _MARK.sub(known, spec)
        text = self._tx.interp.format(self._value, ConstantValue(spec))
        if type(text) is VaryingText:
            self._left.append(text)
            return f"\0of the tracer {len(self._left) - 1}\0"
        return str(self._tx.interp.concrete(text))

    def __str__(self) -> str:
        return str(self._tx.interp.concrete(self._tx.interp.str_of(self._value)))

    def __repr__(self) -> str:
        return str(self._tx.interp.concrete(self._tx.interp.repr_of(self._value)))

    def __getattribute__(self, name: str) -> object:
        if name in _Formatted.__slots__:
            return object.__getattribute__(self, name)
        return _Formatted(self._tx, self._value.getattr(self._tx, name), self._left)

    def __getitem__(self, key: object) -> _Formatted:
        tx = self._tx
        return _Formatted(tx, self._value.getitem(tx, tx.interp.const(key)), self._left)


_MARK = re.compile("\0of the tracer (\\d+)\0")


@method(str, "format")
def _format(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    def fill(known: str, left: list[Value]) -> str:
        named = {name: _Formatted(tx, value, left) for name, value in kwargs.items()}
        return known.format(*[_Formatted(tx, a, left) for a in args], **named)

    return _filled(tx, self, fill)


@method(str, "format_map")
def _format_map(tx: Trace, self: Value, mapping: Value, /) -> Value:
    return _filled(tx, self, lambda known, left: known.format_map(_Formatted(tx, mapping, left)))


def _filled(tx: Trace, template: Value, fill: Callable[[str, list[Value]], str]) -> Value:
    """The text that ``fill`` makes of a template, with what it has left to be made later."""
    left: list[Value] = []
    known = tx.interp.concrete(template)
    assert isinstance(known, str)
    text = tx.interp.hosted(fill, known, left)
    parts = _MARK.split(text)
    return joined(left[int(p)] if i % 2 else ConstantValue(p) for i, p in enumerate(parts))
