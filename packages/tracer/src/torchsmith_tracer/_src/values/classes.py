"""Classes and ``super`` objects."""

from __future__ import annotations

import abc
import enum
import types
import weakref

from torchsmith_guards import Source, class_mro

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.frames.library import is_library_module
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, RealObject, Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject, PlainObject
from torchsmith_tracer._src.values.constants import FALSE, NONE, ConstantValue
from torchsmith_tracer._src.values.lookup import (
    C_DATA,
    NAMES,
    bind,
    call_found,
    in_python,
    is_data_descriptor,
    lookup,
    lookup_in,
)
from torchsmith_tracer._src.values.special_methods import HasSpecialMethods

_ANSWERS = {"__getattr__", "__getattribute__"}


class ClassValue(HasSpecialMethods, RealObject, PlainObject):
    """A class. Stores to it are attribute stores in the journal.

    Attributes:
        obj: the class; for a class made by traced code a stand-in with the same bases and name,
            whose attributes are all in the journal.
        recipe: for a class made by traced code: metaclass, bases and keywords as values.
    """

    __slots__ = ("recipe",)
    obj: type

    def __init__(self, obj: type, source: Source | None = None) -> None:
        super().__init__(obj, source)
        self.recipe: tuple[Value, tuple[Value, ...], dict[str, Value]] | None = None

    def describe(self) -> str:
        return f"class {self.obj.__name__}"

    def titled(self) -> str:
        return f"type object {self.obj.__name__!r}"

    def is_constant(self) -> bool:
        return self.recipe is None

    def as_constant(self) -> object:
        return self.obj if self.recipe is None else super().as_constant()

    def as_proxy(self) -> object:
        # Printing a graph asks for attributes of a class.
        if any(_ANSWERS & vars(meta).keys() for meta in class_mro(type(self.obj))[:-2]):
            return super().as_proxy()
        return self.obj

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return tx.interp.call_class(self, args, kwargs)

    def getattr(self, tx: Trace, name: str) -> Value:
        meta = tx.world.metaclass(self.obj)
        if meta is not type:
            hook = lookup(tx, meta, "__getattribute__")
            if hook is not None and isinstance(hook.attr, types.FunctionType):
                return call_found(tx, hook, self, "__getattribute__", ConstantValue(name))
        return self.generic_getattr(tx, name)

    def generic_getattr(self, tx: Trace, name: str) -> Value:
        """``type.__getattribute__``."""
        cls = self.obj
        meta = type(cls)
        on_meta = lookup(tx, meta, name)
        if on_meta is not None and is_data_descriptor(tx, on_meta.attr):
            if (special := self._special(tx, name)) is not None:
                return special
            return bind(tx, on_meta, self, tx.interp.type_of(self), name)
        if (found := lookup(tx, cls, name)) is not None:
            if isinstance(cls, enum.EnumMeta) and isinstance(found.attr, cls):
                return tx.interp.const(found.attr)
            return bind(tx, found, None, self, name)
        if on_meta is not None:
            return bind(tx, on_meta, self, tx.interp.type_of(self), name)
        if isinstance(cls, enum.EnumMeta) and name in tx.world.enum_members(cls):
            return tx.interp.const(cls.__members__[name])
        hook = lookup(tx, meta, "__getattr__")
        if hook is not None and not is_library_module(hook.owner.__module__):
            return call_found(tx, hook, self, "__getattr__", ConstantValue(name))
        raise self.no_attribute(tx, name)

    def _special(self, tx: Trace, name: str) -> Value | None:
        """Attributes that ``type`` computes."""
        stored = tx.journal.load_attr(self, name)
        if isinstance(stored, Value):
            return tx.interp.bind_descriptor(stored, None, self) if name == "__doc__" else stored
        cls = self.obj
        if name == "__class__":
            return tx.interp.type_of(self)
        if name == "__mro__":
            return tx.interp.tuple([tx.interp.class_value(c) for c in tx.world.mro(cls)])
        if name in ("__bases__", "__base__"):
            tx.world.mro(cls)
            found = getattr(cls, name)
            if name == "__base__":
                return tx.interp.class_value(found or object)
            return tx.interp.tuple([tx.interp.class_value(c) for c in found])
        if name == "__dict__":
            return tx.interp.class_dict(self)
        if name in _COMPUTED:
            if self.source is None:
                return tx.interp.fold(getattr, cls, name)
            if (value := tx.world.attribute(cls, self.source, name)) is None:
                raise self.no_attribute(tx, name)
            return value
        return None

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if not self._call_hook(tx, "__setattr__", ConstantValue(name), value):
            self.generic_setattr(tx, name, value)

    def _call_hook(self, tx: Trace, name: str, *args: Value) -> bool:
        """Call a method of the metaclass; False where that is ``type``'s own."""
        hook = lookup(tx, type(self.obj), name)
        if hook is None or not in_python(hook):
            return False
        call_found(tx, hook, self, name, *args)
        return True

    def generic_setattr(self, tx: Trace, name: str, value: Value) -> None:
        """``type.__setattr__``."""
        self._refuse_immutable(tx, name)
        found = lookup(tx, type(self.obj), name)
        if (
            found is not None
            and isinstance(found.attr, Value | property)
            and is_data_descriptor(tx, found.attr)
        ):
            tx.interp.descriptor_set(found, self, name, value)
            return
        if name in _FIXED or (
            name in NAMES and value.python_type() is not str
        ):  # it may be refused
            raise Unsupported("unsupported-slot", what=f"setting {name} of {self.describe()}")
        tx.interp.patch_class(self)
        tx.journal.store_attr(self, name, value)
        self._mirror(tx, name, None if tx.interp.is_none(value) else _stands)

    def _mirror(self, tx: Trace, name: str, entry: object) -> None:
        """Give the stand-in an entry of that name, too: Python asks abstract classes of it."""
        cls = self.obj
        if self.recipe is None or issubclass(cls, type) or name in _NOT_MIRRORED:
            return
        before = vars(cls).get(name, DELETED)

        def put(new: object) -> None:
            if new is not DELETED:
                type.__setattr__(cls, name, new)
            elif name in vars(cls):
                type.__delattr__(cls, name)

        tx.journal.record(lambda: put(before))
        put(entry)

    def _refuse_immutable(self, tx: Trace, name: str) -> None:
        if self.obj.__flags__ & (1 << 8):  # Py_TPFLAGS_IMMUTABLETYPE
            message = f"cannot set {name!r} attribute of immutable type {self.obj.__name__!r}"
            raise tx.interp.error(TypeError, message)

    def delattr(self, tx: Trace, name: str) -> None:
        if not self._call_hook(tx, "__delattr__", ConstantValue(name)):
            self.generic_delattr(tx, name)

    def generic_delattr(self, tx: Trace, name: str) -> None:
        """``type.__delattr__``."""
        self._refuse_immutable(tx, name)
        if isinstance(vars(type).get(name), C_DATA):
            raise Unsupported("unsupported-slot", what=f"deleting {name} of {self.describe()}")
        if lookup_in(tx, (self.obj,), name) is None:
            raise self.no_attribute(tx, name)
        tx.interp.patch_class(self)
        tx.journal.store_attr(self, name, DELETED)
        self._mirror(tx, name, DELETED)

    def special_method(self, tx: Trace, name: str) -> Value | None:
        found = lookup(tx, type(self.obj), name)
        if found is None or found.owner in (object, type):
            return None
        return bind(tx, found, self, tx.interp.type_of(self), name)

    def getitem(self, tx: Trace, key: Value) -> Value:
        if (method := self.special_method(tx, "__getitem__")) is not None:
            if isinstance(self.obj, enum.EnumMeta):
                tx.world.enum_members(self.obj)
                return tx.interp.fold(lambda k: self.obj[k], tx.interp.concrete(key))  # type: ignore[index]
            return tx.interp.call(method, [key])
        found = lookup(tx, self.obj, "__class_getitem__")
        if found is None or found.attr in (None, NONE):
            raise tx.interp.error(TypeError, f"type {self.obj.__name__!r} is not subscriptable")
        if not isinstance(found.attr, Value) and self.is_constant():
            known = tx.interp.try_concrete(key)
            if known is not tx.interp.UNKNOWN:
                return tx.interp.fold(lambda k: self.obj[k], known)  # type: ignore[index]
        return tx.interp.call(bind(tx, found, None, self, "__class_getitem__"), [key])

    def contains(self, tx: Trace, item: Value) -> Value:
        if isinstance(self.obj, enum.EnumMeta):
            tx.world.enum_members(self.obj)
            return tx.interp.fold(lambda k: k in self.obj, tx.interp.concrete(item))  # type: ignore[operator]
        return super().contains(tx, item)

    def iter(self, tx: Trace) -> Value:
        if isinstance(self.obj, enum.EnumMeta):
            tx.world.enum_members(self.obj)
            members: list[object] = list(self.obj)
            return tx.interp.iterator([tx.interp.const(m) for m in members], self)
        return super().iter(tx)

    def length(self, tx: Trace) -> Value:
        if isinstance(self.obj, enum.EnumMeta):
            tx.world.enum_members(self.obj)
            return ConstantValue(len(self.obj))
        return super().length(tx)

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if op == "or_" and self.special_method(tx, "__ror__" if reflected else "__or__") is None:
            mine, theirs = self.obj, tx.interp.try_concrete(other)
            if self.is_constant() and theirs is not tx.interp.UNKNOWN:
                pair = (theirs, mine) if reflected else (mine, theirs)
                return tx.interp.fold(lambda a, b: a | b, *pair)
        return super().binary(tx, op, other, reflected=reflected)

    def hash_key(self, tx: Trace) -> object:
        meta = tx.world.metaclass(self.obj)
        found = lookup(tx, meta, "__hash__")
        if found is not None and found.attr is None:
            raise tx.interp.error(TypeError, f"unhashable type: {meta.__name__!r}")
        if (
            self.special_method(tx, "__hash__") is None
            and self.special_method(tx, "__eq__") is None
        ):
            return self.obj
        return tx.interp.user_key(self)

    def users_hash(self, tx: Trace) -> Value | None:
        """What the ``__hash__`` of a metaclass returns, if it has one of its own."""
        return self.call_special(tx, "__hash__")

    def reconstruct(self, cg: Emitter) -> str:
        if self.recipe is None:
            return cg.bound(self.obj, self.obj.__name__)
        # The attributes are stored one by one afterwards: the journal has them.
        meta, bases, _ = self.recipe
        # Which methods are abstract is found out when the class is made.
        abstract: frozenset[str] = getattr(self.obj, "__abstractmethods__", frozenset())
        asked = abstract.union(*(getattr(b, "__abstractmethods__", ()) for b in self.obj.__bases__))
        members = tuple((name, name in abstract) for name in vars(self.obj) if name in asked)
        slots = self.obj.__dict__.get("__slots__")
        more = (cg.const(slots), cg.const(members))
        return cg.call(_make_class, meta, cg.const(self.obj.__name__), cg.tuple_of(bases), *more)


