"""Hash tables: dict and its builtin subclasses, set, frozenset, dict views, mapping proxies."""

from __future__ import annotations

import builtins
import collections
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeVar, cast

from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject, HasInstanceDict
from torchsmith_tracer._src.values.constants import COMPARE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import Growing, TupleValue, Unread
from torchsmith_tracer._src.values.lazy import LazyValue, realize
from torchsmith_tracer._src.values.symnum import SymNumValue

Table = dict[object, tuple[Value, Value]]
_E = TypeVar("_E")  # of a table: a pair or an element


class _Hashed(Protocol[_E]):
    table: dict[object, _E]


PLAIN = (int, str, float, bool, type(None), complex, bytes, type(Ellipsis), type(NotImplemented))


class IdentityKey:
    """Hash-table key of an object that hashes by identity."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return object.__hash__(self.obj)  # as the program sees it, of an object that exists

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.obj is other.obj


class UserKey:
    """Hash-table key of an instance whose class defines ``__hash__``: the host table calls the
    traced ``__hash__`` and ``__eq__`` as the real table would."""

    __slots__ = ("__weakref__", "equal", "hash", "tx", "value")

    def __init__(self, tx: Trace, value: Value) -> None:
        self.tx = tx
        self.value = value
        tx.interp.keys += 1
        try:
            self.hash = tx.interp.hash_of(value)
        finally:
            tx.interp.keys -= 1
        self.equal: Callable[[], UserKey | None] = lambda: None  # what it was found equal to

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UserKey):
            same = self.tx.interp.equal(self.value, other.value)
            if same:  # weakly: no key is to keep its object alive after the trace
                self.equal, other.equal = weakref.ref(other), weakref.ref(self)
            return same
        if isinstance(other, PLAIN):
            return self.tx.interp.equal(self.value, ConstantValue(other))
        return NotImplemented


def held_key(hkey: object) -> object:
    """The key of the table that ``hkey`` was found equal to, or itself."""
    return (hkey.equal() or hkey) if isinstance(hkey, UserKey) else hkey


def look_up(holder: _Hashed[_E], hkey: object) -> _E | None:
    """The entry under a key. It is looked up again where comparing keys changes the table."""
    found = (table := holder.table).get(hkey)
    return found if holder.table is table else look_up(holder, hkey)


def claim(holder: _Hashed[_E], hkey: object, entry: _E) -> tuple[_E, bool]:
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
        hkey = tx.interp.hash_key(key)
        old, new = claim(self, hkey, (key, value))
        held = old[1]
        if type(held) is LazyValue and tx.builder.known(held.obj) is value:
            held = realize(tx, held)
        if new:
            self.added(tx, hkey)
        elif held is not value:  # else nothing has changed, and nothing is written back
            table, hkey = self.table, held_key(hkey)
            tx.journal.mutate(self, lambda: table.__setitem__(hkey, old))
            table[hkey] = (old[0], value)

    def added(self, tx: Trace, hkey: object) -> None:
        """Note that a key has just been added."""
        tx.journal.mutate(self, partial(self.table.__delitem__, hkey))

    def remove(self, tx: Trace, key: Value) -> Value | None:
        """Delete and return the value, or None when the key is absent."""
        hkey = tx.interp.hash_key(key)
        if look_up(self, hkey) is None:
            return None
        table, hkey = dict(self.table), held_key(hkey)
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
            new = DictValue(dict(first.table), None, self.cls, self.factory)
            tx.interp.dict_update(new, then)
            return new
        return None

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


class SetValue(Growing, BuiltinObject):
    """A set (``cls`` set) or frozenset. ``table``: ``hash_key`` -> element."""

    table: dict[object, Value]
    __slots__ = ("cls", "growing", "table")

    def __init__(
        self,
        table: dict[object, Value] | Unread | None = None,
        source: Source | None = None,
        cls: type = set,
    ) -> None:
        self.source = source
        self.fill({} if table is None else table)
        self.cls = cls

    @staticmethod
    def of(tx: Trace, items: Iterable[Value], cls: type = set) -> SetValue:
        """A new set of ``items``; the first of equal elements is kept."""
        table: dict[object, Value] = {}
        for item in items:
            table.setdefault(tx.interp.hash_key(item), item)
        return SetValue(table, None, cls)

    @property
    def items(self) -> list[Value]:
        """The elements."""
        return list(self.table.values())

    def is_constant(self) -> bool:
        return self.cls is frozenset and all(v.is_constant() for v in self.table.values())

    def as_constant(self) -> object:
        return self.cls([v.as_constant() for v in self.table.values()])

    def as_proxy(self) -> object:
        return self.cls([v.as_proxy() for v in self.table.values()])

    def in_order(self) -> Elements:
        """The table in the order in which the real set would give its elements, where that is
        known: sets of constants iterate in hash order."""
        table = self.table
        if self.source is None and len(table) > 1 and all(map(_plain_key, table)):
            return {key: table[key] for key in self.cls(table)}
        return table  # the builder has read it from a real set

    def replace(self, tx: Trace, table: dict[object, Value]) -> None:
        """Give the set a new content."""
        old = self.table
        tx.journal.mutate(self, lambda: setattr(self, "table", old))
        self.table = table

    def add(self, tx: Trace, item: Value) -> None:
        """``set.add``."""
        self.add_as(tx, tx.interp.hash_key(item), item)

    def add_as(self, tx: Trace, key: object, item: Value) -> builtins.bool:
        """Add an element whose hash key is known; whether it is new."""
        new = claim(self, key, item)[1]
        if new:
            tx.journal.mutate(self, partial(self.table.__delitem__, key))
        return new

    def contains(self, tx: Trace, item: Value) -> Value:
        return bool_value(look_up(self, element_key(tx, item)) is not None)

    def iter(self, tx: Trace) -> Value:
        return tx.interp.iterator(list(self.in_order().values()), self)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        inplace = op in ("ior", "iand", "isub", "ixor")
        if inplace and self.cls is frozenset:
            return None
        theirs = set_table(other)
        if theirs is None or reflected or op not in _SET_OPS:
            return None
        if isinstance(other.base_value(), DictViewValue):
            return None  # what the view makes of it is a new set
        with steady(self, other):
            table = _SET_OPS[op](self.in_order(), theirs)
        if inplace:
            self.replace(tx, table)
            return self
        return SetValue(table, None, self.cls)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if (theirs := set_table(other)) is None:
            return None
        with steady(self, other):
            return bool_value(compare_keys(op, self.table, theirs))

    def hash_key(self, tx: Trace) -> object:
        if self.cls is set:
            raise tx.interp.error(TypeError, "unhashable type: 'set'")
        return frozenset(self.table)

    def reconstruct(self, cg: Emitter) -> str:
        return "set()" if self.cls is set else cg.call(self.cls, cg.tuple_of(self.items))

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.cls is set and self.table:
            cg.statement(cg.method(self, "update", cg.tuple_of(self.items)))


def _plain_key(key: object) -> builtins.bool:
    """Whether a hash key is equal to the object that it stands for."""
    if isinstance(key, tuple | frozenset):
        return all(map(_plain_key, key))
    return isinstance(key, int | str | float | bytes | complex | None)


Elements = dict[object, Value]

CHANGED = "a set that its elements change while they are compared"


@contextmanager
def steady(*values: Value) -> Iterator[None]:
    """Leave an operation on sets and dicts to CPython where ``__eq__`` of an element changes one of
    them: what it comes to depends on their real tables."""
    held = [
        (base, base.table, len(base.table))
        for base in (value.base_value() for value in values)
        if isinstance(base, SetValue | DictValue)
    ]
    try:
        yield
    finally:
        if any(base.table is not table or len(table) != count for base, table, count in held):
            raise Unsupported("opaque-call", what=CHANGED)


def _part(a: Elements, b: Elements, *, common: bool = False) -> Elements:
    return {k: v for k, v in a.items() if (k in b) is common}


# As CPython walks them: of two sets the shorter, or the second, has the elements in common.
_SET_OPS: dict[str, Callable[[Elements, Elements], Elements]] = {
    "or_": lambda a, b: {**a, **_part(b, a)},
    "and_": lambda a, b: _part(*((a, b) if len(a) < len(b) else (b, a)), common=True),
    "sub": _part,
    "ixor": lambda a, b: {**_part(a, b), **_part(b, a)},
    "xor": lambda a, b: {**_part(b, a), **_part(a, b)},
}
_SET_OPS |= {f"i{op.rstrip('_')}": _SET_OPS[op] for op in ("or_", "and_", "sub")}


def set_table(value: Value) -> dict[object, Value] | None:
    """The elements of a set or of a keys/items view, by hash key; None for anything else."""
    value = value.base_value()
    if isinstance(value, SetValue):
        return value.in_order()
    if isinstance(value, DictViewValue) and value.kind == "keys":
        return {h: k for h, (k, _) in value.mapping.table.items()}
    return None


def element_key(tx: Trace, item: Value) -> object:
    """The hash key that an element is looked up by: a set finds the frozenset of its elements."""
    base = item.base_value()
    if isinstance(base, SetValue) and base.cls is set:
        return frozenset(base.table)
    return tx.interp.hash_key(item)


def elements(tx: Trace, value: Value) -> Elements:
    """A new table of what ``set(value)`` holds. Sets and dicts are not iterated: their hashes are
    taken over."""
    if type(value) is DictValue and value.owner is None:
        return {h: k for h, (k, _) in value.table.items()}
    base = value.base_value()
    if isinstance(base, SetValue):
        return dict(base.table)
    return SetValue.of(tx, tx.interp.each(value)).table


def compare_keys(op: str, a: dict[object, Value], b: dict[object, Value]) -> bool:
    """Set comparison: ``le`` is subset."""
    return bool(COMPARE[op](a.keys(), b.keys()))


_VIEWS = {
    (kind, ordered): type(getattr(table, kind)())
    for kind in ("keys", "values", "items")
    for ordered, table in enumerate((dict[object, object](), collections.OrderedDict()))
}


class DictViewValue(BuiltinObject):
    """``d.keys()``, ``d.values()`` or ``d.items()`` (``kind``)."""

    __slots__ = ("kind", "mapping")

    def __init__(self, mapping: DictValue, kind: str) -> None:
        self.source = None
        self.mapping = mapping
        self.kind = kind

    def python_type(self) -> type:
        return _VIEWS[self.kind, int(issubclass(self.mapping.cls, collections.OrderedDict))]

    def length(self, tx: Trace) -> Value:
        return ConstantValue(len(self.mapping.table))

    def bool(self, tx: Trace) -> bool:
        return bool(self.mapping.table)

    def as_constant(self) -> object:
        mapping = self.mapping.as_constant()
        return getattr(mapping, self.kind)()

    def iter(self, tx: Trace) -> Value:
        return tx.interp.dict_iterator(self.mapping, self.kind)

    def contains(self, tx: Trace, item: Value) -> Value:
        if self.kind == "keys":
            return self.mapping.contains(tx, item)
        if self.kind == "items":
            pair = item.base_value()
            parts = pair.unpack(tx) if isinstance(pair, TupleValue) else []
            found = self.mapping.get(tx, parts[0]) if len(parts) == 2 else None
            return bool_value(found is not None and tx.interp.equal(found, parts[1]))
        return tx.interp.contains_by_iteration(self, item)

    def _as_set(self, tx: Trace) -> SetValue:
        return SetValue.of(tx, tx.interp.unpack(self))

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        if self.kind == "values" or op not in ("or_", "and_", "sub", "xor"):
            return None
        if reflected:
            return SetValue.of(tx, tx.interp.unpack(other)).binary(tx, op, self._as_set(tx))
        return self._as_set(tx).binary(tx, op, SetValue.of(tx, tx.interp.unpack(other)))

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.base_value()
        kinds = [v.kind for v in (self, other) if isinstance(v, DictViewValue)]
        if "values" in kinds or not isinstance(other, DictViewValue | SetValue):
            return None
        sizes = [tx.interp.index(v.length(tx)) for v in (self, other)]
        inner, outer = (other, self) if op in ("gt", "ge") else (self, other)
        found = COMPARE["eq" if op == "ne" else op](*sizes) and all(
            tx.interp.truth(outer.contains(tx, item)) for item in tx.interp.unpack(inner)
        )
        return bool_value(found != (op == "ne"))

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "mapping":
            return MappingProxyValue(self.mapping)
        return super().c_attribute(tx, name, descriptor)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.method(self.mapping, self.kind)


class MappingProxyValue(BuiltinObject):
    """``types.MappingProxyType`` over a dict."""

    __slots__ = ("mapping",)
    cls = types.MappingProxyType

    def __init__(self, mapping: Value, source: Source | None = None) -> None:
        self.source = source
        self.mapping = mapping

    def getattr(self, tx: Trace, name: str) -> Value:
        if name in ("get", "keys", "values", "items", "copy"):
            return self.mapping.getattr(tx, name)
        return super().getattr(tx, name)

    def getitem(self, tx: Trace, key: Value) -> Value:
        return self.mapping.getitem(tx, key)

    def length(self, tx: Trace) -> Value:
        return self.mapping.length(tx)

    def contains(self, tx: Trace, item: Value) -> Value:
        return self.mapping.contains(tx, item)

    def iter(self, tx: Trace) -> Value:
        return self.mapping.iter(tx)

    def bool(self, tx: Trace) -> bool:
        return self.mapping.bool(tx)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        if op == "or_":
            other = other.mapping if isinstance(other, MappingProxyValue) else other
            return self.mapping.binary(tx, op, other, reflected=reflected)
        return None

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.mapping if isinstance(other, MappingProxyValue) else other
        return self.mapping.richcompare(tx, op, other)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(types.MappingProxyType, self.mapping)
