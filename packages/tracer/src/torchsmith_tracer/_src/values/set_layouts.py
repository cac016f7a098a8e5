"""Where a set has its elements, which is what it iterates by: how CPython's table came about.

A traced set has a real one of ``Element``s, to which the same operations are applied. What was done
to it is kept as steps, from which another set with the same table is made: in the trace, after
changes have been undone, and by the generated code.
"""

from __future__ import annotations

import ctypes
import itertools
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torchsmith_tracer._src.values.hash_keys import COMPARISONS, IdentityKey, comparing_none

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.base import Value


_COUNT = itertools.count()


class Element:
    """An element of a traced set, or what is looked up in one, with the hash of the real object.

    Attributes:
        key, value: its hash key and itself.
        found: the element of a set that it has last been found equal to.
        number: grows with each new element.
    """

    __slots__ = ("__weakref__", "found", "hash", "key", "number", "same", "value")

    def __init__(self, key: object, value: Value | None) -> None:
        self.key, self.value = key, value
        self.hash = hash(key)
        self.number = next(_COUNT)
        self.found: Element | None = None
        self.same: list[weakref.ref[Element]] = []

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Element):
            return NotImplemented
        if COMPARISONS.known:
            return any(ref() is other for ref in self.same)
        equal = self.key is other.key or bool(self.key == other.key)
        if equal:
            other.found = self
            self.same.append(weakref.ref(other))
            other.same.append(weakref.ref(self))
        return equal


class Place:
    """Stands for an object that has the same hash and is no longer in a set."""

    __slots__ = ("hash",)

    def __init__(self, number: int) -> None:
        self.hash = number

    def __hash__(self) -> int:
        return self.hash


def element(key: object, value: Value) -> Element:
    """``value`` as an element. A tensor that exists has a hash already."""
    made = Element(key, value)
    real = existing(made)
    if real is not None:
        made.hash = hash(real)
    return made


def existing(element: Element) -> object:
    """The object of an element that has a hash only since it exists; None if it does not."""
    key, value = element.key, element.value
    if isinstance(key, types.FunctionType):
        return key
    obj = key.obj if isinstance(key, IdentityKey) else None
    return getattr(value, "real", None) if obj is value else obj


def has_known_hash(key: object) -> bool:
    """Whether an object will have the hash of its key: not one that does not exist yet, nor one in
    the place of which another may come."""
    if isinstance(key, tuple | frozenset):
        return all(map(has_known_hash, key))
    if isinstance(key, Element):
        return has_known_hash(key.key)
    return not isinstance(key, IdentityKey | types.FunctionType)


# "add": one after the other. "merge": likewise, after room has been made for all of them, as for a
# dict or another set. "discard", "pop", "clear". "drop": a difference, which tidies up.
Step = tuple[str, tuple[Element, ...]]


def perform(made: set[object], steps: Iterable[Step], of: Callable[[Element], object]) -> None:
    """Do to ``made`` what has been done to a set. ``of``: what an element is in it."""
    for name, elements in steps:
        items = [of(element) for element in elements]
        if name == "add":
            made.update(items)
        elif name == "merge":
            made.update(dict.fromkeys(items))
        elif name == "drop":
            made.difference_update(items)
        else:
            getattr(made, name)(*(items if name == "discard" else ()))


def remade(steps: Iterable[Step]) -> set[Element]:
    """A set of the elements with the table that these steps lead to."""
    made: set[Element] = set()
    with comparing_none():
        perform(made, steps, lambda element: element)  # type: ignore[arg-type]
    return made


Layout = tuple[int, tuple[int, ...], tuple[int, ...]]
_WORD = ctypes.sizeof(ctypes.c_ssize_t)
AnySet = set[object] | frozenset[object]


def _head(table: AnySet) -> tuple[int, ...]:
    """How many positions have been used, how many elements there are, the last position (the size
    of the table less one), where the table is, a hash, and where ``pop`` goes on."""
    return tuple((ctypes.c_ssize_t * 6).from_address(id(table) + object.__basicsize__))


