"""The side-effect journal: what traced code changed, how to undo it, how to replay it.

Symbolic containers and attribute tables are changed in place while tracing. Every such change goes
through the journal, which keeps (1) an undo log, so that a graph break can roll back to the start
of the failing instruction, and (2) the set of values whose real counterparts must be updated
after the graph has run, in order of first change.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from inspect import getattr_static
from typing import TYPE_CHECKING, Any

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.suspended import leads_to_generator

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.base import Value

Undo = Callable[[], object]
_HOLD_GENERATORS = (BaseException, types.GeneratorType, enumerate, filter, map, zip)


class Deleted:
    """Marks an attribute that traced code deleted."""

    def __repr__(self) -> str:
        return "<deleted>"


DELETED = Deleted()


def exists(value: Value) -> bool:
    """True for values that stand for an object made before the trace."""
    if value.source is not None:
        return True
    if getattr(value, "recipe", None) is not None:
        return False  # the stand-in of a class that traced code has made
    return getattr(value, "obj", None) is not None or getattr(value, "fn", None) is not None


def _held(value: Value) -> Iterator[object]:
    """What an existing container or cell holds."""
    cell = getattr(value, "obj", None)
    if isinstance(cell, types.CellType):
        yield _at(cell, "cell_contents")
    entries: Any = getattr(value, "table", None)
    entries = entries.values() if isinstance(entries, dict) else getattr(value, "items", ())
    for part in entries:
        for item in part if isinstance(part, tuple) else (part,):
            yield getattr(item, "obj", item)


def _at(owner: Any, name: str) -> object:
    """What an existing object or namespace has under a name, by no code of its."""
    if type(owner) is dict:
        return owner.get(name)
    found = getattr_static(owner, name, None)
    if type(found) is types.MemberDescriptorType or type(owner) is types.CellType:
        with suppress(AttributeError, TypeError, ValueError):  # an empty slot, an empty cell
            found = found.__get__(owner)
    return found


def _end_natively(objects: Iterable[object]) -> None:
    """A break where the program may let go of an object with ``__del__``, or of a suspended
    generator, which an exception or an iterator may hold: what that does comes before what the
    program does next, and is not to be overwritten by it."""
    classes: set[type] = set()
    for obj in objects:
        cls = type(obj)
        if issubclass(cls, _HOLD_GENERATORS) and leads_to_generator(obj):
            raise Unsupported("opaque-call", what="the end of a suspended generator")
        classes.add(cls)
    for cls in classes:
        own = next((vars(c)["__del__"] for c in cls.__mro__ if "__del__" in vars(c)), None)
        if isinstance(own, types.FunctionType):
            raise Unsupported("opaque-call", what=f"{cls.__qualname__}.__del__")


class Journal:
    """One per trace. All methods are O(1) except ``rollback`` (linear in what it undoes)."""

    def __init__(self, *, takes_locks: bool = True) -> None:
        self.takes_locks = takes_locks  # else they are taken natively, between graphs
        self.locks: dict[Value, None] = {}  # those that are to be held while the body runs
        self.log: list[Undo] = []
        self.mutated: dict[Value, None] = {}  # containers to write back, in first-change order
        self.held: set[Value] = set()  # those of them that hold nothing with ``__del__``
        self.attrs: dict[Value, dict[str, Value | Deleted]] = {}  # attribute stores, likewise
        self.dropped: dict[Value, dict[str, None]] = {}  # attributes deleted, even if stored later
        self.effects: list[Value | tuple[object, ...]] = []  # ordered replays (hooks, seeds ...)
        self.watch: list[Value] | None = None  # what is changed while somebody looks
        self.stale: dict[Value, dict[Any, Any]] = {}  # caches that a store to a value empties
        # Another object with the same ``__dict__``, which keeps what is stored to either.
        self.shared: dict[Value, Value] = {}
        self.results: dict[Any, Value] = {}  # of cached functions, by the call that is repeated

    def checkpoint(self) -> int:
        """A mark for ``rollback``."""
        return len(self.log)

    def rollback(self, mark: int) -> None:
        """Undo every change recorded since ``mark``, newest first."""
        while len(self.log) > mark:
            self.log.pop()()

    def record(self, undo: Undo) -> None:
        """Note how to undo a change that the caller makes right after."""
        self.log.append(undo)

    def assign(self, obj: object, name: str, new: object) -> None:
        """``obj.name = new`` for a part of a value that nothing is written back from."""
        old = getattr(obj, name)
        self.log.append(lambda: setattr(obj, name, old))
        setattr(obj, name, new)

    def take(self, lock: Value) -> None:
        """Note that traced code has acquired ``lock``."""
        if lock not in self.locks:
            self.locks[lock] = None
            self.log.append(lambda: self.locks.pop(lock))

    def mutate(self, value: Value, undo: Undo) -> None:
        """Note a content change of a container; ``value`` is written back if it has a source
        (or is reachable from a result, when it is rebuilt with its final content anyway)."""
        if value not in self.held and not getattr(value, "growing", None) and exists(value):
            _end_natively(_held(value))
            self.held.add(value)
        self.log.append(undo)
        if self.watch is not None:
            self.watch.append(value)
        if value not in self.mutated:
            self.mutated[value] = None
            self.log.append(lambda: self.mutated.pop(value))

    def call_later(self, function: object, *args: Value) -> None:
        """Note a call for its effect only: it is made where the journal is replayed."""
        self.effects.append((function, *args))
        self.log.append(self.effects.pop)

    def share(self, value: Value, owner: Value) -> None:
        """From now on the two have one ``__dict__``: that of ``owner``."""
        self.shared[value] = owner
        self.log.append(lambda: self.shared.pop(value))

    def owner(self, value: Value) -> Value:
        """The first object with the ``__dict__`` of this one: mostly itself."""
        return self.shared.get(value, value)

    def stores(self, value: Value) -> dict[str, Value | Deleted]:
        """The pending stores to ``value``'s attributes."""
        return self.attrs.get(self.owner(value)) or {}

    def names(self, value: Value, real: Iterable[str]) -> list[str]:
        """The attributes that ``value`` has now, in order, of which it had ``real`` at first."""
        dropped = self.dropped.get(self.owner(value), {})
        names = [n for n in real if n not in dropped]
        stored = self.stores(value).items()
        return names + [n for n, v in stored if v is not DELETED and n not in names]

    def store_attr(self, value: Value, name: str, new: Value | Deleted) -> None:
        """Note ``value.name = new`` (or its deletion)."""
        value = self.owner(value)
        if getattr(value, "obj", None) is not None:
            _end_natively((_at(value.obj, name),))  # type: ignore[attr-defined]
        if value in self.stale:
            self.stale[value].clear()
        if self.watch is not None:
            self.watch.append(value)
        table = self.attrs.get(value)
        if table is None:
            table = self.attrs[value] = {}
            self.log.append(lambda: self.attrs.pop(value))
        old = table.get(name)
        if isinstance(new, Deleted):
            dropped = self.dropped.setdefault(value, {})
            if name not in dropped:
                self.log.append(lambda: dropped.pop(name))
                dropped[name] = None
        if isinstance(old, Deleted):  # goes to the end, as in the object's dict
            before = dict(table)

            def restore() -> None:
                table.clear()
                table.update(before)

            self.log.append(restore)
            del table[name]
        elif old is not None:
            self.log.append(lambda: table.__setitem__(name, old))
        else:
            self.log.append(lambda: table.pop(name))
        table[name] = new

    def load_attr(self, value: Value, name: str) -> Value | Deleted | None:
        """The pending store of ``value.name``: a value, DELETED, or None when there is none."""
        table = self.attrs.get(self.owner(value))
        return None if table is None else table.get(name)
