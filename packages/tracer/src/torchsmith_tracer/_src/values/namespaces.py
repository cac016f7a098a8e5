"""Modules and their global namespaces."""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import TYPE_CHECKING, cast

from torchsmith_guards import ItemSource, NamespaceSource

from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.frames.library import is_library_module, is_ours
from torchsmith_tracer._src.values.base import RealObject, Value
from torchsmith_tracer._src.values.functions import BoundMethodValue
from torchsmith_tracer._src.values.lookup import Found, bind, is_data_descriptor, lookup

if TYPE_CHECKING:
    from torchsmith_guards import Source

    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.mappings import DictValue


class NamespaceValue(Value):
    """The globals dict of a module. ``module`` is None for the entry function's own globals, else
    the name under which the generated code finds the dict (``M[module]``). Stores to globals are
    attribute stores of this value in the journal."""

    __slots__ = ("_cache", "module", "obj", "own", "trusted")
    cls = dict

    def __init__(self, obj: dict[str, object], module: str | None, source: Source | None) -> None:
        super().__init__(source)
        self.obj = obj
        self.module = module
        self.trusted = is_ours(obj.get("__file__"))
        # Whether it is of a module of this package, whose frames programs do not see.
        self.own = str(obj.get("__name__")).startswith("torchsmith_tracer.")
        self._cache: dict[str, Value] = {}

    def describe(self) -> str:
        return f"the globals of module {self.obj.get('__name__')!r}"

    def variable(self, name: str) -> ItemSource:
        """The path to a global variable."""
        return ItemSource(NamespaceSource(self.module), name)

    def lookup(self, tx: Trace, name: str) -> Value | None:
        """A global variable, or None when it is not defined."""
        if (stored := tx.journal.load_attr(self, name)) is not None:
            return None if stored is DELETED else stored  # type: ignore[return-value]
        value = self._cache.get(name)
        if value is None and name in self.obj:
            obj = self.obj[name]
            value = (
                tx.builder.wrap_new(obj)
                if self.trusted
                else tx.builder.wrap(obj, self.variable(name))
            )
            self._cache[name] = value
            tx.journal.record(partial(self._cache.pop, name, None))  # its guards go, too
        return value

    def load(self, tx: Trace, name: str) -> Value:
        """LOAD_GLOBAL: a global, else a builtin, else NameError."""
        if (value := self.lookup(tx, name)) is not None:
            return value
        self.missing(tx, name)
        return load_builtin(tx, name)

    def missing(self, tx: Trace, name: str) -> None:
        """Record that the namespace lacked ``name`` when the function was called."""
        absent = tx.world.absent
        if (self, name) in absent:
            return
        absent.add((self, name))
        if self.source is not None and name not in self.obj and not self.trusted:
            tx.world.missing(self.source, name, f"global {name!r} was looked up")

    def store(self, tx: Trace, name: str, value: Value) -> None:
        """STORE_GLOBAL."""
        tx.journal.store_attr(self, name, value)

    def delete(self, tx: Trace, name: str) -> None:
        """DELETE_GLOBAL."""
        if self.lookup(tx, name) is None:
            self.missing(tx, name)
            raise tx.interp.error(NameError, f"name {name!r} is not defined")
        tx.journal.store_attr(self, name, DELETED)

    def getitem(self, tx: Trace, key: Value) -> Value:
        name = tx.interp.concrete(key)
        value = self.lookup(tx, name) if isinstance(name, str) else None
        if value is None:
            if isinstance(name, str):
                self.missing(tx, name)
            raise tx.interp.error(KeyError, name)
        return value

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        self.store(tx, str(key.as_constant()), value)

    def contains(self, tx: Trace, item: Value) -> Value:
        name = item.as_constant()
        present = isinstance(name, str) and self.lookup(tx, name) is not None
        if not present and isinstance(name, str):
            self.missing(tx, name)
        return tx.interp.const(present)

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "get":
            return BoundMethodValue(tx.builder.wrap_new(_namespace_get), self)
        return super().getattr(tx, name)


class DictNamespace(NamespaceValue):
    """A dict made by traced code that serves as globals (``eval(text, {...})``)."""

    __slots__ = ("mapping",)

    def __init__(self, tx: Trace, mapping: DictValue) -> None:
        name = tx.interp.try_concrete(mapping.get_str(tx, "__name__") or tx.interp.none)
        super().__init__({"__name__": name}, None, None)
        self.mapping = mapping

    def lookup(self, tx: Trace, name: str) -> Value | None:
        return self.mapping.get_str(tx, name)

    def store(self, tx: Trace, name: str, value: Value) -> None:
        self.mapping.put(tx, tx.interp.const(name), value)

    def delete(self, tx: Trace, name: str) -> None:
        if self.mapping.remove(tx, tx.interp.const(name)) is None:
            raise tx.interp.error(NameError, f"name {name!r} is not defined")

    def reconstruct(self, cg: Emitter) -> str:
        return cg.expr(self.mapping)


