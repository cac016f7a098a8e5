"""Types, descriptors, ``super``, instance and class dicts."""

from __future__ import annotations

import functools
import types
from typing import Any

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES, HasInstanceDict, PlainObject
from torchsmith_tracer._src.values.classes import ClassValue, DescriptorValue, SuperValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.exceptions import UNDELETABLE, set_field
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinValue
from torchsmith_tracer._src.values.instance_dict import InstanceDictValue
from torchsmith_tracer._src.values.lookup import (
    C_DATA,
    NAMES,
    Found,
    attr_value,
    bind,
    chains,
    function_value,
    lookup,
    no_accessor,
    special,
)
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import NewObjectValue, ObjectValue
from torchsmith_tracer._src.values.twins import TwinValue
from torchsmith_tracer._src.values.views import MappingProxyValue


class Attributes(Part):
    """Attribute access beyond the values' own slots."""

    def special_method(self, value: Value, name: str) -> Value | None:
        cls = value.python_type()
        if not isinstance(value, PlainObject):
            return value.getattr(self.tx, name) if lookup(self.tx, cls, name) else None
        found = special(self.tx, cls, name)
        owner = self.type_of(value)
        return None if found is None else bind(self.tx, found, value, owner, name)

    def call_special(self, value: Value, name: str, *args: Value) -> Value | None:
        """What a special method gives; None where there is no such method."""
        method = self.special_method(value, name)
        return None if method is None else self.interp.call(method, args)

    def type_of(self, value: Value) -> ClassValue:
        """``type(value)``."""
        if isinstance(value, NewObjectValue) and isinstance(value.cls_value, ClassValue):
            return value.cls_value
        return self.interp.class_value(value.python_type())

    def bind_attribute(self, attr: object, value: Value, owner: type, name: str) -> Value:
        """A class attribute seen through a value of a builtin-like type."""
        return bind(self.tx, Found(attr, owner), value, self.type_of(value), name)

    def c_attribute(self, value: Value, name: str, descriptor: object) -> Value:
        """A getset or member descriptor read through an instance."""
        if isinstance(value, ObjectValue):
            return value.slot_get(self.tx, name, descriptor)
        if isinstance(value, ClassValue):
            if (special := value._special(self.tx, name)) is not None:
                return special
            return self.interp.fold(getattr, value.obj, name)
        if name == "__dict__":
            return self.instance_dict(value)
        known = self.interp.try_concrete(value)
        if known is self.interp.UNKNOWN:
            what = f"attribute {name!r} of {value.describe()}"
            raise Unsupported("unsupported-slot", what=what)
        return self.interp.fold(getattr, known, name)

    def c_descriptor(
        self, attr: object, instance: Value | None, owner: Value, found: Found, name: str
    ) -> Value:
        """A descriptor object implemented in C, other than methods and data."""
        if type(attr).__name__ == "_tuplegetter":
            if instance is None:
                return attr_value(self.tx, found, name)
            index = attr.__reduce__()[1][0]
            return instance.base_value().getitem(self.tx, ConstantValue(index))
        if isinstance(attr, functools._lru_cache_wrapper):
            func = attr_value(self.tx, found, name)
            return func if instance is None else BoundMethodValue(func, instance)
        if instance is None:
            return attr_value(self.tx, found, name)
        if isinstance(instance, ObjectValue) and instance.obj is not None:
            return instance.slot_get(self.tx, name, attr)
        what = f"descriptor {type(attr).__name__} {name!r}"
        raise Unsupported("unsupported-slot", what=what)

    def bind_descriptor(self, attr: Value, instance: Value | None, owner: Value) -> Value:
        """``__get__`` of a class attribute that traced code stored."""
        if isinstance(attr, DescriptorValue):
            if attr.cls is property:
                if instance is None:
                    return attr
                if (getter := attr.parts.get("fget")) is None:
                    raise no_accessor(self.tx, instance, attr.name, "getter")
                return self.interp.call(getter, [instance])
            func = attr.parts["__func__"]
            if attr.cls is staticmethod:
                return func
            if not chains(self.tx, func):
                return BoundMethodValue(func, owner)
            return self.bind_descriptor(func, owner, owner)
        if isinstance(attr, BuiltinValue) and isinstance(attr.obj, METHOD_TYPES):
            if instance is None or isinstance(attr.obj, types.BuiltinFunctionType):
                return attr
            descriptor = attr.obj
            return self.interp.builtin_method(
                instance,
                descriptor.__name__,
                getattr(descriptor, "__objclass__", object),
                descriptor,
            )
        if isinstance(attr, ObjectValue):
            got = self.call_special(attr, "__get__", instance or NONE, owner)
            if got is not None:
                return got
        elif attr.python_type() is super:
            raise Unsupported("unsupported-slot", what="a super object in a class")
        return attr

    def descriptor_set(self, found: Found, instance: Value, name: str, value: Value) -> None:
        """``type(attr).__set__(attr, instance, value)``."""
        if isinstance(found.attr, C_DATA):
            self._store_c_field(instance, name, value, found.attr)
        elif not self._call_accessor(found.attr, "fset", instance, name, value):
            self._call_method(found, name, "__set__", instance, value)

    def _call_accessor(
        self, attr: object, part: str, instance: Value, name: str, *args: Value
    ) -> bool:
        """Call ``fset`` or ``fdel`` of a property; False where ``attr`` is none."""
        if isinstance(attr, property):
            accessor = getattr(attr, part)
        elif isinstance(attr, DescriptorValue) and attr.cls is property:
            accessor = attr.parts.get(part)
        else:
            return False
        if accessor is None:
            noun = "setter" if part == "fset" else "deleter"
            known = attr.name if isinstance(attr, DescriptorValue) else name
            raise no_accessor(self.tx, instance, known, noun)
        self.interp.call(function_value(self.tx, accessor), [instance, *args])
        return True

    def _call_method(self, found: Found, name: str, slot: str, *args: Value) -> None:
        if self.call_special(attr_value(self.tx, found, name), slot, *args) is None:
            raise self.interp.error(AttributeError, slot)

    def _store_c_field(self, instance: Value, name: str, value: Value, attr: object) -> None:
        if (
            isinstance(instance, ObjectValue)
            and issubclass(instance.cls, BaseException)
            and (name != "__dict__")
        ):
            set_field(self.tx, instance, name, value)
        elif name == "__dict__" and isinstance(instance, ObjectValue):
            self._replace_dict(instance, value)
        elif isinstance(instance, ObjectValue) and isinstance(instance.storage, TwinValue):
            instance.storage.setattr(self.tx, name, value)
        elif isinstance(attr, types.MemberDescriptorType) or name == "__class__":
            if name == "__class__":
                raise Unsupported("unsupported-slot", what="setting __class__")
            self.tx.journal.store_attr(instance, name, value)
            table = instance.base_value()
            if name == "default_factory" and isinstance(table, DictValue):
                factory = None if self.interp.is_none(value) else value
                self.tx.journal.assign(table, "factory", factory)
        else:
            cls = instance.python_type()
            if cls.__module__ != "builtins":  # nothing tells whether its type lets it be written
                raise Unsupported("unsupported-slot", what=f"a store to {cls.__name__}.{name}")
            message = f"attribute {name!r} of {cls.__name__!r} objects is not writable"
            raise self.interp.error(AttributeError, message)

    def _replace_dict(self, instance: ObjectValue, value: Value) -> None:
        source = value.base_value()
        if not isinstance(source, DictValue):
            message = f"__dict__ must be set to a dictionary, not a '{value.type_name}'"
            raise self.interp.error(TypeError, message)
        journal = self.tx.journal
        of: Any = getattr(source, "instance", None)
        if source is instance.entries or instance in (of, journal.shared.get(of)):
            return
        # What a copied partial is given is part of its state, which others hold but do not change.
        state = isinstance(instance.base_value(), TwinValue)
        own = of is None and source.cls is dict and not (state and source.source)
        shared = instance in (*journal.shared, *journal.shared.values())
        lends = isinstance(of, ObjectValue) and (state or not instance.slot_names())
        if instance.obj is not None or shared or not (own or lends):
            raise Unsupported("unsupported-slot", what="a __dict__ that is used elsewhere, too,")
        self._leave_dict(instance)
        if isinstance(of, ObjectValue):
            journal.share(instance, journal.owner(of))
        elif not state:
            journal.assign(instance, "entries", source)
        else:
            for key, item in list(source.table.values()):
                instance.instance_set(self.tx, str(key.as_constant()), item)

    def _leave_dict(self, instance: ObjectValue) -> None:
        """Let the present ``__dict__`` be that of whoever holds it."""
        if instance.entries is not None:
            self.tx.journal.assign(instance, "entries", None)
            return
        names = instance.instance_names(self.tx)
        if instance.view is not None:
            instance.view.detach()
            self.tx.journal.assign(instance, "view", None)
        for name in names:
            self.tx.journal.store_attr(instance, name, DELETED)

    def _delete_dict(self, instance: Value) -> None:
        mro = instance.python_type().__mro__
        real = next(vars(base)["__dict__"] for base in mro if "__dict__" in vars(base))
        if real.__doc__ is None:  # of a class in C; those of ``class`` statements allow it
            raise self.interp.error(TypeError, "cannot delete __dict__")
        self._replace_dict(instance, DictValue())  # type: ignore[arg-type]

    def descriptor_delete(self, found: Found, instance: Value, name: str) -> None:
        """``type(attr).__delete__(attr, instance)``."""
        if isinstance(found.attr, C_DATA):
            if name in UNDELETABLE and issubclass(instance.python_type(), BaseException):
                raise self.interp.error(TypeError, f"{name} may not be deleted")
            if name == "__dict__":
                self._delete_dict(instance)
                return
            try:
                self.c_attribute(instance, name, found.attr)
            except ObservedException:  # an empty slot
                raise self.interp.error(AttributeError, name) from None
            self.tx.journal.store_attr(instance, name, DELETED)
        elif not self._call_accessor(found.attr, "fdel", instance, name):
            self._call_method(found, name, "__delete__", instance)

    def instance_dict(self, value: Value) -> Value:
        """``vars(value)`` as a live view of the instance's attributes."""
        if isinstance(value, ObjectValue):
            if value.entries is not None:
                return value.entries.owner or value.entries
            if value.view is None:
                self.tx.journal.assign(value, "view", InstanceDictValue(self.tx, value))
            return value.view  # type: ignore[return-value]
        if isinstance(value, HasInstanceDict):
            return InstanceDictValue(self.tx, value)
        known = self.tx.journal.attrs.get(value) or {}
        return self.interp.dict({k: v for k, v in known.items() if isinstance(v, Value)})

    def class_dict(self, cls: ClassValue) -> Value:
        """``cls.__dict__``."""
        table: dict[object, tuple[Value, Value]] = {}
        stored = self.tx.journal.attrs.get(cls) or {}
        for name in self.tx.world.class_names(cls.obj):
            if stored.get(name) is DELETED:
                continue
            attr = self.tx.world.class_entry(cls.obj, name)
            value = attr_value(self.tx, Found(attr, cls.obj), name)
            table[name] = (ConstantValue(name), value)
        for name, entry in stored.items():
            if isinstance(entry, Value) and name not in NAMES:
                table[name] = (ConstantValue(name), entry)
        return MappingProxyValue(DictValue(table))

    def patch_class(self, cls: ClassValue) -> None:
        """Note that traced code stores to a class, so that lookups consult the journal."""
        if cls.obj not in self.interp.patched_classes:
            self.interp.patched_classes[cls.obj] = cls
            self.tx.journal.stale[cls] = self.interp.class_cache

            def undo() -> None:
                self.interp.patched_classes.pop(cls.obj, None)
                self.interp.class_cache.clear()

            self.tx.journal.record(undo)
        self.interp.class_cache.clear()

    def super(self, cls: Value, obj: Value) -> Value:
        """``super(cls, obj)``."""
        if not isinstance(cls, ClassValue):
            message = f"super() argument 1 must be a type, not {cls.type_name}"
            raise self.interp.error(TypeError, message)
        if isinstance(obj, ClassValue) and type.__subclasscheck__(cls.obj, obj.obj):
            return SuperValue(cls, obj, obj.obj)
        if type.__subclasscheck__(cls.obj, obj.python_type()):
            return SuperValue(cls, obj, obj.python_type())
        message = "super(type, obj): obj must be an instance or subtype of type"
        raise self.interp.error(TypeError, message)