def _make_class(
    meta: type,
    name: str,
    bases: tuple[type, ...],
    slots: object,
    methods: tuple[tuple[str, bool], ...],
) -> type:
    namespace: dict[str, object] = {
        n: is_left_out if is_abstract else None for n, is_abstract in methods
    }
    if slots is not None:
        namespace["__slots__"] = slots
    # What their hooks do has been traced. They are of classes that were made here as well.
    hooks = [
        (parent, hook)
        for parent in {parent: None for base in bases for parent in base.__mro__}
        if isinstance(hook := vars(parent).get("__init_subclass__"), classmethod)
    ]
    try:
        for parent, _ in hooks:
            type.__setattr__(parent, "__init_subclass__", _NO_HOOK)
        return bare_class(meta, name, bases, namespace)
    finally:
        for parent, hook in hooks:
            type.__setattr__(parent, "__init_subclass__", hook)


_NO_HOOK = classmethod(lambda _: None)


def bare_class(
    meta: type, name: str, bases: tuple[type, ...], namespace: dict[str, object]
) -> type:
    """A class made without the Python code of its metaclass, which has been traced."""
    maker = abc.ABCMeta if issubclass(meta, abc.ABCMeta) else type
    made: type = maker.__new__(meta, name, bases or (object,), namespace)
    return made


