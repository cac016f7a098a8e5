"""Sets and frozensets."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from torchsmith_guards import GuardKind, ResultSource, Source

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import set_layouts
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import COMPARE, bool_value
from torchsmith_tracer._src.values.containers import Growing, Unread
from torchsmith_tracer._src.values.hash_keys import comparing_none
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.set_layouts import (
    NOTHING,
    Element,
    Given,
    Place,
    Step,
    has_known_hash,
)

UNKNOWN = "a set that was made in an unknown way"
CHANGED = "a set that its elements change while they are compared"
CLEAR: Step = ("clear", ())
BUSY: Step = ("busy", ())  # in the history while C code changes the set


@contextmanager
def steady(*values: Value) -> Iterator[None]:
    """Leave an operation on sets and dicts to CPython where ``__eq__`` of an element changes one of
    them: what it comes to depends on their real tables. Where those of all sets are known, one may
    be emptied."""
    bases = [value.base_value() for value in values]
    before = list(map(_state, bases))
    sets = [base for base in bases if isinstance(base, SetValue)]
    counts = [len(held.history) for held in sets]
    known = all(held.known() for held in sets)
    try:
        yield
    finally:
        if list(map(_state, bases)) != before or not all(
            len(held.history) == count or (known and {*held.history[count:]} == {CLEAR})
            for held, count in zip(sets, counts, strict=True)
        ):
            raise Unsupported("opaque-call", what=CHANGED)


def _state(value: Value) -> object:
    return (id(value.table), len(value.table)) if isinstance(value, DictValue) else None


class SetValue(Growing, BuiltinObject):
    """A set (``cls`` set) or frozenset.

    Attributes:
        table: its elements, in a real set to which the same is done.
        entry: what it was at first.
        history: what has been done to it since.
        doubtful: its order is not known: it began as a copy of a set made in an unknown way.
    """

    table: set[Element]
    __slots__ = ("cls", "doubtful", "entry", "growing", "history", "table")

    def __init__(
        self, entry: Given | Unread = NOTHING, source: Source | None = None, cls: type = set
    ) -> None:
        self.source = source
        self.history: list[Step] = []
        self.doubtful = False
        self.fill(entry)
        self.cls = cls

    @staticmethod
    def of(tx: Trace, items: Iterable[Value], cls: type = set) -> SetValue:
        """A new set of ``items``; the first of equal elements is kept."""
        made = SetValue(cls=cls)
        for item in items:
            made.add(tx, item)
        return made

    # --- the table ---------------------------------------------------------------------------
    def fill(self, content: object) -> None:
        self.growing = content if isinstance(content, Unread) else None
        if isinstance(content, Given):
            self.entry = content

    def __getattr__(self, name: str) -> Any:
        if name == self.content and self.growing is None:
            self.table = set_layouts.remade((*self.entry.steps, *self.history))
            return self.table
        return super().__getattr__(name)

    def _forget(self, unread: Unread) -> None:
        self.growing = unread
        self._lose()

    def _lose(self) -> None:
        """Have the table made again."""
        with suppress(AttributeError):
            del self.table

    def _back(self, count: int) -> None:
        del self.history[count:]
        self._lose()

    def _note(self, tx: Trace, name: str, *elements: Element) -> None:
        """Note what is done right after, or has just been."""
        tx.journal.mutate(self, partial(self._back, len(self.history)))
        self.history.append((name, elements))

    @contextmanager
    def _changing(self, tx: Trace, other: Value) -> Iterator[None]:
        """What C code does at once: an exception would leave it half done."""
        count = len(self.history)
        tx.journal.mutate(self, partial(self._back, count))
        self.history.append(BUSY)
        try:
            with steady(self, other):
                yield
        except ObservedException:
            self._lose()
            raise Unsupported("opaque-call", what=CHANGED) from None
        except BaseException:
            self._lose()
            raise
        finally:
            del self.history[count]

    # --- order -------------------------------------------------------------------------------
    def ordered(self, tx: Trace) -> list[Element]:
        """The elements as the real set gives them. Objects that do not exist yet have no order:
        they come as they were added."""
        table = self.table
        if not self.history:
            return list(self.entry.elements)
        if BUSY in self.history:
            raise Unsupported("opaque-call", what=CHANGED)
        if len(table) > 1:
            if not self._fixed(tx):
                return sorted(table, key=lambda element: element.number)
            self.settle(tx)
        return list(self.table)

    def walked(self, tx: Trace) -> Iterator[Element]:
        """The same as C code walks over them: none after ``steady`` has let it be emptied."""
        count = len(self.history)
        for element in self.ordered(tx):
            if len(self.history) > count:
                break
            yield element

    def known(self) -> builtins.bool:
        """Whether its table is that of the real set without any guard."""
        made = self.entry is NOTHING or CLEAR in self.history
        if self.doubtful or self.growing is not None or not made:
            return False
        return all(has_known_hash(element.key) for element in self.table)

    def _fixed(self, tx: Trace) -> bool:
        """Whether the hashes of all elements are known. Those of objects that exist already are
        guarded."""
        loose = [e for e in self.table if not has_known_hash(e.key)]
        found = []
        for element in loose:
            obj, source = set_layouts.existing(element), value_of(element).source
            if obj is None or isinstance(obj, Value) or source is None:
                return False
            found.append((obj, source))
        for obj, source in found:
            tx.world.identity(obj, source)
        return True

    def settle(self, tx: Trace) -> None:
        """Guard what the order after changes depends on."""
        if self.doubtful:
            raise Unsupported("opaque-call", what=UNKNOWN)
        if self.entry is NOTHING or CLEAR in self.history:
            return
        if not self._arrange():
            raise Unsupported("opaque-call", what=UNKNOWN)
        if self.source is not None:
            source, why = ResultSource(self.source, set_layouts.layout), "where a set has elements"
            tx.builder.guard(source, GuardKind.CONSTANT, self.entry.layout, why)

    def _arrange(self) -> builtins.bool:
        """Find steps that lead to just the table that this set had at first."""
        if not self.entry.exact:
            if (found := self.entry.arranged()) is None:
                return False
            self.entry = found
            self._lose()
        return True

    def steps(self) -> list[Step]:
        """What leads to this set from an empty one."""
        if self.doubtful or BUSY in self.history or not self._arrange():
            raise Unsupported("cannot-rebuild", what=UNKNOWN)
        steps = [*self.entry.steps, *self.history]
        names = [name for name, _ in steps]
        if "clear" in names and "pop" not in names:  # ``pop`` remembers where it was, even then
            del steps[: len(names) - names[::-1].index("clear")]
        return steps

    # --- changes -----------------------------------------------------------------------------
    def add(self, tx: Trace, item: Value) -> None:
        """``set.add``."""
        self.add_element(tx, element_of(tx, item))

    def add_element(self, tx: Trace, element: Element) -> None:
        """The same. Unlike a look-up, it ends at what is equal even if that is gone by then."""
        count, size = len(self.history), len(self.table)
        self.table.add(element)
        steadily = len(self.history) == count
        if len(self.table) > size if steadily else any(e is element for e in self.table):
            self._note(tx, "add", element)

    def discard(self, tx: Trace, element: Element) -> builtins.bool:
        """Take out what is equal to ``element``, and say whether there was one."""
        element.found = None
        if element not in self.table:
            return False
        held = element.found or element
        self._note(tx, "discard", held)
        with comparing_none():
            self.table.discard(held)
        return True

    def pop(self, tx: Trace) -> Value:
        """``set.pop`` of a set that is not empty."""
        if len(self.table) > 1:
            if not self._fixed(tx):
                first = self.ordered(tx)[0]
                self.discard(tx, first)
                return value_of(first)
            self.settle(tx)
            if self.source is not None:
                source, why = ResultSource(self.source, set_layouts.finger), "pop() of a set"
                tx.builder.guard(source, GuardKind.CONSTANT, self.entry.finger, why)
            if self.entry.finger:
                raise Unsupported("opaque-call", what="pop() of a set that was popped from before")
        tx.journal.mutate(self, partial(self._back, len(self.history)))
        first = self.table.pop()
        self.history.append(("pop", (first,)))
        return value_of(first)

    def clear(self, tx: Trace) -> None:
        """``set.clear``."""
        self._note(tx, "clear")
        self.table.clear()

    def update(self, tx: Trace, other: Value) -> None:
        """``set.update`` of one iterable."""
        if other.base_value() is self:
            return
        if (found := whole(tx, other)) is None:
            for item in tx.interp.each(other):
                self.add(tx, item)
            return
        elements, real = found
        if not elements:
            return
        for element in elements:
            element.found = None
        base = other.base_value()
        if not self.table:
            self.settle(tx)
            if isinstance(base, SetValue) and all(has_known_hash(e.key) for e in elements):
                real = self._begin_as(tx, base)
        elif isinstance(base, SetValue) and not base.known():
            with comparing_none():
                real = dict.fromkeys(elements)
        count = len(self.history)
        with self._changing(tx, other):
            empty = set_layouts.shape(self.table)[0] == 0
            self.table.update(real)
        if len(self.history) > count:  # only what came after it was emptied is left
            left = set(map(id, self.table))
            self.history.append(("add", tuple(e for e in elements if id(e) in left)))
        elif (
            empty
            and not self.doubtful
            and isinstance(base, SetValue)
            and set_layouts.shape(base.table) == set_layouts.shape(self.table)
        ):  # the table has been copied as it is
            steps = base.steps()
            self.history += [("discard" if name == "pop" else name, part) for name, part in steps]
        else:
            self.history.append(("merge", tuple(e.found or e for e in elements)))

    def _begin_as(self, tx: Trace, base: SetValue) -> set[Element]:
        """The table of ``base``, which is copied as it is if its size fits."""
        try:
            base.settle(tx)
        except Unsupported:  # for that order nobody has asked so far
            self.doubtful = True
        return base.table

    def difference_update(self, tx: Trace, other: Value) -> None:
        """``set.difference_update`` of one iterable."""
        base = other.base_value()
        if base is self:
            self.clear(tx)
            return
        if not isinstance(base, SetValue):
            for item in tx.interp.each(other):
                self.discard(tx, element_of(tx, item))
            self._note(tx, "drop")
            self.table.difference_update(())
            return
        before = list(self.table)
        with self._changing(tx, other):
            self.table.difference_update(base.table)
        left = set(map(id, self.table))
        self.history.append(("drop", tuple(e for e in before if id(e) not in left)))

    def symmetric_difference_update(self, tx: Trace, other: Value) -> None:
        """``set.symmetric_difference_update``."""
        if other.base_value() is self:
            self.clear(tx)
            return
        found, base = whole(tx, other), other.base_value()
        if found is None:
            base = SetValue.of(tx, tx.interp.each(other))
        elements = base.walked(tx) if isinstance(base, SetValue) else found[0] if found else ()
        with steady(other):
            for element in elements:
                if not self.discard(tx, element):
                    self.add_element(tx, element)

    def intersection_update(self, tx: Trace, found: SetValue) -> None:
        """Become what has been ``found`` to be in common."""
        self.clear(tx)
        for name, elements in found.steps():
            self._note(tx, name, *elements)
        self._lose()

    # --- new sets ----------------------------------------------------------------------------
    def copy(self, tx: Trace) -> SetValue:
        """A new set of the same elements."""
        made = SetValue(cls=self.cls)
        made.update(tx, self)
        return made

    def union(self, tx: Trace, *others: Value) -> SetValue:
        """``set.union``."""
        made = self.copy(tx)
        for other in others:
            if other.base_value() is not self:
                made.update(tx, other)
        return made

    def intersection(self, tx: Trace, other: Value) -> SetValue:
        """``set.intersection`` with one iterable, made by adding one after the other. Of two sets
        the shorter, or the second, is walked; another is asked for no more when all are found."""
        made, base = SetValue(cls=self.cls), other.base_value()
        if isinstance(base, SetValue):
            walked, held = (self, base) if len(base.table) > len(self.table) else (base, self)
            with steady(self, other):
                for element in walked.walked(tx):
                    if element in held.table:
                        made.add_element(tx, element)
            return made
        for item in tx.interp.each(other):
            if (element := element_of(tx, item)) in self.table:
                made.add_element(tx, element)
                if len(made.table) >= len(self.table):
                    break
        return made

    def difference(self, tx: Trace, other: Value) -> SetValue:
        """``set.difference`` with one iterable."""
        found = whole(tx, other)
        if found is None or len(self.table) >> 2 > len(found[0]):
            made = self.copy(tx)
            made.difference_update(tx, other)
            return made
        made = SetValue(cls=self.cls)
        with steady(self, other):
            for element in self.walked(tx):
                if element not in found[1]:
                    made.add_element(tx, element)
        return made

    def symmetric_difference(self, tx: Trace, other: Value) -> SetValue:
        """``set.symmetric_difference``."""
        made = SetValue(cls=self.cls)
        made.update(tx, other)
        made.symmetric_difference_update(tx, self)
        return made

    # --- slots -------------------------------------------------------------------------------
    @property
    def items(self) -> list[Value]:
        """The elements."""
        return [value_of(element) for element in self.table]

    def is_constant(self) -> bool:
        return self.cls is frozenset and all(v.is_constant() for v in self.items)

    def as_constant(self) -> object:
        if self.cls is frozenset:
            name, elements = self._content()
            items = [value_of(element).as_constant() for element in elements]
            return frozenset(items if name == "add" else dict.fromkeys(items))
        made: set[object] = set()
        set_layouts.perform(made, self.steps(), _constant)
        return made

    def as_proxy(self) -> object:
        return self.cls([v.as_proxy() for v in self.items])

    def contains(self, tx: Trace, item: Value) -> Value:
        return bool_value(looked_up(tx, item) in self.table)

    def iter(self, tx: Trace) -> Value:
        return tx.interp.iterator([value_of(element) for element in self.ordered(tx)], self)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        changed = op in ("ior", "iand", "isub", "ixor")
        if reflected or not isinstance(other.base_value(), SetValue) or op not in _OPERATORS:
            return None
        if changed and self.cls is frozenset:
            return None
        made = _OPERATORS[op](self, tx, other)
        return self if changed else made

    def common(self, tx: Trace, other: Value) -> SetValue:
        """``self & other``."""
        return self.copy(tx) if other.base_value() is self else self.intersection(tx, other)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        theirs = other.base_value()
        if not isinstance(theirs, SetValue):
            return None
        with steady(self, other):
            return bool_value(COMPARE[op](self.table, theirs.table))

    def hash_key(self, tx: Trace) -> object:
        if self.cls is set:
            raise tx.interp.error(TypeError, "unhashable type: 'set'")
        return frozenset(self.table)

    # --- generated code ----------------------------------------------------------------------
    def reconstruct(self, cg: Emitter) -> str:
        return "set()" if self.cls is set else cg.call(self.cls, self.content_text(cg))

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.cls is set:
            self.redo(cg, self)

    def redo(self, cg: Emitter, target: Value) -> None:
        """Do to ``target``, which is empty or the set that this was at first, what has been done
        to this one."""
        exists = self.source is not None
        kept, gone = set(map(id, self.table)), dict[int, Place]()

        def expression(element: Element) -> str:
            value = element.value
            if value is not None and (
                id(element) in kept or value.is_constant() or value.source is not None
            ):
                return cg.expr(value)
            return cg.bound(gone.setdefault(id(element), Place(element.hash)), "gone")

        for name, elements in _joined(self.history if exists else self.steps()):
            items = [] if name in ("pop", "clear") else [expression(e) for e in elements]
            if name in ("add", "merge", "drop"):
                items = [cg.tuple_of(items)]
            if name == "merge":
                items = [cg.call(dict.fromkeys, *items)]
            method = _METHODS.get(name, name)
            if target.python_type() is set:
                cg.statement(cg.method(target, method, *items))
            else:
                cg.effect(getattr(set, method), target, *items)

    def write_back(self, cg: Emitter) -> None:
        """A subclass's own methods have been traced already."""
        self.redo(cg, self)

    def content_text(self, cg: Emitter) -> str:
        """What a frozenset like this is made of."""
        name, elements = self._content()
        text = cg.tuple_of([value_of(element) for element in elements])
        return text if name == "add" else cg.call(dict.fromkeys, text)

    def _content(self) -> Step:
        found = set_layouts.content(self.table, self.steps())
        if found is None:
            raise Unsupported("cannot-rebuild", what="a frozenset of this order")
        return found


