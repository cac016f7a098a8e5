"""Sequences: tuple, list, deque, slice, range. Contents are values; mutation is journalled."""

from __future__ import annotations

import builtins
import operator
import sys

# By name: the program may put other things in the module's place.
from collections import deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torchsmith_guards import IndexedSource, ItemSource, Source, hint_of

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import Journal
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.facts.world import ABSENT
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import COMPARE, NONE, ConstantValue, bool_value, dunder
from torchsmith_tracer._src.values.lazy import LazyValue, realize
from torchsmith_tracer._src.values.lookup import in_python, lookup
from torchsmith_tracer._src.values.symnum import SymNumValue, found_at, unroll

_MAX_ITEMS = 10_000_000


@dataclass(slots=True, eq=False)
class Unread:
    """What is known of a sequence that has another length at each compile, as one that a loop with
    a break grows, while nothing has asked for more than to put something behind its end; or of a
    table that has other keys.

    Attributes:
        read: the items at entry, or the table; guards how many, or which keys, they are.
        journal: where reading is noted, so that a rollback undoes it.
        head: the sequence at entry where this is another one.
        tail: what comes behind those items.
    """

    read: Callable[[], Any]
    journal: Journal
    head: Value | None = None
    tail: list[Value] = field(default_factory=list)


class Growing:
    """What is set when it is asked for, in the slot named ``content``, while ``growing``."""

    __slots__ = ()
    content = "table"
    growing: Unread | None

    def fill(self, content: object) -> None:
        self.growing = content if isinstance(content, Unread) else None  # type: ignore[misc]
        if self.growing is None:
            setattr(self, self.content, content)

    def __getattr__(self, name: str) -> Any:
        if name != self.content or self.growing is None:
            raise AttributeError(name)
        unread = self.growing
        found = unread.read()
        unread.journal.record(lambda: self._forget(unread))
        self.fill([*found, *unread.tail] if unread.tail else found)
        return getattr(self, name)

    def _forget(self, unread: Unread) -> None:
        self.growing = unread  # type: ignore[misc]
        delattr(self, self.content)

    def describe(self) -> str:
        name = self.python_type().__name__
        return name if self.growing else f"{name} of {len(getattr(self, self.content))}"

    def length(self, tx: Trace) -> Value:
        return ConstantValue(len(getattr(self, self.content)))

    def bool(self, tx: Trace) -> bool:
        return bool(getattr(self, self.content))


