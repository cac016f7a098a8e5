"""dict and its builtin subclasses."""

from __future__ import annotations

import builtins
import collections
from collections.abc import Callable, Iterable
from functools import partial
from typing import cast

from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject, HasInstanceDict
from torchsmith_tracer._src.values.constants import ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import Growing, Unread
from torchsmith_tracer._src.values.hash_keys import comparing_none, held_key
from torchsmith_tracer._src.values.lazy import LazyValue, realize
from torchsmith_tracer._src.values.symnum import SymNumValue

Table = dict[object, tuple[Value, Value]]


def look_up(holder: DictValue, hkey: object) -> tuple[Value, Value] | None:
    """The entry under a key. It is looked up again where comparing keys changes the table."""
    found = (table := holder.table).get(hkey)
    return found if holder.table is table else look_up(holder, hkey)


def claim(
    holder: DictValue, hkey: object, entry: tuple[Value, Value]
) -> tuple[tuple[Value, Value], bool]:
    """The same, and whether it is ``entry``, which is added where there is none. Keys are compared
    once, as in CPython."""
    table, held = holder.table, len(holder.table)
    found = table.setdefault(hkey, entry)
    new = len(table) > held and next(reversed(table)) is hkey
    if holder.table is table:
        return found, new
    if new:
        table.popitem()
    return claim(holder, hkey, entry)