def _namespace_get(space: dict[str, object], name: str, default: object = None) -> object:
    if name in space:  # the traced ``in`` and subscript know the namespace, ``get`` leads here
        return space[name]
    return default


def load_builtin(tx: Trace, name: str) -> Value:
    """A name of the ``builtins`` module, or NameError."""
    cache = tx.interp.builtin_names
    if (value := cache.get(name)) is None:
        space = tx.interp.namespace(tx.interp.builtins)
        if (value := space.lookup(tx, name)) is None:
            space.missing(tx, name)
            raise tx.interp.error(NameError, f"name {name!r} is not defined", name=name)
        cache[name] = value
    return value


_OF_EVERY_MODULE = frozenset(dir(types.ModuleType))


class PyModuleValue(RealObject):
    """A module object (``math``, ``torch.nn``, a user's module)."""

    __slots__ = ("_cache",)
    obj: types.ModuleType

    def __init__(self, obj: types.ModuleType, source: Source | None = None) -> None:
        super().__init__(obj, source)
        self._cache: dict[str, Value] = {}

    def describe(self) -> str:
        return f"module {self.obj.__name__}"

    def titled(self) -> str:
        return f"module {self.obj.__name__!r}"

    def getattr(self, tx: Trace, name: str) -> Value:
        cached = self._cache.get(name)
        if cached is not None and not tx.journal.attrs:
            return cached
        if (computes := self._descriptor(tx, name)) is not None:
            return bind(tx, computes, self, tx.interp.type_of(self), name)
        if name == "__dict__":
            return tx.interp.namespace(self.obj.__dict__)
        if name == "modules" and self.obj is sys:  # read name by name: imports add to it
            return tx.interp.namespace(cast("dict[str, object]", sys.modules))
        space = tx.interp.namespaces.get(id(self.obj.__dict__))
        for holder in (self, space):
            stored = tx.journal.load_attr(holder, name) if holder is not None else None
            if stored is not None and stored is not DELETED:
                return stored  # type: ignore[return-value]
        if (own := self._own_getattr(tx, name)) is not None:
            return own.call(tx, [tx.interp.const(name)], {})
        value = self._read(tx, name)
        self._cache[name] = value
        tx.journal.record(partial(self._cache.pop, name, None))  # its guards go, too
        return value

    def _own_getattr(self, tx: Trace, name: str) -> Value | None:
        """The program's ``__getattr__`` for a name that its module lacks; a library's imports on
        first use, as it would natively."""
        table = self.obj.__dict__
        if name in table or name in _OF_EVERY_MODULE or type(self.obj) is not types.ModuleType:
            return None
        if type(table.get("__getattr__")) is not types.FunctionType or is_library_module(
            self.obj.__name__
        ):
            return None
        tx.interp.namespace(table).missing(tx, name)
        return self.getattr(tx, "__getattr__")

    def _read(self, tx: Trace, name: str) -> Value:
        """An entry of the module's namespace, or what its class or ``__getattr__`` makes of it."""
        kind = type(self.obj)
        plain = kind is types.ModuleType or not hasattr(kind, name)
        if plain and name not in self.obj.__dict__ and name not in _OF_EVERY_MODULE:
            # A lazy module imports on first use, as it would natively.
            tx.interp.hosted(getattr, self.obj, name, None)
        if plain and name in self.obj.__dict__:
            value = tx.interp.namespace(self.obj.__dict__).lookup(tx, name)
        else:
            assert self.source is not None, "a module has a source"
            value = tx.world.attribute(self.obj, self.source, name)
        if value is None:
            raise self.no_attribute(tx, name)
        return value

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if (computes := self._descriptor(tx, name)) is None:
            tx.journal.store_attr(self, name, value)
        else:
            tx.interp.descriptor_set(computes, self, name, value)

    def _descriptor(self, tx: Trace, name: str) -> Found | None:
        """What the module's class has for a name that is no variable (``torch.backends.cudnn``)."""
        kind = type(self.obj)
        found = None if kind is types.ModuleType else lookup(tx, kind, name)
        has = found is not None and found.owner not in types.ModuleType.__mro__
        return found if has and is_data_descriptor(tx, found.attr) else None  # type: ignore[union-attr]

    def hash_key(self, tx: Trace) -> object:
        return self.obj

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op in ("eq", "ne"):
            same = isinstance(other, PyModuleValue) and other.obj is self.obj
            return tx.interp.const(same == (op == "eq"))
        return None

    def reconstruct(self, cg: Emitter) -> str:
        return cg.bound(self.obj, self.obj.__name__.replace(".", "_"))