class SequenceValue(Growing, BuiltinObject):
    """Common part of tuple, list and deque. ``items`` may hold ``LazyValue``s; those of a sequence
    that is ``growing`` are set when they are asked for."""

    __slots__ = ("growing", "items")  # in this order, in which they are let go of
    content = "items"
    items: list[Value]
    cls: type = object
    ordered = True

    def __init__(self, items: Iterable[Value] | Unread, source: Source | None = None) -> None:
        self.source = source
        self.fill(items if isinstance(items, Unread) else list(items))

    def as_constant(self) -> object:
        return self.cls([v.as_constant() for v in self.items])

    def as_proxy(self) -> object:
        return self.cls([v.as_proxy() for v in self.items])

    def like(self, items: list[Value]) -> Value:
        """A new sequence of the same builtin type."""
        return type(self)(items)

    def item(self, tx: Trace, i: int) -> Value:
        """Item number ``i`` (0 <= i < len), realised."""
        value = self.items[i]
        if type(value) is LazyValue:
            # Not written back: a rollback would keep the value and lose its guards; the builder
            # gives the same value for the same object.
            return realize(tx, value)
        return value

    def unpack(self, tx: Trace) -> list[Value]:
        """All items, realised."""
        return [realize(tx, v) if type(v) is LazyValue else v for v in self.items]

    def getitem(self, tx: Trace, key: Value) -> Value:
        if isinstance(key, SliceValue):
            place = key.as_slice(tx)  # first: a user's ``__index__`` may change the items
            return self.like(self.items[place])
        if type(key) is SymNumValue and (number := self._varying_item(tx, key)) is not None:
            return number
        return self.item(tx, self.position(tx, key))

    def _varying_item(self, tx: Trace, key: SymNumValue) -> Value | None:
        """The number at a place that varies, read from the existing sequence at each call; None
        unless that holds numbers of one type alone, as it was found."""
        index, source = found_at(tx, key), self.source
        if index is None or source is None or self.base_type() not in (list, tuple):
            return None
        place, items = hint_of(key.sym), self.items
        if not isinstance(place, int) or not -len(items) <= place < len(items):
            return None
        kinds = set()
        for i, item in enumerate(items):
            if type(item) is not LazyValue or item.source != ItemSource(source, i):
                return None
            kinds.add(type(item.obj))
        if kinds != {int} and kinds != {float}:
            return None
        return tx.builder.wrap(items[place].obj, IndexedSource(source, *index))  # type: ignore[attr-defined]

    def position(self, tx: Trace, key: Value, what: str = "index") -> int:
        """``key`` as a valid index from the front; IndexError or TypeError as in CPython."""
        index, noun, length = tx.interp.try_index(key), self.cls.__name__, len(self.items)
        if index is None:
            message = f"{noun} indices must be integers or slices, not {key.type_name}"
            if noun == "deque":
                message = f"sequence index must be integer, not {key.type_name!r}"
            raise tx.interp.error(TypeError, message)
        if not -length <= index < length:
            raise tx.interp.error(IndexError, f"{noun} {what} out of range")
        return index + length if index < 0 else index

    def iter(self, tx: Trace) -> Value:
        return tx.interp.sequence_iterator(self)

    def contains(self, tx: Trace, item: Value) -> Value:
        return bool_value(any(tx.interp.equal(v, item) for v in self.in_turn(tx)))

    def in_turn(self, tx: Trace) -> Iterator[Value]:
        """The items, each as it is when the one before has been used, which may change them."""
        i = -1
        while (i := i + 1) < len(self.items):
            yield self.item(tx, i)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        if op == "mul":
            if not reflected and (result := self._asked(tx, op, other)) is not None:
                return result
            items = self._repeated(tx, other)
            return None if items is None else self.like(items)
        other = other.base_value()
        if (
            op == "add"
            and not reflected
            and isinstance(other, SequenceValue)
            and other.base_type() is self.base_type()
        ):
            return self.like(self.items + other.items)
        return None

    def base_type(self) -> type:
        """The builtin type whose methods apply."""
        return self.cls

    def _asked(self, tx: Trace, op: str, other: Value) -> Value | None:
        """What an operand on the right makes of it: numbers are asked before sequences."""
        kind = other.python_type()
        asked = other.computes or in_python(lookup(tx, kind, dunder(op, reflected=True)))
        asked = asked and (op == "add" or lookup(tx, kind, "__index__") is not None)
        return other.binary(tx, op, self, reflected=True) if asked else None

    def _repeated(self, tx: Trace, times: Value) -> list[Value] | None:
        """The items of ``self * times``, if that is a whole number."""
        count = tx.interp.try_index(times)
        size = len(self.items) * (count or 0)
        if size > sys.maxsize // 8:
            raise tx.interp.error(MemoryError)
        if size > _MAX_ITEMS:
            raise Unsupported("too-large-to-fold", what=f"a {self.cls.__name__} of {size} items")
        return None if count is None else self.items * count

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.base_value()
        if not isinstance(other, SequenceValue) or other.base_type() is not self.base_type():
            return None
        for_equality = op in ("eq", "ne")
        if for_equality and len(self.items) != len(other.items):
            return bool_value(op == "ne")
        i = 0
        while i < min(len(self.items), len(other.items)):  # comparing may change them
            a, b = self.item(tx, i), other.item(tx, i)
            if tx.interp.equal(a, b):
                i += 1
            elif self.base_type() is deque:
                return bool_value(tx.interp.truth(tx.interp.compare(op, a, b)))
            elif i < min(len(self.items), len(other.items)):
                ends = (self.item(tx, i), other.item(tx, i))
                return bool_value(op == "ne") if for_equality else tx.interp.compare(op, *ends)
        return bool_value(COMPARE[op](len(self.items), len(other.items)))


