"""Instances of Python classes: existing ones and those born while tracing.

Attribute access is CPython's generic algorithm over ``lookup``; the other slots find the dunder
method on the class. An instance of a user subclass of a builtin type carries the builtin part in
``storage``, to which inherited C methods apply.
"""

from __future__ import annotations

import _random
import collections
import enum
import sys
import threading
import types
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchsmith_guards import AttrSource, ItemSource, PinnedSource, Source

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import DELETED, Journal
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.frames.library import is_library, is_library_module
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES, HasInstanceDict, PlainObject
from torchsmith_tracer._src.values.constants import ConstantValue, dunder
from torchsmith_tracer._src.values.lookup import (
    C_DATA,
    Found,
    bind,
    call_found,
    computes,
    hides_entry,
    is_data_descriptor,
    lookup,
    special,
)
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.special_methods import HasSpecialMethods

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.instance_dict import InstanceDictValue
    from torchsmith_tracer._src.values.mappings import DictValue


class ObjectValue(HasSpecialMethods, PlainObject, HasInstanceDict):
    """An existing object of a Python class; the builder has guarded its type.

    Attributes:
        obj: the real object (None for ``NewObjectValue``).
        cls: its class.
        storage: value of the builtin part for subclasses of dict, list, tuple, int ..., or None.
        entries: the dict that its ``__dict__`` is, where that was known as a dict before.
        view: else its ``__dict__`` as a dict, once somebody has asked for it.
    """

    __slots__ = ("cls", "entries", "obj", "storage", "view")

    def __init__(
        self, obj: object, source: Source | None = None, storage: Value | None = None
    ) -> None:
        super().__init__(source)
        self.obj = obj
        self.cls: type = type(obj)
        self.storage = storage
        self.entries: DictValue | None = None
        self.view: InstanceDictValue | None = None
        if storage is not None and hasattr(storage, "owner"):
            storage.owner = self

    def base_value(self) -> Value:
        return self if self.storage is None else self.storage

    def as_constant(self) -> object:
        return super().as_constant() if self.storage is None else self.storage.as_constant()

    def as_proxy(self) -> object:
        return super().as_proxy() if self.storage is None else self.storage.as_proxy()

    # --- instance dict -----------------------------------------------------------------------
    def instance_get(self, tx: Trace, name: str) -> Value | None:
        if self.entries is not None and not self._in_twin(name):
            return self.entries.get_str(tx, name)
        if (stored := tx.journal.load_attr(self, name)) is not None:
            return None if stored is DELETED else stored  # type: ignore[return-value]
        if self._in_twin(name):
            assert isinstance(self.storage, NewObjectValue)
            return self.storage.instance_get(tx, name)
        return self.real_get(tx, name)

    def _in_twin(self, name: str) -> bool:
        """Whether an attribute is state of the twin (``values/twins.py``) of the C part."""
        storage = self.storage
        return isinstance(storage, NewObjectValue) and name in storage.cls.state  # type: ignore[attr-defined]

    def real_get(self, tx: Trace, name: str) -> Value | None:
        """An entry of the real object's dict, wrapped and guarded."""
        assert self.source is not None, "an existing object has a source"
        place = self.entry_source(tx, name)
        return tx.world.instance_entry(self.obj, self.source, name, place)

    def entry_source(self, tx: Trace, name: str) -> Source:
        """The path to an entry of the real object's dict: attribute access, unless that may run
        code of the class's."""
        assert self.source is not None, "an existing object has a source"
        found, getter = lookup(tx, self.cls, name), lookup(tx, self.cls, "__getattribute__")
        if computes(tx, self.cls, found) or (getter is not None and self._overrides(getter)):
            return ItemSource(tx.world.own_table(self.obj, self.source), name)
        return AttrSource(self.source, name)

    def instance_set(self, tx: Trace, name: str, value: Value) -> None:
        if self._in_twin(name):
            self.storage.instance_set(tx, name, value)  # type: ignore[union-attr]
        elif self.entries is not None:
            self.entries.store(tx, name, ConstantValue(name), value)
        else:
            tx.journal.store_attr(self, name, value)

    def instance_names(self, tx: Trace) -> list[str]:
        """Names in the instance dict, in order."""
        if self.entries is not None:
            return self.entries.names()
        owner = self.dict_owner(tx)
        names = tx.journal.names(self, tx.world.instance_names(owner.obj, owner.source))
        slots = self.slot_names() if tx.journal.stores(self) else frozenset()
        return [n for n in names if n not in slots]

    def dict_owner(self, tx: Trace) -> ObjectValue:
        """The first object with this one's instance dict: mostly the object itself."""
        return tx.journal.owner(self)  # type: ignore[return-value]

    def slot_names(self) -> frozenset[str]:
        return frozenset(
            name
            for base in self.cls.__mro__
            for name, attr in base.__dict__.items()
            if isinstance(attr, C_DATA[1])
        )

    def guard_missing(self, tx: Trace, name: str) -> None:
        """Guard that the instance dict of an existing object lacks ``name``, which the class then
        provides, unless traced code has deleted it there."""
        owner, absent = self.dict_owner(tx), tx.world.absent
        stored = self.entries is not None or tx.journal.load_attr(owner, name) is not None
        if owner.source is None or stored or (owner, name) in absent:
            return
        absent.add((owner, name))
        if tx.world.instance_dict(owner.obj) is not None:
            why = f"attribute {name!r} comes from the class"
            tx.world.no_entry(owner.obj, owner.source, name, why)

    # --- attributes --------------------------------------------------------------------------
    def getattr(self, tx: Trace, name: str) -> Value:
        getter = lookup(tx, self.cls, "__getattribute__")
        try:
            if getter is not None and getter.owner is not object and self._overrides(getter):
                return call_found(tx, getter, self, "__getattribute__", ConstantValue(name))
            return self.generic_getattr(tx, name)
        except ObservedException as e:
            return self._fallback(tx, name, e)

    @staticmethod
    def _overrides(getter: Found) -> bool:
        return type(getter.attr).__name__ != "wrapper_descriptor"

    def _fallback(self, tx: Trace, name: str, error: ObservedException) -> Value:
        """``__getattr__``, when the first lookup ended in AttributeError."""
        hook = lookup(tx, self.cls, "__getattr__")
        if hook is None or not tx.interp.exception_matches(error.exc, AttributeError):
            raise ObservedException(error.exc)  # not ``error``: its traceback would lead here
        return call_found(tx, hook, self, "__getattr__", ConstantValue(name))

    def generic_getattr(self, tx: Trace, name: str) -> Value:
        """``object.__getattribute__``."""
        if name == "__dict__" and not self.has_dict():
            raise self.no_attribute(tx, name)
        if name == "__dict__" and self.cls is threading.local:  # which has no descriptor for it
            return tx.interp.instance_dict(self)
        found = lookup(tx, self.cls, name)
        if found is not None and hides_entry(tx, found.attr):
            return bind(tx, found, self, tx.interp.type_of(self), name)
        if (value := self.instance_get(tx, name)) is not None:
            return value
        self.guard_missing(tx, name)
        if found is not None:
            return bind(tx, found, self, tx.interp.type_of(self), name)
        raise self.no_attribute(tx, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        hook = lookup(tx, self.cls, "__setattr__")
        if hook is not None and self._overrides(hook):
            call_found(tx, hook, self, "__setattr__", ConstantValue(name), value)
        else:
            self.generic_setattr(tx, name, value)

    def generic_setattr(self, tx: Trace, name: str, value: Value) -> None:
        """``object.__setattr__``."""
        found = lookup(tx, self.cls, name)
        if found is not None and is_data_descriptor(tx, found.attr):
            tx.interp.descriptor_set(found, self, name, value)
            return
        self._require_dict(tx, name, found)
        self.instance_set(tx, name, value)

    def has_dict(self) -> bool:
        """Whether instances of the class have a ``__dict__``."""
        return self.cls.__dictoffset__ != 0 or self.cls is threading.local

    def _require_dict(self, tx: Trace, name: str, found: Found | None) -> None:
        if not self.has_dict() and not self._in_twin(name):
            message = f"{self.type_name!r} object has no attribute {name!r}"
            if found is None and sys.version_info >= (3, 13):
                message += " and no __dict__ for setting new attributes"
            elif found is not None:
                message = f"{self.type_name!r} object attribute {name!r} is read-only"
            raise tx.interp.error(AttributeError, message, name=name, obj=self)

    def delattr(self, tx: Trace, name: str) -> None:
        hook = lookup(tx, self.cls, "__delattr__")
        if hook is not None and self._overrides(hook):
            call_found(tx, hook, self, "__delattr__", ConstantValue(name))
        else:
            self.generic_delattr(tx, name)

    def generic_delattr(self, tx: Trace, name: str) -> None:
        """``object.__delattr__``."""
        found = lookup(tx, self.cls, name)
        if found is not None and is_data_descriptor(tx, found.attr):
            tx.interp.descriptor_delete(found, self, name)
            return
        self._require_dict(tx, name, found)
        if self.instance_get(tx, name) is None:
            self.guard_missing(tx, name)
            raise self.no_attribute(tx, name)
        if self.entries is not None:
            self.entries.remove(tx, ConstantValue(name))
        else:
            tx.journal.store_attr(self, name, DELETED)

    def slot_get(self, tx: Trace, name: str, descriptor: object) -> Value:
        """A ``__slots__`` member or other C-level attribute (getset) of the instance."""
        stored = tx.journal.load_attr(self, name)
        if stored is not None and stored is not DELETED:
            return stored  # type: ignore[return-value]
        if name == "__dict__":
            return tx.interp.instance_dict(self)
        if name == "__weakref__":
            raise Unsupported("opaque-attribute", what=f"__weakref__ of {self.describe()}")
        if name == "__class__":
            return tx.interp.type_of(self)
        if self.storage is not None and (
            isinstance(self.storage, NewObjectValue)
            or not isinstance(descriptor, C_DATA[1])
            or (
                self.obj is None and issubclass(self.storage.python_type(), descriptor.__objclass__)
            )
        ):
            return self.storage.getattr(tx, name)
        if stored is None and self.obj is not None:
            assert self.source is not None, "an existing object has a source"
            if (found := tx.world.attribute(self.obj, self.source, name)) is not None:
                return found
        raise self.no_attribute(tx, name)

    # --- other slots: the class's dunder methods -----------------------------------------------
    def type_entry(self, tx: Trace, name: str) -> Found | None:
        return lookup(tx, self.cls, name)

    def special_method(self, tx: Trace, name: str) -> Value | None:
        found = special(tx, self.cls, name)
        return None if found is None else bind(tx, found, self, tx.interp.type_of(self), name)

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if (target := self.call_target(tx, args, kwargs)) is None:
            raise tx.interp.error(TypeError, f"{self.type_name!r} object is not callable")
        return target[0].call(tx, target[1], target[2])

    def call_target(
        self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> tuple[Value, Sequence[Value], dict[str, Value]] | None:
        method = self.special_method(tx, "__call__")
        return None if method is None else (method, args, kwargs)

    def hash_key(self, tx: Trace) -> object:
        found = lookup(tx, self.cls, "__hash__")
        if found is None or found.attr is None:
            raise tx.interp.error(TypeError, f"unhashable type: {self.type_name!r}")
        if found.attr is object.__hash__:
            return tx.interp.identity_key(self)
        if self.storage is not None and isinstance(found.attr, METHOD_TYPES):
            equal = lookup(tx, self.cls, "__eq__")
            if equal is None or isinstance(equal.attr, METHOD_TYPES):
                return self.storage.hash_key(tx)
        return tx.interp.user_key(self)

    def reconstruct(self, cg: Emitter) -> str:
        if self.obj is None:
            return super().reconstruct(cg)
        return cg.bound(self.obj, self.cls.__name__)


class NewObjectValue(ObjectValue):
    """An instance made by traced code. Its attributes live in the journal's attribute table.

    Args:
        journal: the trace's journal.
        cls: its class (for a class made by traced code, the stand-in class).
        cls_value: the class as a value.
        storage: the builtin part, if any.
    """

    __slots__ = ("cls_value", "journal")

    def __init__(
        self,
        journal: Journal,
        cls: type,
        cls_value: Value | None = None,
        storage: Value | None = None,
    ) -> None:
        super().__init__(None, None, storage)
        self.journal = journal
        self.cls = cls
        self.cls_value = cls_value

    def describe(self) -> str:
        return f"new object of class {self.cls.__name__}"

    def real_get(self, tx: Trace, name: str) -> Value | None:
        owner = self.dict_owner(tx)
        return None if owner is self else owner.real_get(tx, name)

    def reconstruct(self, cg: Emitter) -> str:
        if (rebuild := getattr(self.storage, "rebuild", None)) is not None:
            made: str = rebuild(cg, self)
            return made
        base = storage_base(self.cls)
        content: list[Value | str] = []
        if isinstance(self.storage, ConstantValue) or base in (tuple, frozenset):
            assert self.storage is not None
            content = [self.storage]
            if isinstance(self.storage, SetValue):
                content = [self.storage.content_text(cg)]
        return cg.call_of(cg.bound(base.__new__, "new"), [self.class_expr(cg), *content])

    def class_expr(self, cg: Emitter) -> str:
        """The object's class."""
        return cg.bound(self.cls) if self.cls_value is None else cg.expr(self.cls_value)

    def reconstruct_fill(self, cg: Emitter) -> None:
        # The attributes are in the journal; the emitter stores those of any new object.
        fill = _FILL.get(storage_base(self.cls))
        if isinstance(self.storage, SetValue):
            if self.storage.cls is set:
                self.storage.redo(cg, self)
        elif self.storage is not None and fill is not None:
            cg.effect(fill, self, self.storage)


def _fill_dict(obj: dict[object, object], content: dict[object, object]) -> None:
    for key, value in content.items():
        dict.__setitem__(obj, key, value)


def _fill_ordered(obj: object, content: dict[object, object]) -> None:
    for key, value in content.items():
        _ordered_setitem(obj, key, value)


def _fill_defaultdict(
    obj: collections.defaultdict[object, object], content: collections.defaultdict[object, object]
) -> None:
    obj.default_factory = content.default_factory
    _fill_dict(obj, content)


_ordered_setitem: Callable[[object, object, object], None]
_ordered_setitem = collections.OrderedDict.__dict__["__setitem__"]
_FILL: dict[type, Callable[..., None]] = {
    dict: _fill_dict,
    collections.defaultdict: _fill_defaultdict,
    collections.OrderedDict: _fill_ordered,
    list: list.extend,
    collections.deque: lambda obj, given: collections.deque.__init__(obj, given, given.maxlen),
    _random.Random: _random.Random.setstate,
}


def is_struct_sequence(cls: type) -> bool:
    """Whether ``cls`` is a tuple of C whose fields have names: ``sys.version_info``, say."""
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def storage_base(cls: type) -> type:
    """The class in C that lays out instances of ``cls``: the nearest base, or ``cls`` itself, with
    a ``__new__`` of its own or fields that its base has not."""
    if (found := _STORAGE_BASES.get(cls)) is None:
        found = cls
        while not _lays_out(found) and found.__base__ is not None:
            found = found.__base__
        _STORAGE_BASES[cls] = found
    return found


_STORAGE_BASES: weakref.WeakKeyDictionary[type, type] = weakref.WeakKeyDictionary()
_C_FUNCTIONS = (
    types.WrapperDescriptorType,
    types.MethodDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
)


def defines_new(cls: type) -> bool:
    """Whether ``cls`` has a constructor of its own in C."""
    new = cls.__dict__.get("__new__")
    return isinstance(new, types.BuiltinFunctionType) and new.__self__ is cls


def _lays_out(cls: type) -> bool:
    own = cls.__dict__
    if defines_new(cls):
        return True
    base = cls.__base__
    if base is None or cls.__basicsize__ == base.__basicsize__:
        return False
    # A class statement makes getters of these two only, and members for its slots.
    return any(
        isinstance(attr, _C_FUNCTIONS) and attr.__objclass__ is cls
        for name, attr in own.items()
        if name not in ("__dict__", "__weakref__")
    )


def users_method(tx: Trace, cls: type, *names: str) -> Found | None:
    """The first of these that a class of the user's defines, ``cls`` or a base of it."""
    for name in names:
        found = lookup(tx, cls, name)
        if found is None or isinstance(found.attr, METHOD_TYPES):
            continue
        code = getattr(getattr(found.attr, "__func__", found.attr), "__code__", None)
        if code is None or not is_library(code):
            return found
    return None


class EnumValue(HasSpecialMethods, ConstantValue):
    """A member of an enum class: a constant, with the attributes and methods of its class. What
    the user's classes say nothing about is computed on the member itself."""

    __slots__ = ()
    asks_class = True

    def as_proxy(self) -> object:
        member = self.value
        if isinstance(member, enum.IntFlag) and member._name_ not in type(member).__members__:
            return int.__int__(member)  # graphs print members by name, which combinations lack
        return member

    def special_method(self, tx: Trace, name: str) -> Value | None:
        found = users_method(tx, type(self.value), name)
        return None if found is None else bind(tx, found, self, tx.interp.type_of(self), name)

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if isinstance(other, EnumValue):
            own = users_method(tx, type(self.value), dunder(op, reflected=reflected))
            mirrored = dunder(op, reflected=not reflected)
            if own is None and users_method(tx, type(other.value), mirrored):
                return None
        return super().binary(tx, op, other, reflected=reflected)

    def hash_key(self, tx: Trace) -> object:
        own = users_method(tx, type(self.value), "__hash__")
        if own is not None and own.attr is None:
            raise tx.interp.error(TypeError, f"unhashable type: {type(self.value).__name__!r}")
        if own is not None or users_method(tx, type(self.value), "__eq__") is not None:
            return tx.interp.user_key(self)
        return super().hash_key(tx)

    def getattr(self, tx: Trace, name: str) -> Value:
        cls = type(self.value)
        found = lookup(tx, cls, name)
        member = self.value
        source = self.source or PinnedSource(member)
        library = found is None or is_library_module(found.owner.__module__)
        if found is None or library or not is_data_descriptor(tx, found.attr):
            entry = f"_{name}_" if name in ("name", "value") else name
            if (value := tx.world.instance_entry(member, source, entry)) is not None:
                return value
            why = "attribute of an enum member was looked up"
            tx.world.no_entry(member, source, entry, why)
        if found is None:
            computed = self.call_special(tx, "__getattr__", ConstantValue(name))
            return computed or super().getattr(tx, name)
        if library:
            return super().getattr(tx, name)
        if isinstance(member, enum.Enum) and name in type(member).__members__:
            return tx.interp.const(getattr(member, name))
        return bind(tx, found, self, tx.interp.type_of(self), name)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.bound(self.value, "member")
