"""What CPython does where a type has nothing in a slot, and attributes of instances of builtin
types: the type's table decides, there is no dict."""

from __future__ import annotations

import sys
import types

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import Deleted
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value

METHOD_TYPES = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.BuiltinFunctionType,
    types.ClassMethodDescriptorType,
)
UNARY_SIGNS = {"neg": "-", "pos": "+", "invert": "~"}


class PlainObject(Value):
    """Base of values that answer as CPython does where their type has nothing in a slot."""

    __slots__ = ()

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        raise self._error(tx, "{!r} object is not callable")

    def getitem(self, tx: Trace, key: Value) -> Value:
        raise self._error(tx, "{!r} object is not subscriptable", "__getitem__")

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        raise self._error(tx, "{!r} object does not support item assignment", "__setitem__")

    def delitem(self, tx: Trace, key: Value) -> None:
        raise self._error(tx, "{!r} object does not support item deletion", "__delitem__")

    def length(self, tx: Trace) -> Value:
        raise self._error(tx, "object of type {!r} has no len()", "__len__")

    def contains(self, tx: Trace, item: Value) -> Value:
        return tx.interp.contains_by_iteration(self, item)

    def iter(self, tx: Trace) -> Value:
        raise self._error(tx, "{!r} object is not iterable", "__iter__")

    def next(self, tx: Trace) -> Value:
        raise self._error(tx, "{!r} object is not an iterator", "__next__")

    def unary(self, tx: Trace, op: str) -> Value:
        message = f"bad operand type for unary {UNARY_SIGNS[op]}: {{!r}}"
        raise self._error(tx, message, f"__{op}__")

    def hash_key(self, tx: Trace) -> object:
        if self.python_type().__hash__ is None:
            raise self._error(tx, "unhashable type: {!r}")
        return tx.interp.identity_key(self)

    def _error(self, tx: Trace, message: str, slot: str = "") -> ObservedException | Unsupported:
        if slot and isinstance(self, BuiltinObject) and hasattr(self.python_type(), slot):
            return self._no(tx, slot)  # not asked for in the trace, but the type has it
        return tx.interp.error(TypeError, message.format(self.type_name))


def method_of_type(tx: Trace, value: Value, name: str) -> Value | None:
    """A method in C that the builtin type of ``value`` has, bound, or None."""
    for base in value.python_type().__mro__:
        if name in vars(base):
            if isinstance(descriptor := vars(base)[name], METHOD_TYPES):
                return tx.interp.builtin_method(value, name, base, descriptor)
            return None
    return None


class BuiltinObject(PlainObject):
    """Base of values whose type is builtin: methods come from the type, wrapped as bound."""

    __slots__ = ()

    def getattr(self, tx: Trace, name: str) -> Value:
        descriptor = self._in_type(name)
        if descriptor is _MISSING:
            raise self.no_attribute(tx, name)
        if name == "__class__":
            return tx.interp.type_of(self)
        if name == "__hash__" and descriptor is None:
            return tx.interp.const(None)
        return method_of_type(tx, self, name) or self.c_attribute(tx, name, descriptor)

    def _in_type(self, name: str) -> object:
        mro = self.python_type().__mro__
        return next((vars(base)[name] for base in mro if name in vars(base)), _MISSING)

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        """An attribute of the type that is not a method: getset, member, Python function ..."""
        return tx.interp.bind_attribute(descriptor, self, self.python_type(), name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        found = self._in_type(name)
        if self.python_type().__dictoffset__ or hasattr(type(found), "__set__"):
            super().setattr(tx, name, value)  # natively: it may be taken, or be refused otherwise
        if found is not _MISSING:
            message = f"{self.type_name!r} object attribute {name!r} is read-only"
        else:
            message = f"{self.type_name!r} object has no attribute {name!r}"
            if sys.version_info >= (3, 13):
                message += " and no __dict__ for setting new attributes"
        raise tx.interp.error(AttributeError, message, name=name, obj=self)

    def delattr(self, tx: Trace, name: str) -> None:
        self.setattr(tx, name, self)


_MISSING = object()


class HasInstanceDict:
    """Mixin of values that have an instance ``__dict__``; that of ``real``, if it exists."""

    __slots__ = ()

    def instance_get(self, tx: Trace, name: str) -> Value | None:
        """The entry of the instance dict, or None."""
        if (stored := tx.journal.load_attr(self, name)) is not None:  # type: ignore[arg-type]
            return None if isinstance(stored, Deleted) else stored
        real, source = self.real, self.source  # type: ignore[attr-defined]
        return None if source is None else tx.world.instance_entry(real, source, name)

    def instance_set(self, tx: Trace, name: str, value: Value) -> None:
        """Store into the instance dict."""
        tx.journal.store_attr(self, name, value)  # type: ignore[arg-type]

    def instance_names(self, tx: Trace) -> list[str]:
        """Names in the instance dict, in order."""
        real = tx.world.instance_names(self.real, self.source)  # type: ignore[attr-defined]
        return tx.journal.names(self, real)  # type: ignore[arg-type]

    def guard_missing(self, tx: Trace, name: str) -> None:
        """Guard that the dict of an existing object lacks ``name``."""
        real, source = self.real, self.source  # type: ignore[attr-defined]
        stored = tx.journal.load_attr(self, name)  # type: ignore[arg-type]
        if real is not None and source is not None and stored is None:
            tx.world.no_entry(real, source, name, f"attribute {name!r} is not there")