class TupleValue(SequenceValue):
    """A tuple."""

    __slots__ = ()
    cls: type = tuple

    def is_constant(self) -> bool:
        return all(v.is_constant() for v in self.items)

    def getitem(self, tx: Trace, key: Value) -> Value:
        if type(self) is TupleValue and isinstance(key, SliceValue):
            if all(map(tx.interp.is_none, key.items)):  # ``[:]``
                return self
            place, count = key.as_slice(tx), len(self.items)
            return self if place.indices(count) == (0, count, 1) else self.like(self.items[place])
        return super().getitem(tx, key)

    def like(self, items: list[Value]) -> Value:
        return TupleValue(items)

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        unread, more = self.growing, other.base_value()
        if unread and op == "add" and not reflected and isinstance(more, TupleValue):
            if more.base_type() is tuple:
                tail = unread.tail + more.items
                return TupleValue(replace(unread, head=unread.head or self, tail=tail))
        if type(self) is TupleValue:  # which is taken as it is where nothing is added
            if op == "mul" and type(other) is ConstantValue and other.value == 1:
                return self if isinstance(other.value, int) else None
            if op == "add" and not reflected and type(other) is TupleValue and not other.growing:
                if not self.items or not other.items:
                    return self if self.items else other
        return super().binary(tx, op, other, reflected=reflected)

    def hash_key(self, tx: Trace) -> object:
        return tuple([tx.interp.hash_key(realize(tx, v)) for v in self.items])

    def reconstruct(self, cg: Emitter) -> str:
        if self.growing and self.growing.head:
            return cg.call(operator.add, self.growing.head, cg.tuple_of(self.growing.tail))
        return cg.tuple_of(self.items)


class NamedTupleValue(TupleValue):
    """An instance of a named tuple class or of a struct sequence (``torch.return_types.max``)."""

    __slots__ = ("tuple_class",)

    def __init__(
        self, items: Iterable[Value], tuple_class: type, source: Source | None = None
    ) -> None:
        super().__init__(items, source)
        self.tuple_class = tuple_class

    def python_type(self) -> type:
        return self.tuple_class

    def _struct(self) -> bool:
        return not hasattr(self.tuple_class, "_fields")

    def fields(self) -> tuple[str, ...]:
        """Field names in order."""
        names: tuple[str, ...] | None = getattr(self.tuple_class, "_fields", None)
        if names is not None:
            return names
        members = vars(self.tuple_class).items()
        count = len(self.items)
        return tuple(k for k, v in members if type(v).__name__ == "member_descriptor")[:count]

    def as_constant(self) -> object:
        values = [v.as_constant() for v in self.items]
        return self.tuple_class(values) if self._struct() else self.tuple_class(*values)

    def as_proxy(self) -> object:
        values = [v.as_proxy() for v in self.items]
        return tuple(values) if self._struct() else self.tuple_class(*values)

    def getattr(self, tx: Trace, name: str) -> Value:
        fields = self.fields()
        for base in tx.world.mro(self.tuple_class):
            attr = tx.world.class_entry(base, name)
            if attr is ABSENT or base is tuple or base is object:
                continue
            if name in fields and type(attr).__name__ in ("_tuplegetter", "member_descriptor"):
                return self.item(tx, fields.index(name))
            return tx.interp.bind_attribute(attr, self, base, name)
        return super().getattr(tx, name)

    def reconstruct(self, cg: Emitter) -> str:
        items = [cg.tuple_of(self.items)] if self._struct() else self.items
        return cg.call(self.tuple_class, *items)


_NAMED = {*vars(namedtuple("_NAMED", "")), "__annotations__", "__orig_bases__"}


def is_plain_named(tx: Trace, cls: type) -> bool:
    """Whether instances of a class do all that tuples do as tuples do it: it comes from
    ``namedtuple``, and nobody gave it a special method; then that is a fact."""
    if cls.__module__ == "torch.return_types":
        return True
    if not hasattr(cls, "_fields") or tuple not in cls.__bases__:
        return False
    return all(n[:2] != "__" or n in _NAMED for n in tx.world.class_names(cls))