class DictValue(Growing, BuiltinObject, HasInstanceDict):
    """A dict, OrderedDict or defaultdict. An OrderedDict has attributes, too: torch keeps versions
    of modules in those of a ``state_dict``.

    Attributes:
        table: ``hash_key`` of the key -> (key, value), in order; values may be lazy.
        cls: ``dict``, ``collections.OrderedDict`` or ``collections.defaultdict``.
        factory: of a defaultdict, else None.
        owner: the instance of a user subclass whose content this is (for ``__missing__``).
        real: the existing OrderedDict that this is, for its attributes.
        gone: hash keys that were deleted, for iterators.
        instance, tx: of an ``InstanceDictValue``, which a dict may become.
    """

    table: Table
    __slots__ = ("cls", "factory", "gone", "growing", "instance", "owner", "real", "table", "tx")

    def __init__(
        self,
        table: Table | Unread | None = None,
        source: Source | None = None,
        cls: type = dict,
        factory: Value | None = None,
    ) -> None:
        self.source = source
        self.fill({} if table is None else table)
        self.cls = cls
        self.factory = factory
        self.owner: Value | None = None
        self.real: object = None
        self.gone: list[object] = []

    def as_constant(self) -> object:
        pairs = {k.as_constant(): v.as_constant() for k, v in self.table.values()}
        if self.cls is collections.defaultdict:
            factory = None if self.factory is None else self.factory.as_constant()
            made: collections.defaultdict[object, object] = collections.defaultdict(None, pairs)
            made.default_factory = cast("Callable[[], object] | None", factory)
            return made
        return self.cls(pairs)

    def as_proxy(self) -> object:
        return {k.as_constant(): v.as_proxy() for k, v in self.table.values()}

    # --- attributes ------------------------------------------------------------------------
    def _takes_attribute(self, name: str) -> builtins.bool:
        return bool(self.cls.__dictoffset__) and name not in ("__class__", "__dict__")

    def getattr(self, tx: Trace, name: str) -> Value:
        if self._takes_attribute(name):
            if (found := self.instance_get(tx, name)) is not None:
                return found
            if not hasattr(self.cls, name):
                self.guard_missing(tx, name)
        return super().getattr(tx, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if self._takes_attribute(name):
            self.instance_set(tx, name, value)
        else:
            super().setattr(tx, name, value)

    def delattr(self, tx: Trace, name: str) -> None:
        if self._takes_attribute(name):
            self.getattr(tx, name)  # raises where there is none
            tx.journal.store_attr(self, name, DELETED)
        else:
            super().delattr(tx, name)

    # --- host-side access (no ``__missing__``, no overrides) -------------------------------
    def get(self, tx: Trace, key: Value) -> Value | None:
        """The value stored for ``key``, realised, or None."""
        pair = look_up(self, tx.interp.hash_key(key))
        return None if pair is None else realize(tx, pair[1])

    def get_str(self, tx: Trace, key: str) -> Value | None:
        """The value stored for a string key, or None."""
        pair = self.table.get(key)
        return None if pair is None else realize(tx, pair[1])

    def put(self, tx: Trace, key: Value, value: Value) -> None:
        """Store; an existing key object is kept."""
        self.store(tx, tx.interp.hash_key(key), key, value)

    def store(self, tx: Trace, hkey: object, key: Value, value: Value) -> None:
        """The same where the hash key is known."""
        old, new = claim(self, hkey, (key, value))
        held = old[1]
        if type(held) is LazyValue and tx.builder.known(held.obj) is value:
            held = realize(tx, held)
        if new:
            self.added(tx, hkey)
        elif held is not value:  # else nothing has changed, and nothing is written back
            table, hkey = self.table, held_key(hkey)
            tx.journal.mutate(self, comparing_none()(partial(table.__setitem__, hkey, old)))
            with comparing_none():
                table[hkey] = (old[0], value)

    def added(self, tx: Trace, hkey: object) -> None:
        """Note that a key has just been added."""
        tx.journal.mutate(self, comparing_none()(partial(self.table.__delitem__, hkey)))

    def remove(self, tx: Trace, key: Value) -> Value | None:
        """Delete and return the value, or None when the key is absent."""
        hkey = tx.interp.hash_key(key)
        if look_up(self, hkey) is None:
            return None
        return self.take(tx, held_key(hkey))

    def take(self, tx: Trace, hkey: object) -> Value:
        """Delete a key of the table and return the value."""
        with comparing_none():
            table = dict(self.table)
            _, value = table.pop(hkey)
        self.replace(tx, table, (hkey,))
        return realize(tx, value)

    def replace(self, tx: Trace, table: Table, gone: Iterable[object] = ()) -> None:
        """Give the dict a new content. ``gone``: keys that it has lost, for iterators."""
        old, count = self.table, len(self.gone)

        def undo() -> None:
            self.table = old
            del self.gone[count:]

        tx.journal.mutate(self, undo)
        self.table = table
        self.gone += gone

    def keys(self) -> list[Value]:
        """The key values in order."""
        return [k for k, _ in self.table.values()]

    def names(self) -> list[str]:
        """The keys of a dict that is the ``__dict__`` of an object."""
        if not all(type(key) is str for key in self.table):
            raise Unsupported("unsupported-slot", what="a __dict__ of other keys than names")
        return list(self.table)  # type: ignore[arg-type]

    def values(self, tx: Trace) -> list[Value]:
        """The values in order, realised."""
        return [realize(tx, v) for _, v in self.table.values()]

    # --- slots -----------------------------------------------------------------------------
    def getitem(self, tx: Trace, key: Value) -> Value:
        if (value := self.get(tx, key)) is not None:
            return value
        if self.owner is not None:
            if (missing := tx.interp.special_method(self.owner, "__missing__")) is not None:
                return missing.call(tx, [key], {})
        elif self.factory is not None:
            value = tx.interp.call(self.factory, [])
            self.put(tx, key, value)
            return value
        raise tx.interp.error_with(KeyError, [key])

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        self.put(tx, key, value)

    def delitem(self, tx: Trace, key: Value) -> None:
        if self.remove(tx, key) is None:
            raise tx.interp.error_with(KeyError, [key])

    def contains(self, tx: Trace, item: Value) -> Value:
        few = len(self.table) < 16 and all(type(key) is int for key in self.table)
        if few and isinstance(item, SymNumValue):
            # Which keys it is not is less to know than which number it is.
            compare, truth = tx.interp.compare, tx.interp.truth
            return bool_value(any(truth(compare("eq", item, key)) for key in self.keys()))
        return bool_value(look_up(self, tx.interp.hash_key(item)) is not None)

    def iter(self, tx: Trace) -> Value:
        return tx.interp.dict_iterator(self, "keys")

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        other = other.base_value()
        if op == "ior":
            tx.interp.dict_update(self, other)
            return self
        if op == "or_" and isinstance(other, DictValue):
            first, then = (other, self) if reflected else (self, other)
            with comparing_none():
                new = DictValue(dict(first.table), None, self.cls, self.factory)
            tx.interp.dict_update(new, then)
            return new
        return None

    @comparing_none()
    def copy(self) -> DictValue:
        """A shallow copy of the same builtin type."""
        return DictValue(dict(self.table), None, self.cls, self.factory)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.base_value()
        if op not in ("eq", "ne") or not isinstance(other, DictValue):
            return None
        return bool_value(self._equal(tx, other) == (op == "eq"))

    def _equal(self, tx: Trace, other: DictValue) -> builtins.bool:
        if len(self.table) != len(other.table):
            return False
        ordered = all(issubclass(d.cls, collections.OrderedDict) for d in (self, other))
        if ordered and list(self.table) != list(other.table):
            return False
        for hkey, (_, value) in list(self.table.items()):
            pair = other.table.get(hkey)
            if pair is None or not tx.interp.equal(realize(tx, value), realize(tx, pair[1])):
                return False
        return True

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "default_factory":
            return self.factory or ConstantValue(None)
        return super().c_attribute(tx, name, descriptor)

    def reconstruct(self, cg: Emitter) -> str:
        if self.cls is dict:
            return "{}"
        factory = [self.factory or "None"] if self.cls is collections.defaultdict else []
        return cg.call(self.cls, *factory)

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.table:
            cg.statement(cg.method(self, "update", cg.dict_of(self.table.values())))
