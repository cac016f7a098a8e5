"""Iterators over containers and the builtin iterator types ``enumerate``, ``zip``, ``map`` ...

Every step is undoable, so that a break can go back to before it, and every iterator can be rebuilt
in mid-flight, so that a loop can be resumed inside.
"""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.builtins.python_versions import (
    CLEARED_IS_MUTATED,
    ENDED_KEEPS_ITS_LIST,
)
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, SequenceValue, TupleValue
from torchsmith_tracer._src.values.hash_keys import comparing_none
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.mappings import DictValue, Table
from torchsmith_tracer._src.values.sets import SetValue


class IteratorValue(BuiltinObject):
    """Base of iterators: subclasses implement ``step``."""

    __slots__ = ()
    cls: type = type(iter([]))

    def iter(self, tx: Trace) -> Value:
        return self

    def step(self, tx: Trace) -> Value | None:
        """The next item, or None at the end."""
        raise NotImplementedError(type(self).__name__)

    def next(self, tx: Trace) -> Value:
        if (value := self.step(tx)) is None:
            raise tx.interp.error(StopIteration)
        return value

    def remaining(self, tx: Trace) -> int | None:
        """``__length_hint__``, when known."""
        return None


class Counted(IteratorValue):
    """An iterator whose state is an index; -1 when exhausted."""

    __slots__ = ("index",)

    def __init__(self, index: int = 0, source: Source | None = None) -> None:
        self.source = source
        self.index = index

    def move(self, tx: Trace, index: int) -> None:
        """Set the index, undoably."""
        old = self.index
        if self.source is None:
            tx.journal.assign(self, "index", index)
        else:
            tx.journal.mutate(self, lambda: setattr(self, "index", old))
            self.index = index


class SequenceIterator(Counted):
    """``iter(list)``, ``iter(tuple)``, ``iter(deque)``: sees changes of the sequence."""

    __slots__ = ("items", "sequence")

    def __init__(self, sequence: SequenceValue, index: int = 0) -> None:
        super().__init__(index)
        self.sequence = sequence
        self.items = sequence.items  # of a deque: a change of its structure makes another list

    def python_type(self) -> type:
        return _ITERATORS.get(self.sequence.base_type(), _ITERATORS[tuple])

    def step(self, tx: Trace) -> Value | None:
        i = self.index
        items = self.sequence.items
        if i < 0:
            return None
        if self.stale():
            raise tx.interp.error(RuntimeError, "deque mutated during iteration")
        if i >= len(items):
            self.move(tx, -1)
            return None
        self.move(tx, i + 1)
        return realize(tx, items[i])

    def stale(self) -> bool:
        """Whether a deque has changed since the iterator was made."""
        return self.sequence.base_type() is collections.deque and (
            self.items is not self.sequence.items
        )

    def remaining(self, tx: Trace) -> int:
        return max(0, len(self.sequence.items) - self.index) if self.index >= 0 else 0

    def reconstruct(self, cg: Emitter) -> str:
        if self.stale() and self.index >= 0:
            return stale(cg, collections.deque, "__iter__")
        return rebuild(cg, self.sequence, self.index, len(self.sequence.items))


_OWNED: dict[type, type] = {cls: type(iter(cls())) for cls in (str, bytes, set, frozenset)}
_ITERATORS: dict[type, type] = {
    list: type(iter([])),
    tuple: type(iter(())),
    collections.deque: type(iter(collections.deque())),
}


def rebuild(cg: Emitter, sequence: Value, index: int, length: int) -> str:
    """``iter(sequence)`` advanced by ``index`` (-1: exhausted)."""
    return cg.call(advanced, cg.call(iter, sequence), cg.const(length + 1 if index < 0 else index))


def advanced(it: Iterator[object], steps: int) -> Iterator[object]:
    """``it`` after ``steps`` calls of next (fewer if it ends)."""
    for _ in range(steps):
        for _item in it:
            break
        else:
            break
    return it


def stale(cg: Emitter, cls: type, part: str, change: str = "") -> str:
    """An iterator that raises what iterators of a changed container raise."""
    return cg.call(changed, cg.bound(cls), cg.const(part), cg.const(change))