class ListValue(SequenceValue):
    """A list."""

    __slots__ = ()
    cls: type = list

    def replace(self, tx: Trace, items: list[Value]) -> None:
        """Give the list a new content (any length)."""
        old = self.items
        tx.journal.mutate(self, lambda: setattr(self, "items", old))
        self.items = items

    def append(self, tx: Trace, item: Value) -> None:
        """``list.append``."""
        if self.growing:
            return self.extend(tx, [item])
        items = self.items
        tx.journal.mutate(self, items.pop)
        items.append(item)

    def extend(self, tx: Trace, items: list[Value]) -> None:
        """``list.extend``."""
        if (unread := self.growing) is None:
            return self.replace(tx, self.items + items)
        tx.journal.mutate(self, lambda: setattr(self, "growing", unread))
        self.growing = replace(unread, tail=unread.tail + items)

    def take(self, tx: Trace, items: Value) -> None:
        """``list.extend`` with anything that can be iterated, maybe this list itself."""
        if isinstance(items, SequenceValue) or items.base_value() is self:
            return self.extend(tx, cast("SequenceValue", items.base_value()).items)
        for item in tx.interp.each(items):
            self.append(tx, item)

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        if isinstance(key, SliceValue):
            place = key.as_slice(tx)
            new = tx.interp.unpack(value, "can only assign an iterable")
            items = list(self.items)
            tx.interp.hosted(items.__setitem__, place, new)
            self.replace(tx, items)
            return
        i = self.position(tx, key, "assignment index")
        items = self.items
        old = items[i]
        tx.journal.mutate(self, lambda: items.__setitem__(i, old))
        items[i] = value

    def delitem(self, tx: Trace, key: Value) -> None:
        if isinstance(key, SliceValue):
            gone = range(*key.as_slice(tx).indices(len(self.items)))
        else:
            gone = range(i := self.position(tx, key, "assignment index"), i + 1)
        self.replace(tx, [v for i, v in enumerate(self.items) if i not in gone])

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if op in ("iadd", "imul") and (result := self._asked(tx, op[1:], other)) is not None:
            return result
        if op == "iadd":
            self.take(tx, other)
            return self
        if op == "imul":
            if (items := self._repeated(tx, other)) is None:
                return None
            self.replace(tx, items)
            return self
        return super().binary(tx, op, other, reflected=reflected)

    def hash_key(self, tx: Trace) -> object:
        raise tx.interp.error(TypeError, f"unhashable type: {self.type_name!r}")

    def reconstruct(self, cg: Emitter) -> str:
        return "[]"

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.items:
            cg.statement(cg.method(self, "extend", cg.list_of(self.items)))


class DequeValue(ListValue):
    """A ``collections.deque``; ``maxlen`` is None for unbounded. ``items`` are another list than
    at ``first`` once its structure has changed."""

    __slots__ = ("first", "maxlen")
    cls: type = deque

    def __init__(
        self, items: Iterable[Value], maxlen: int | None = None, source: Source | None = None
    ) -> None:
        super().__init__(items, source)
        self.maxlen = maxlen
        if maxlen is not None and len(self.items) > maxlen:
            self.items = self.items[len(self.items) - maxlen :]
        self.first = self.items

    def like(self, items: list[Value]) -> Value:
        return DequeValue(items, self.maxlen)

    def limit(self) -> Value:
        """``maxlen`` as a value."""
        return NONE if self.maxlen is None else ConstantValue(self.maxlen)

    def as_constant(self) -> object:
        return deque([v.as_constant() for v in self.items], self.maxlen)

    def replace(self, tx: Trace, items: list[Value]) -> None:
        if self.maxlen is not None and len(items) > self.maxlen:
            items = items[len(items) - self.maxlen :]
        super().replace(tx, items)

    def append(self, tx: Trace, item: Value) -> None:
        self.replace(tx, [*self.items, item])

    def getitem(self, tx: Trace, key: Value) -> Value:
        if isinstance(key, SliceValue):
            raise tx.interp.error(TypeError, "sequence index must be integer, not 'slice'")
        return super().getitem(tx, key)

    def contains(self, tx: Trace, item: Value) -> Value:
        return tx.interp.contains_by_iteration(self, item)

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        return self.limit() if name == "maxlen" else super().c_attribute(tx, name, descriptor)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(deque, "()", cg.const(self.maxlen))