def layout(table: AnySet) -> Layout:
    """The last position in the table, and those of the elements and of what has been taken out."""
    _, _, last, entries, *_ = _head(table)
    words = (ctypes.c_ssize_t * (2 * last + 2)).from_address(entries)
    taken = range(0, 2 * last + 2, 2)
    held = [i >> 1 for i in taken if words[i] and words[i + 1] != -1]
    gone = [i >> 1 for i in taken if words[i] and words[i + 1] == -1]
    return last, tuple(held), tuple(gone)


def finger(table: AnySet) -> int:
    """Where ``pop`` goes on."""
    return _head(table)[5]


def shape(table: Any) -> tuple[int, ...]:
    """How many positions have been used, how many elements there are, the last position."""
    return _head(table)[:3]


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """A set that exists: its elements in their order, its layout, where ``pop`` goes on, and steps
    that lead to these elements; ``exact``: to just that layout."""

    elements: Sequence[Element]
    layout: Layout
    finger: int
    steps: tuple[Step, ...]
    exact: bool = False

    @comparing_none()
    def arranged(self) -> Given | None:
        """The same with steps that lead to the layout, if they are found."""
        last, held, taken_out = self.layout
        gone = [Element(Place(position), None) for position in taken_out]
        at = dict(zip((*held, *taken_out), (*self.elements, *gone), strict=True))
        discarded: list[Step] = [("discard", (element,)) for element in gone]
        for step in _ways(dict(sorted(at.items(), key=lambda place: place[0])), last):
            steps = (step, *discarded)
            made: Any = remade(steps)
            if list(made) == [*self.elements] and layout(made) == self.layout:
                return replace(self, steps=steps, exact=True)
        return None


NOTHING = Given((), layout(set()), 0, (), exact=True)


def given(table: AnySet, elements: Sequence[Element]) -> Given:
    """A set that exists and has these ``elements``."""
    return Given(elements, layout(table), finger(table), (("add", tuple(elements)),))


def _ways(at: dict[int, Element], last: int) -> Iterator[Step]:
    """How a table with elements ``at`` positions may have been filled: in their order, or with
    those first that are where their hash says. They get there again when it grows."""
    moved = {element for position, element in at.items() if element.hash & last != position}
    placed = _placed(at, last)
    later = [*(e for e in placed if e not in moved), *(e for e in placed if e in moved)]
    for order in at.values(), later, later[::-1]:
        yield "add", tuple(order)
        yield "merge", tuple(order)


def _placed(at: dict[int, Element], last: int) -> list[Element]:
    """The elements in an order in which each comes to its position: those that are in its way are
    there before it."""
    order: dict[Element, None] = {}
    waiting = list(at)[::-1]
    begun: set[int] = set()
    while waiting:
        position = waiting[-1]
        before = itertools.takewhile(position.__ne__, _path(at[position].hash, last))
        first = [] if position in begun else [p for p in before if p in at and p not in begun]
        begun.add(position)
        if first:
            waiting += first
        else:
            order[at[waiting.pop()]] = None
    return list(order)


def _path(number: int, last: int) -> Iterator[int]:
    """Where CPython looks for a place for an object with a hash."""
    number &= (1 << 8 * _WORD) - 1
    position = number & last
    for _ in range(last + 65):
        yield from range(position, position + (10 if position + 9 <= last else 1))
        number >>= 5
        position = (position * 5 + 1 + number) & last


def content(table: set[Element], steps: Sequence[Step]) -> Step | None:
    """What a frozenset of this order is made of: elements, or a dict of them."""
    if all(name == "add" for name, _ in steps):
        return "add", tuple(element for _, part in steps for element in part)
    if len(steps) == 1:
        return steps[0]
    if not all(has_known_hash(element.key) for element in table):
        return "add", tuple(sorted(table, key=lambda element: element.number))
    with comparing_none():
        order = list(table)
        last, held, _ = layout(table)  # type: ignore[arg-type]
        ways = _ways(dict(zip(held, order, strict=True)), last)
        return next((step for step in ways if list(remade([step])) == order), None)