def changed(cls: type, part: str, change: str) -> Iterator[object]:
    if not issubclass(cls, dict):
        items: set[int] | collections.deque[int]
        items = {0} if cls is set else collections.deque((0,))
        values = iter(items)
        items.add(1) if isinstance(items, set) else items.append(1)
        return values
    table = cls()
    table[0] = 0
    it: Iterator[object] = (
        reversed(table) if part == "__reversed__" else iter(getattr(table, part)())
    )
    if change == "keys changed":
        next(it)
        del table[0]
    if issubclass(cls, collections.OrderedDict) and change == "changed size":
        table.clear()
    else:
        table[1] = 1
    return it


class ItemsIterator(Counted):
    """An iterator over items known in advance. ``owner`` is what ``iter()`` was called on."""

    __slots__ = ("changes", "cls", "items", "owner", "start")

    def __init__(
        self,
        items: Sequence[Value],
        owner: Value | None = None,
        cls: type | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(0, source)
        self.items = list(items)
        self.owner = owner
        self.changes = len(owner.history) if isinstance(owner, SetValue) else 0
        if cls is None and owner is not None:
            cls = _OWNED.get(owner.python_type())
        self.cls = IteratorValue.cls if cls is None else cls

    def step(self, tx: Trace) -> Value | None:
        i = self.index
        if self.stale():
            raise tx.interp.error(RuntimeError, "Set changed size during iteration")
        if i >= len(self.items):
            return None
        self.move(tx, i + 1)
        return realize(tx, self.items[i])

    def stale(self) -> bool:
        """Whether a set that is iterated over has another size than at first. With other elements
        it goes on in the new table."""
        owner = self.owner
        if not isinstance(owner, SetValue) or len(owner.history) == self.changes:
            return False
        if len(owner.table) == len(self.items) and 0 <= self.index < len(self.items):
            raise Unsupported("opaque-call", what="a set that is changed while it is iterated over")
        return len(owner.table) != len(self.items)

    def remaining(self, tx: Trace) -> int:
        return len(self.items) - self.index

    def reconstruct(self, cg: Emitter) -> str:
        if self.stale():
            return stale(cg, set, "__iter__")
        if self.owner is not None:
            return rebuild(cg, self.owner, self.index, len(self.items))
        return cg.call(iter, cg.tuple_of(self.items[self.index :]))

    def write_back(self, cg: Emitter) -> None:
        """Advance the real iterator as far as traced code did."""
        cg.effect(advanced, self, cg.const(self.index))


class RangeIterator(Counted):
    """``iter(range)``."""

    __slots__ = ("count", "range")

    def __init__(self, host: range, index: int = 0) -> None:
        super().__init__(index)
        self.range = host
        self.count = _count(host)

    def python_type(self) -> type:
        return type(iter(self.range))

    def step(self, tx: Trace) -> Value | None:
        i = self.index
        if i >= self.count:
            return None
        self.move(tx, i + 1)
        return ConstantValue(self.range[i])

    def remaining(self, tx: Trace) -> int:
        return self.count - self.index

    def host(self) -> Iterator[int]:
        """A real iterator at the same place."""
        made: Any = iter(self.range)
        made.__setstate__(self.index)
        return made  # type: ignore[no-any-return]

    def reconstruct(self, cg: Emitter) -> str:
        left = self.range[self.index :]
        return cg.call(iter, cg.call(range, *map(cg.const, (left.start, left.stop, left.step))))


def _count(host: range) -> int:
    """``len(host)``, also of one that is longer than ``len`` can say."""
    return max(0, (host.stop - host.start + host.step - (1 if host.step > 0 else -1)) // host.step)


_VIEWS: dict[str, Any] = {"keys": {}.keys(), "values": {}.values(), "items": {}.items()}
_DICT_ITERATORS = {part: (type(iter(v)), type(reversed(v))) for part, v in _VIEWS.items()}


class DictIterator(Counted):
    """Iterator over a dict or a view (``kind``); notices changes of size."""

    __slots__ = ("given", "gone", "hkeys", "mapping", "ordered", "part", "reverse", "table")

    def __init__(self, mapping: DictValue, part: str, *, reverse: bool = False) -> None:
        super().__init__(0)
        self.mapping = mapping
        self.ordered = issubclass(mapping.cls, collections.OrderedDict)
        self.part = part
        self.given = 0  # differs from the index when the table has changed since
        self.gone = len(mapping.gone)
        self.table = mapping.table
        self.hkeys = list(reversed(mapping.table) if reverse else mapping.table)
        self.reverse = reverse
        if self.ordered and not self.hkeys:
            self.index = -1  # an OrderedDict's looks ahead: past the last key nothing is noticed

    def python_type(self) -> type:
        return _DICT_ITERATORS[self.part][self.reverse]

    def step(self, tx: Trace) -> Value | None:
        if self.index < 0:
            return None
        table = self.mapping.table  # that of an instance is made whenever it is asked for
        change = self._change(table)
        if change:
            noun = "OrderedDict" if self.ordered else "dictionary"
            raise tx.interp.error(RuntimeError, f"{noun} {change} during iteration")
        self._follow(tx, table)
        i = self.index
        if i >= len(self.hkeys):
            self.move(tx, -1)
            return None
        with comparing_none():
            pair = self.table[self.hkeys[i]]
        tx.journal.assign(self, "given", self.given + 1)
        self.move(tx, -1 if self.ordered and i + 1 == len(self.hkeys) else i + 1)
        if self.part == "keys":
            return pair[0]
        value = realize(tx, pair[1])
        return value if self.part == "values" else TupleValue([pair[0], value])

    @comparing_none()
    def _order(self, table: Table) -> tuple[list[object], int]:
        """The keys that the table has now, and how many of them have been given: what was deleted
        is not there any more, what was added comes at the end."""
        order = list(reversed(table) if self.reverse else table)
        gone = set(self.mapping.gone[self.gone :])  # also if they have been added again
        given = [k for k in self.hkeys[: self.index] if k not in gone and k in table]
        passed = 0
        while passed < len(given) and order[passed] == given[passed]:
            passed += 1
        return order, passed

    @comparing_none()
    def _change(self, table: Table) -> str:
        """In CPython's words, the change of the table that ends the iteration; empty if none."""
        if len(table) != len(self.hkeys):
            return "mutated" if self.ordered and (table or CLEARED_IS_MUTATED) else "changed size"
        if table is self.table:
            return ""
        order, passed = self._order(table)
        if self.ordered:
            return "mutated" if order != self.hkeys else ""
        return "keys changed" if self.given >= len(order) > passed else ""

    def _follow(self, tx: Trace, table: Table) -> None:
        """Go on in the table that the mapping has now."""
        if table is not self.table:
            known = (self.table, self.hkeys, self.gone)
            tx.journal.record(lambda: self._set_table(*known))
            order, passed = self._order(table)
            self._set_table(table, order, len(self.mapping.gone))
            self.move(tx, passed)

    def _set_table(self, table: Table, hkeys: list[object], gone: int) -> None:
        self.table, self.hkeys, self.gone = table, hkeys, gone

    def remaining(self, tx: Trace) -> int:
        return len(self.hkeys) - self.given if self.index >= 0 else 0

    def reconstruct(self, cg: Emitter) -> str:
        table = self.mapping.table
        change = self._change(table) if self.index >= 0 else ""
        if change:
            part = "__reversed__" if self.reverse else self.part
            return stale(cg, self.mapping.cls, part, change)
        it = cg.call(reversed if self.reverse else iter, cg.method(self.mapping, self.part))
        steps = len(table) + 1 if self.index < 0 else self._order(table)[1]
        return cg.call(advanced, it, cg.const(steps))


class ReversedValue(Counted):
    """``reversed(sequence)``; ``index`` counts down to -1, and is -2 once the end was seen.
    ``sequence`` is anything with ``__len__`` and ``__getitem__``."""

    __slots__ = ("last", "sequence")

    def __init__(self, sequence: Value, length: int) -> None:
        super().__init__(length - 1)
        self.sequence = sequence
        self.last = length - 1

    def python_type(self) -> type:
        cls = self.sequence.python_type()
        return type(reversed([])) if cls is list else reversed

    def step(self, tx: Trace) -> Value | None:
        i, base = self.index, self.sequence
        if i < 0 or (isinstance(base, SequenceValue) and i >= len(base.items)):
            kept = ENDED_KEEPS_ITS_LIST and self.python_type() is not reversed
            self.move(tx, -1 if kept else -2)
            return None
        self.move(tx, i - 1)
        return base.getitem(tx, ConstantValue(i))

    def remaining(self, tx: Trace) -> int:
        count, base = max(self.index, -1) + 1, self.sequence
        return 0 if isinstance(base, ListValue) and len(base.items) < count else count

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(_reversed_at, self.sequence, cg.const(self.index))


def _reversed_at(sequence: Sequence[object], index: int) -> Iterator[object]:
    it = reversed(sequence)
    return advanced(it, len(sequence) - 1 - index)


class GetitemIterator(Counted):
    """``iter()`` of an object that only has ``__getitem__``."""

    __slots__ = ("obj",)
    cls = type(iter(type("S", (), {"__getitem__": lambda self, i: i})()))

    def __init__(self, obj: Value) -> None:
        super().__init__(0)
        self.obj = obj

    def step(self, tx: Trace) -> Value | None:
        i = self.index
        if i < 0:
            return None
        if i == sys.maxsize:
            raise tx.interp.error(OverflowError, "iter index too large")
        value = tx.interp.item_or_end(self.obj, i)
        self.move(tx, -1 if value is None else i + 1)
        return value

    def reconstruct(self, cg: Emitter) -> str:
        return rebuild(cg, self.obj, self.index, 1 << 30)


class CallableIterator(IteratorValue):
    """``iter(callable, sentinel)``."""

    __slots__ = ("done", "fn", "sentinel")
    cls = type(iter(int, 1))

    def __init__(self, fn: Value, sentinel: Value) -> None:
        self.source = None
        self.fn = fn
        self.sentinel = sentinel
        self.done = False

    def step(self, tx: Trace) -> Value | None:
        if self.done:
            return None
        value = tx.interp.call(self.fn, [])
        if self.done:  # the function has used it up
            return None
        if tx.interp.equal(self.sentinel, value):
            tx.journal.assign(self, "done", True)
            return None
        return value

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(iter, self.fn, self.sentinel)


class EnumerateValue(Counted):
    """``enumerate(it, start)``; ``index`` is the next number."""

    __slots__ = ("it",)
    cls = enumerate

    def __init__(self, it: Value, start: int) -> None:
        super().__init__(start)
        self.it = it

    def step(self, tx: Trace) -> Value | None:
        if (value := tx.interp.step(self.it)) is None:
            return None
        i = self.index
        self.move(tx, i + 1)
        return TupleValue([ConstantValue(i), value])

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(enumerate, self.it, cg.const(self.index))


class ZipValue(IteratorValue):
    """``zip(*its)``."""

    __slots__ = ("its", "strict")
    cls = zip

    def __init__(self, its: list[Value], *, strict: bool) -> None:
        self.source = None
        self.its = its
        self.strict = strict

    def step(self, tx: Trace) -> Value | None:
        if not self.its:
            return None
        out: list[Value] = []
        for i, it in enumerate(self.its):
            if (value := tx.interp.step(it)) is None:
                if self.strict:
                    self._check(tx, i)
                return None
            out.append(value)
        return TupleValue(out)

    def _check(self, tx: Trace, ended: int) -> None:
        def text(n: int) -> str:
            return "argument 1" if n == 1 else f"arguments 1-{n}"

        if ended:
            message = f"zip() argument {ended + 1} is shorter than {text(ended)}"
            raise tx.interp.error(ValueError, message)
        for i, it in enumerate(self.its[1:], 1):
            if tx.interp.step(it) is not None:
                message = f"zip() argument {i + 1} is longer than {text(i)}"
                raise tx.interp.error(ValueError, message)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(zip, *self.its, **({"strict": "True"} if self.strict else {}))


class MapValue(IteratorValue):
    """``map(fn, *its)``."""

    __slots__ = ("fn", "its")
    cls = map

    def __init__(self, fn: Value, its: list[Value]) -> None:
        self.source = None
        self.fn = fn
        self.its = its

    def step(self, tx: Trace) -> Value | None:
        args: list[Value] = []
        for it in self.its:
            if (value := tx.interp.step(it)) is None:
                return None
            args.append(value)
        return tx.interp.call(self.fn, args)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(map, self.fn, *self.its)


class FilterValue(IteratorValue):
    """``filter(fn, it)``; ``fn`` None keeps true items."""

    __slots__ = ("fn", "it")
    cls = filter

    def __init__(self, fn: Value | None, it: Value) -> None:
        self.source = None
        self.fn = fn
        self.it = it

    def step(self, tx: Trace) -> Value | None:
        while True:
            if (value := tx.interp.step(self.it)) is None:
                return None
            verdict = value if self.fn is None else tx.interp.call(self.fn, [value])
            if tx.interp.truth(verdict):
                return value

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(filter, "None" if self.fn is None else self.fn, self.it)