STAND_INS: weakref.WeakValueDictionary[int, type] = weakref.WeakValueDictionary()


def is_left_out() -> None:
    """Stands for an abstract method until it is stored."""


is_left_out.__isabstractmethod__ = True  # type: ignore[attr-defined]


def _stands() -> None:
    """Stands for what traced code has stored to a class."""


_NOT_MIRRORED = {name for name, attr in vars(type).items() if isinstance(attr, C_DATA)}
_NOT_MIRRORED |= {"__init_subclass__", "__class_getitem__", "__set_name__", "__new__"}
_FIXED = ("__class__", "__bases__", "__mro__", "__dict__", "__base__")
_COMPUTED = frozenset(
    "__name__ __qualname__ __module__ __doc__ __flags__ __basicsize__ __itemsize__ "
    "__dictoffset__ __abstractmethods__ __annotations__".split()
)


class SuperValue(Value):
    """``super(cls, obj)``. ``obj`` may be an instance or a class."""

    __slots__ = ("after", "obj", "start")
    cls = super

    def __init__(self, after: ClassValue, obj: Value, start: type) -> None:
        super().__init__(None)
        self.after = after
        self.obj = obj
        self.start = start  # the type whose MRO is searched

    def describe(self) -> str:
        return f"super of {self.after.obj.__name__}"

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__class__":
            return tx.interp.const(super)
        mro = tx.world.mro(self.start)
        rest = mro[mro.index(self.after.obj) + 1 :]
        if (found := lookup_in(tx, rest, name)) is None:
            raise self.no_attribute(tx, name)
        if isinstance(self.obj, ClassValue) and self.obj.obj is self.start:
            return bind(tx, found, None, self.obj, name)
        return bind(tx, found, self.obj, tx.interp.class_value(self.start), name)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(super, self.after, self.obj)


