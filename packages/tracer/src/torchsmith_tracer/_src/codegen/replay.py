"""Writes the journal into the body: what traced code changed is changed for real.

Only objects that exist outside of the trace are written here. Objects born in the trace are built
with their final content when something that is returned or stored needs them.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.effects.journal import Journal, exists
from torchsmith_tracer._src.values.base import Value

if TYPE_CHECKING:
    from torchsmith_tracer._src.emitter import Emitter


def replay(cg: Emitter, journal: Journal) -> None:
    """Emit all changes of existing objects."""
    for value in list(journal.mutated):
        if exists(value):
            _write_back(cg, value)
    for value, stores in list(journal.attrs.items()):
        if exists(value) and value not in cg.new_attrs:
            cg.set_attrs(value, stores, journal.dropped.get(value, ()))
    for effect in journal.effects:
        if isinstance(effect, tuple):
            args = [a if isinstance(a, Value) else cg.const(a) for a in effect[1:]]
            cg.statement(cg.call_of(cg.bound(effect[0], "effect"), args))
        else:
            cg.expr(effect)


def _write_back(cg: Emitter, value: Value) -> None:
    own = getattr(value, "write_back", None)
    if own is not None:
        own(cg)
        return
    kind = value.python_type()
    if kind is types.CellType:
        contents: Value | None = getattr(value, "contents", None)
        if contents is None:
            cg.statement(f"del {cg.attr(value, 'cell_contents')}")
        else:
            cg.set_attr(value, "cell_contents", contents)
    elif unread := getattr(value, "growing", None):
        cg.effect(list.extend, value, cg.list_of(unread.tail))
    elif issubclass(kind, list):
        cg.effect(list.__setitem__, value, cg.const(slice(None)), _items(cg, value))
    elif issubclass(kind, dict):
        table: Mapping[object, tuple[Value, Value]] = value.table  # type: ignore[attr-defined]
        ordered = issubclass(kind, collections.OrderedDict)
        base = collections.OrderedDict if ordered else dict
        cg.effect(_rewrite, cg.bound(base, "base"), value, cg.dict_of(table.values()))
    elif issubclass(kind, collections.deque) and value.items is value.first:  # type: ignore[attr-defined]
        cg.effect(_assign, value, _items(cg, value))
    elif issubclass(kind, collections.deque):
        _refill(cg, value, collections.deque.clear, collections.deque.extend, _items(cg, value))
    else:
        raise InternalError(f"no way to write back {value.describe()}")


def _items(cg: Emitter, value: Value) -> str:
    """A list of the final content."""
    return cg.list_of(value.items)  # type: ignore[attr-defined]


def _refill(cg: Emitter, value: Value, clear: object, fill: object, content: str) -> None:
    """Clear the container and fill it, by the methods of the base type: a subclass's overrides
    have been traced already."""
    content = cg.temporary(content)
    cg.effect(clear, value)
    cg.effect(fill, value, content)


_PLAIN = frozenset((str, bytes, int, float, bool, type(None)))


def _rewrite(
    base: type[dict[object, object]], table: dict[object, object], content: dict[object, object]
) -> None:
    """Bring a dict to ``content``; keys that keep their order stay where they are, since someone
    may be iterating over them."""
    old, new = list(base.__iter__(table)), list(content)
    kept = len(new) if list(map(id, old)) == list(map(id, new)) else 0
    if not kept and _PLAIN.issuperset(map(type, (*old, *new))):
        places = {key: i for i, key in enumerate(old)}
        order = [places.get(key, -1) for key in new]
        while kept < len(new) and order[kept] > (order[kept - 1] if kept else -1):
            kept += 1
        for key in set(old).difference(new[:kept]):
            base.__delitem__(table, key)
    elif not kept:
        base.clear(table)
    base.update(table, content)


def _assign(queue: collections.deque[object], content: list[object]) -> None:
    """Bring a deque to ``content``, which is as long as it: its iterators go on."""
    for i, item in enumerate(content):
        collections.deque.__setitem__(queue, i, item)
