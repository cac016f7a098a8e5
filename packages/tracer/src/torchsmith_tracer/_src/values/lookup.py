"""Attribute lookup on classes: MRO walk, stores journalled for classes, binding of descriptors.

This is ``_PyType_Lookup`` and ``tp_descr_get`` for real and traced classes. A class attribute is
either a host object from a real class's ``__dict__`` or a ``Value`` stored by traced code.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import NamedTuple, TypeGuard

from torchsmith_guards import AttrSource, PinnedSource, class_dict, class_mro

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.facts.world import ABSENT
from torchsmith_tracer._src.torch_private import module_getattr
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES, HasInstanceDict
from torchsmith_tracer._src.values.functions import BoundMethodValue, FunctionValue


class Found(NamedTuple):
    """A class attribute: a host object or a ``Value``, and the class whose dict holds it."""

    attr: object
    owner: type


def in_python(found: Found | None) -> TypeGuard[Found]:
    """Whether a special method is there and is no method of C."""
    return found is not None and not isinstance(found.attr, METHOD_TYPES)


NAMES = ("__name__", "__qualname__")  # of a class, which its table does not have
C_DATA = (types.GetSetDescriptorType, types.MemberDescriptorType)


def lookup(tx: Trace, cls: type, name: str) -> Found | None:
    """Find ``name`` along the MRO of ``cls``."""
    cache = tx.interp.class_cache
    key = (cls, name)
    found = cache.get(key, ABSENT)
    if found is ABSENT:
        found = cache[key] = lookup_in(tx, tx.world.mro(cls), name)
    return found  # type: ignore[return-value]


def special(tx: Trace, cls: type, name: str) -> Found | None:
    """Find a special method. For a few of them None says that there is none; in the place of any
    other it is called."""
    found = lookup(tx, cls, name)
    if found is not None and found.attr is None:
        return None if name in ("__hash__", "__iter__", "__contains__", "__reversed__") else found
    return found


def lookup_in(tx: Trace, mro: tuple[type, ...], name: str) -> Found | None:
    """Find ``name`` in the given classes, in order."""
    patched = tx.interp.patched_classes
    entry = tx.world.class_entry
    for base in mro:
        if (value := patched.get(base)) is not None:
            stored = tx.journal.load_attr(value, name)
            if stored is DELETED:
                continue
            if stored is not None and name not in NAMES:
                return Found(stored, base)
        attr = entry(base, name)
        if attr is not ABSENT:
            return Found(attr, base)
    return None


def attr_value(tx: Trace, found: Found, name: str) -> Value:
    """The class attribute itself as a value, not bound."""
    if isinstance(found.attr, Value):
        return found.attr
    interp = tx.interp
    key = (found.owner, name)
    if (value := interp.class_attr_values.get(key)) is None:
        value = tx.world.class_attribute(found.owner, name, found.attr)
        interp.class_attr_values[key] = value
    return value


def function_value(tx: Trace, fn: object) -> Value:
    """The function inside a class attribute (``property.fget``, ``staticmethod.__func__``), which
    the descriptor holds for ever."""
    return fn if isinstance(fn, Value) else tx.builder.wrap_new(fn)


def is_data_descriptor(tx: Trace, attr: object) -> bool:
    """True when the attribute overrides the instance dict."""
    if isinstance(attr, Value):
        cls = attr.python_type()
        return lookup(tx, cls, "__set__") is not None or lookup(tx, cls, "__delete__") is not None
    cls = type(attr)
    return lookup(tx, cls, "__set__") is not None or lookup(tx, cls, "__delete__") is not None


def hides_entry(tx: Trace, attr: object) -> bool:
    """True when the attribute, and not the instance dict, is read: it has a ``__get__``, too."""
    cls = attr.python_type() if isinstance(attr, Value) else type(attr)
    return is_data_descriptor(tx, attr) and lookup(tx, cls, "__get__") is not None


def computes(tx: Trace, cls: type, found: Found | None) -> bool:
    """Whether reading an attribute that the instance has not may run code of the user's: that of a
    descriptor that was ``found``, or a ``__getattr__``. Nothing depends on it but how to read."""
    if found is not None:
        plain = (types.FunctionType, staticmethod, classmethod, *METHOD_TYPES)
        return not isinstance(found.attr, plain) and (
            isinstance(found.attr, Value) or lookup(tx, type(found.attr), "__get__") is not None
        )
    hooks = (class_dict(base).get("__getattr__") for base in class_mro(cls))
    return next((hook for hook in hooks if hook is not None), module_getattr) is not module_getattr


def bind(tx: Trace, found: Found, instance: Value | None, owner: Value, name: str) -> Value:
    """``tp_descr_get``: the attribute as seen through ``instance`` (None: through ``owner``)."""
    attr = found.attr
    if isinstance(attr, Value):
        return _bind_value(tx, attr, instance, owner)
    if isinstance(attr, types.FunctionType):
        value = attr_value(tx, found, name)
        return value if instance is None else BoundMethodValue(value, instance)
    if isinstance(attr, property):
        if instance is None:
            return attr_value(tx, found, name)
        if attr.fget is None:
            raise no_accessor(tx, instance, name, "getter")
        return tx.interp.call(function_value(tx, attr.fget), [instance])
    if isinstance(attr, staticmethod):
        return function_value(tx, attr.__func__)
    if isinstance(attr, classmethod):
        func = function_value(tx, attr.__func__)
        if not chains(tx, func):
            return BoundMethodValue(func, owner)
        if isinstance(attr.__func__, property):
            return tx.interp.call(function_value(tx, attr.__func__.fget), [owner])
        return _bind_value(tx, func, owner, owner)
    if isinstance(attr, functools.cached_property):
        if instance is None:
            return attr_value(tx, found, name)
        place = AttrSource(PinnedSource(attr), "func")  # which may be replaced
        func = attr.func if isinstance(attr.func, Value) else tx.builder.wrap(attr.func, place)
        return cached(tx, func, instance, attr.attrname or name)
    if isinstance(attr, METHOD_TYPES):
        through = owner if isinstance(attr, types.ClassMethodDescriptorType) else instance
        if isinstance(attr, types.BuiltinFunctionType) or through is None:
            return attr_value(tx, found, name)
        if through is instance and not issubclass(through.python_type(), attr.__objclass__):
            raise Unsupported("opaque-call", what=attr.__qualname__)  # which refuses the object
        # A class may have it under another name, and from a class that is no base of it.
        return tx.interp.builtin_method(through, attr.__name__, attr.__objclass__, attr)
    if isinstance(attr, C_DATA):
        if instance is None:
            return attr_value(tx, found, name)
        return tx.interp.c_attribute(instance, name, attr)
    if (getter := lookup(tx, type(attr), "__get__")) is None:
        return attr_value(tx, found, name)
    if isinstance(getter.attr, types.FunctionType):
        descriptor = attr_value(tx, found, name)
        bound = bind(tx, getter, descriptor, tx.interp.type_of(descriptor), "__get__")
        return tx.interp.call(bound, [tx.interp.none if instance is None else instance, owner])
    return tx.interp.c_descriptor(attr, instance, owner, found, name)


def call_found(tx: Trace, found: Found, value: Value, name: str, *args: Value) -> Value:
    """Call a method of a value's class that was found under ``name``."""
    return tx.interp.call(bind(tx, found, value, tx.interp.type_of(value), name), args)