class DescriptorValue(BuiltinObject):
    """A ``property``, ``staticmethod`` or ``classmethod`` object made by traced code.

    ``parts``: the functions by attribute name (``fget``, ``fset``, ``fdel``, ``__func__``).
    ``name``: what a class statement called a property.
    """

    __slots__ = ("cls", "name", "parts")

    def __init__(self, cls: type, parts: dict[str, Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.parts = parts
        self.name: str | None = None

    def describe(self) -> str:
        return f"{self.cls.__name__} object"

    def getattr(self, tx: Trace, name: str) -> Value:
        if name in self.parts:
            return self.parts[name]
        if name == "__dict__" and self.cls is not property:
            found = {n: self._copied(tx, n) for n in _COPIED}
            return tx.interp.dict({n: value for n, value in found.items() if value is not None})
        if self.cls is property:
            if name in ("fget", "fset", "fdel"):
                return tx.interp.none
            if name == "__doc__" and "fget" in self.parts:
                return self.parts["fget"].getattr(tx, "__doc__")
        elif name == "__wrapped__":
            return self.parts["__func__"]
        elif name == "__isabstractmethod__":
            args = (self.parts["__func__"], ConstantValue(name), FALSE)
            return tx.interp.call(tx.interp.const(getattr), args)
        elif name in _COPIED and (value := self._copied(tx, name)) is not None:
            return value
        return super().getattr(tx, name)

    def _copied(self, tx: Trace, name: str) -> Value | None:
        """What the function had of this name when the descriptor was made."""
        missing = ConstantValue(None)
        args = (self.parts["__func__"], ConstantValue(name), missing)
        value = tx.interp.call(tx.interp.const(getattr), args)
        return None if value is missing else value

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        if self.cls is staticmethod:
            return self.parts["__func__"].call(tx, args, kwargs)
        return super().call(tx, args, kwargs)

    def reconstruct(self, cg: Emitter) -> str:
        if self.cls is not property:
            return cg.call(self.cls, self.parts["__func__"])
        names = ("fget", "fset", "fdel", "__doc__")
        made = cg.call(property, *(self.parts.get(name, NONE) for name in names))
        return made if self.name is None else cg.call(_named, made, cg.const(self.name))


_COPIED = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")


def _named(made: property, name: str) -> property:
    made.__set_name__(object, name)  # type: ignore[attr-defined]
    return made
