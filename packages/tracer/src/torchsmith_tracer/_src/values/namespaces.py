"""Modules and their global namespaces."""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING

from torchsmith_guards import AttrSource, GlobalSource, Guard, GuardKind

from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.functions import BoundMethodValue

if TYPE_CHECKING:
    from torchsmith_guards import Source

    from torchsmith_tracer._src.codegen.emitter import Emitter
    from torchsmith_tracer._src.trace import Trace


class NamespaceValue(Value):
    """The globals dict of a module. ``module`` is None for the entry function's own globals, else
    the name under which the generated code finds the dict (``M[module]``). Stores to globals are
    attribute stores of this value in the journal."""

    __slots__ = ("_cache", "module", "obj")

    def __init__(self, obj: dict[str, object], module: str | None, source: Source) -> None:
        super().__init__(source)
        self.obj = obj
        self.module = module
        self._cache: dict[str, Value] = {}

    def python_type(self) -> type:
        return dict

    def describe(self) -> str:
        return f"the globals of module {self.obj.get('__name__')!r}"

    def lookup(self, tx: Trace, name: str) -> Value | None:
        """A global variable, or None when it is not defined."""
        stored = tx.journal.load_attr(self, name)
        if stored is not None:
            return None if stored is DELETED else stored  # type: ignore[return-value]
        value = self._cache.get(name)
        if value is None and name in self.obj:
            obj = self.obj[name]
            value = tx.builder.wrap(obj, GlobalSource(name, self.module))
            self._cache[name] = value
            tx.journal.record(partial(self._cache.pop, name, None))  # its guards go, too
        return value

    def load(self, tx: Trace, name: str) -> Value:
        """LOAD_GLOBAL: a global, else a builtin, else NameError."""
        value = self.lookup(tx, name)
        return value if value is not None else load_builtin(tx, name)

    def store(self, tx: Trace, name: str, value: Value) -> None:
        """STORE_GLOBAL."""
        tx.journal.store_attr(self, name, value)

    def delete(self, tx: Trace, name: str) -> None:
        """DELETE_GLOBAL."""
        if self.lookup(tx, name) is None:
            raise tx.interp.error(NameError, f"name {name!r} is not defined")
        tx.journal.store_attr(self, name, DELETED)

    def getitem(self, tx: Trace, key: Value) -> Value:
        name = tx.interp.concrete(key)
        value = self.lookup(tx, name) if isinstance(name, str) else None
        if value is None:
            raise tx.interp.error(KeyError, name)
        return value

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        self.store(tx, str(key.as_constant()), value)

    def contains(self, tx: Trace, item: Value) -> Value:
        name = item.as_constant()
        present = isinstance(name, str) and self.lookup(tx, name) is not None
        if not present and self.source is not None:
            expected = (name, False)
            tx.guards.add(Guard(self.source, GuardKind.DICT_CONTAINS, expected, "global looked up"))
        return tx.interp.const(present)

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "get":
            return BoundMethodValue(tx.builder.wrap_new(_namespace_get), self)
        return super().getattr(tx, name)


def _namespace_get(space: dict[str, object], name: str, default: object = None) -> object:
    if name in space:  # the traced ``in`` and subscript know the namespace, ``get`` leads here
        return space[name]
    return default


def load_builtin(tx: Trace, name: str) -> Value:
    """A name of the ``builtins`` module, or NameError."""
    cache = tx.interp.builtin_names
    value = cache.get(name)
    if value is None:
        table = tx.interp.builtins
        if name not in table:
            raise tx.interp.error(NameError, f"name {name!r} is not defined", name=name)
        value = cache[name] = tx.interp.const(table[name])
    return value


class PyModuleValue(Value):
    """A module object (``math``, ``torch.nn``, a user's module)."""

    __slots__ = ("_cache", "obj")

    def __init__(self, obj: types.ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj
        self._cache: dict[str, Value] = {}

    def __repr__(self) -> str:
        return f"PyModuleValue({self.obj.__name__})"

    def python_type(self) -> type:
        return type(self.obj)

    def describe(self) -> str:
        return f"module {self.obj.__name__}"

    def getattr(self, tx: Trace, name: str) -> Value:
        cached = self._cache.get(name)
        if cached is not None and not tx.journal.attrs:
            return cached
        if name == "__dict__":
            return tx.interp.namespace(self.obj.__dict__)
        space = tx.interp.namespaces.get(id(self.obj.__dict__))
        for holder in (self, space):
            stored = tx.journal.load_attr(holder, name) if holder is not None else None
            if stored is not None and stored is not DELETED:
                return stored  # type: ignore[return-value]
        if name not in self.obj.__dict__ and name != "__class__":
            # A lazy module: its ``__getattr__`` imports on first use, as it would natively.
            try:
                obj = getattr(self.obj, name)
            except AttributeError as e:
                raise tx.interp.host_error(e) from None
        else:
            obj = getattr(self.obj, name)
        if self.source is None or tx.interp.trusted_module(self.obj.__name__):
            value = tx.builder.wrap_new(obj)
        else:
            value = tx.builder.wrap(obj, AttrSource(self.source, name))
        self._cache[name] = value
        tx.journal.record(partial(self._cache.pop, name, None))  # its guards go, too
        return value

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        tx.journal.store_attr(self, name, value)

    def hash_key(self, tx: Trace) -> object:
        return self.obj

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op in ("eq", "ne"):
            same = isinstance(other, PyModuleValue) and other.obj is self.obj
            return tx.interp.const(same == (op == "eq"))
        return None

    def bool(self, tx: Trace) -> bool:
        return True

    def reconstruct(self, cg: Emitter) -> None:
        cg.load_global_constant(self.obj, self.obj.__name__.replace(".", "_"))
