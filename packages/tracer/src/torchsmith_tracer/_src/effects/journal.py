"""The side-effect journal: what traced code changed, how to undo it, how to replay it.

Symbolic containers and attribute tables are changed in place while tracing. Every such change goes
through the journal, which keeps (1) an undo log, so that a graph break can roll back to the start
of the failing instruction, and (2) the set of values whose real counterparts must be updated
after the graph has run, in order of first change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchsmith_tracer._src.values.base import Value

Undo = Callable[[], object]


class Deleted:
    """Marks an attribute that traced code deleted."""

    def __repr__(self) -> str:
        return "<deleted>"


DELETED = Deleted()


class Journal:
    """One per trace. All methods are O(1) except ``rollback`` (linear in what it undoes)."""

    def __init__(self) -> None:
        self._undo: list[Undo] = []
        self.mutated: dict[Value, None] = {}  # containers to write back, in first-change order
        self.attrs: dict[Value, dict[str, Value | Deleted]] = {}  # attribute stores, likewise
        self.effects: list[Value | tuple[object, ...]] = []  # ordered replays (hooks, seeds ...)

    def checkpoint(self) -> int:
        """A mark for ``rollback``."""
        return len(self._undo)

    def rollback(self, mark: int) -> None:
        """Undo every change recorded since ``mark``, newest first."""
        while len(self._undo) > mark:
            self._undo.pop()()

    def record(self, undo: Undo) -> None:
        """Note how to undo a change that the caller makes right after."""
        self._undo.append(undo)

    def mutate(self, value: Value, undo: Undo) -> None:
        """Note a content change of a container; ``value`` is written back if it has a source
        (or is reachable from a result, when it is rebuilt with its final content anyway)."""
        self._undo.append(undo)
        if value not in self.mutated:
            self.mutated[value] = None
            self._undo.append(lambda: self.mutated.pop(value))

    def store_attr(self, value: Value, name: str, new: Value | Deleted) -> None:
        """Note ``value.name = new`` (or its deletion)."""
        table = self.attrs.get(value)
        if table is None:
            table = self.attrs[value] = {}
            self._undo.append(lambda: self.attrs.pop(value))
        if name in table:
            old = table[name]
            self._undo.append(lambda: table.__setitem__(name, old))
        else:
            self._undo.append(lambda: table.pop(name))
        table[name] = new

    def load_attr(self, value: Value, name: str) -> Value | Deleted | None:
        """The pending store of ``value.name``: a value, DELETED, or None when there is none."""
        table = self.attrs.get(value)
        return None if table is None else table.get(name)