_OPERATORS: dict[str, Callable[[SetValue, Trace, Value], SetValue | None]] = {
    "or_": SetValue.union,
    "and_": SetValue.common,
    "sub": SetValue.difference,
    "xor": SetValue.symmetric_difference,
    "ior": SetValue.update,
    "iand": lambda mine, tx, other: mine.intersection_update(tx, mine.common(tx, other)),
    "isub": SetValue.difference_update,
    "ixor": SetValue.symmetric_difference_update,
}
_METHODS = {"add": "update", "merge": "update", "drop": "difference_update"}


def _joined(steps: Iterable[Step]) -> list[Step]:
    """The same with one step for all that are added one after the other."""
    joined: list[Step] = []
    for name, elements in steps:
        if name == "add" and joined and joined[-1][0] == "add":
            elements = (*joined.pop()[1], *elements)
        joined.append((name, elements))
    return joined


def value_of(element: Element) -> Value:
    """The element itself."""
    assert element.value is not None
    return element.value


def _constant(element: Element) -> object:
    value = element.value
    return Place(element.hash) if value is None else value.as_constant()


def element_of(tx: Trace, item: Value) -> Element:
    """``item`` as an element."""
    return set_layouts.element(tx.interp.hash_key(item), item)


def looked_up(tx: Trace, item: Value) -> Element:
    """The same of what is looked up: a set finds the frozenset of its elements."""
    base = item.base_value()
    if isinstance(base, SetValue) and base.cls is set:
        return Element(frozenset(base.table), item)
    return element_of(tx, item)


def whole(tx: Trace, other: Value) -> tuple[list[Element], Any] | None:
    """The elements of a set or dict, which C code does not iterate over, in order, and a real
    one of them; None for anything else."""
    base = other.base_value()
    if isinstance(base, SetValue):
        return base.ordered(tx), base.table
    if isinstance(other, DictValue) and other.owner is None and other.python_type() is dict:
        found = [set_layouts.element(hkey, key) for hkey, (key, _) in other.table.items()]
        with comparing_none():
            return found, dict.fromkeys(found)
    return None


def each_element(tx: Trace, value: Value, kind: type | None = None) -> Any:
    """A real set for a set (not of a class derived from it, where that ``kind`` is walked), else an
    iterator, for C code to ask for one element after the other."""
    base = value.base_value()
    if isinstance(base, SetValue) and kind in (None, base.cls):
        return base.table
    return (element_of(tx, item) for item in tx.interp.each(value))