def chains(tx: Trace, func: Value) -> bool:
    """Whether a class method asks the ``__get__`` of ``func``; others are called with the class."""
    plain = isinstance(func, FunctionValue) or sys.version_info >= (3, 13)
    return not plain and lookup(tx, func.python_type(), "__get__") is not None


def no_accessor(tx: Trace, instance: Value, name: str | None, noun: str) -> Exception:
    """The error for a property, of this name if it has one, that has no getter, say."""
    owner = tx.interp.type_of(instance).getattr(tx, "__qualname__").as_constant()
    named = "property" if name is None else f"property {name!r}"
    return tx.interp.error(AttributeError, f"{named} of {owner!r} object has no {noun}")


def _bind_value(tx: Trace, attr: Value, instance: Value | None, owner: Value) -> Value:
    if isinstance(attr, FunctionValue):
        return attr if instance is None else BoundMethodValue(attr, instance)
    return tx.interp.bind_descriptor(attr, instance, owner)


def cached(tx: Trace, func: Value, instance: Value, name: str) -> Value:
    """``functools.cached_property.__get__`` without its lock."""
    if not isinstance(instance, HasInstanceDict):
        raise Unsupported("unsupported-slot", what=f"cached property {name!r}")
    if not getattr(instance, "has_dict", lambda: True)():
        text = f"No '__dict__' attribute on {instance.type_name!r} instance to cache {name!r}"
        raise tx.interp.error(TypeError, f"{text} property.")
    if (found := instance.instance_get(tx, name)) is None:
        found = tx.interp.call(func, [instance])
        instance.instance_set(tx, name, found)
    return found


def disguises(cls: type) -> bool:
    """Whether instances compute their ``__class__``: ``isinstance`` then runs the user's code."""
    return any(
        "__class__" in table or isinstance(table.get("__getattribute__"), types.FunctionType)
        for table in map(class_dict, class_mro(cls)[:-1])
    )