class _Bounds(BuiltinObject):
    """``items``: start, stop and step, each a value."""

    __slots__ = ("items",)

    def __init__(
        self, start: Value, stop: Value, step: Value, source: Source | None = None
    ) -> None:
        self.source = source
        self.items = [start, stop, step]

    def is_constant(self) -> bool:
        return all(v.is_constant() for v in self.items)

    def as_constant(self) -> object:
        return self.cls(*[v.as_constant() for v in self.items])

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        own = dict(zip(("start", "stop", "step"), self.items, strict=True)).get(name)
        return super().c_attribute(tx, name, descriptor) if own is None else own

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(self.cls, *self.items)


class SliceValue(_Bounds):
    """``slice(start, stop, step)``."""

    __slots__ = ()
    cls = slice

    def as_proxy(self) -> object:
        return slice(*[v.as_proxy() for v in self.items])

    def as_slice(self, tx: Trace) -> slice:
        """A host slice for indexing items; TypeError or ValueError as in CPython."""
        parts: list[int | None] = []
        for value in self.items:
            none = isinstance(value, ConstantValue) and value.value is None
            index = None if none else tx.interp.try_index(value)
            if index is None and not none:
                message = "slice indices must be integers or None or have an __index__ method"
                raise tx.interp.error(TypeError, message)
            parts.append(index)
        if parts[2] == 0:
            raise tx.interp.error(ValueError, "slice step cannot be zero")
        return slice(*parts)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if not isinstance(other, SliceValue):
            return None
        return tx.interp.compare(op, TupleValue(self.items), TupleValue(other.items))


class RangeValue(_Bounds):
    """``range(start, stop, step)``; the parts may be symbolic, iterating makes them known."""

    __slots__ = ()
    cls = range

    @staticmethod
    def of(host: range) -> RangeValue:
        """The value of a real range."""
        start, stop, step = map(ConstantValue, (host.start, host.stop, host.step))
        return RangeValue(start, stop, step)

    def as_proxy(self) -> object:
        bounds: list[Any] = [bound.as_proxy() for bound in self.items]
        return range(*bounds)

    def as_index(self, tx: Trace, device: torch.device) -> Value:
        """Its ends may vary."""
        where = {"device": ConstantValue(device)}
        return tx.graph.call_function(torch.arange, tuple(self.items), where)

    def host(self, tx: Trace) -> range:
        """The range with its parts made known (guarding symbolic ones)."""
        for bound in self.items:
            unroll(tx, getattr(bound, "sym", None))
        start, stop, step = (tx.interp.index(v) for v in self.items)
        return range(start, stop, step)

    def getitem(self, tx: Trace, key: Value) -> Value:
        real = self.host(tx)
        if isinstance(key, SliceValue):
            return RangeValue.of(real[key.as_slice(tx)])
        if (index := tx.interp.try_index(key)) is None:
            message = f"range indices must be integers or slices, not {key.type_name}"
            raise tx.interp.error(TypeError, message)
        return tx.interp.fold(real.__getitem__, index)

    def length(self, tx: Trace) -> Value:
        return tx.interp.fold(len, self.host(tx))

    def bool(self, tx: Trace) -> bool:
        return bool(self.host(tx))

    def iter(self, tx: Trace) -> Value:
        return tx.interp.range_iterator(self.host(tx))

    def contains(self, tx: Trace, item: Value) -> Value:
        if isinstance(item, ConstantValue) and isinstance(item.value, int | float | complex):
            return bool_value(item.value in self.host(tx))
        return tx.interp.contains_by_iteration(self, item)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if not isinstance(other, RangeValue) or op not in ("eq", "ne"):
            return None
        return bool_value((self.host(tx) == other.host(tx)) == (op == "eq"))

    def hash_key(self, tx: Trace) -> object:
        return self.host(tx)
