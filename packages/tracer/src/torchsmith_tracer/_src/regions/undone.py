"""Guards that do not hold any more once a trace's own effects are replayed.

The first step of an optimizer makes the state that it has found missing, a module fills the cache
that was None: what is compiled for such a call is not called again, unless somebody puts the old
state back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torchsmith_guards import AttrSource, Guard, GuardKind, ItemSource, NamespaceSource, Source

from torchsmith_tracer._src.effects.journal import DELETED, Deleted, Journal
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.functions import CellValue

_LENGTHS = (GuardKind.LENGTH, GuardKind.DICT_KEYS, GuardKind.EMPTY)
_ABSENT = (GuardKind.HASATTR, GuardKind.DICT_CONTAINS)
_LITERAL = (GuardKind.NONE, GuardKind.CONSTANT)


def undone(guards: Iterable[Guard], journal: Journal) -> Iterator[Guard]:
    """Those of ``guards`` that the effects of ``journal`` make false, as far as is easily told."""
    now = dict(_written(journal))
    contents = {v.source: c for v in journal.mutated if (c := _content(v)) is not None}
    if now or contents:
        for guard in guards:
            kind, source, expected = guard.kind, guard.source, guard.expected
            if kind in _LITERAL and source in now:
                holds = _is(now[source], expected)
            elif kind in _ABSENT:
                holds = not _is_made(now, source, *expected)  # type: ignore[misc]
            elif kind in _LENGTHS and source in contents:
                before: Any = () if kind is GuardKind.EMPTY else expected[1]  # type: ignore[index]
                holds = len(contents[source]) == (before if type(before) is int else len(before))
            else:
                holds = True
            if not holds:
                yield guard


def _is(new: Value | Deleted, expected: object) -> bool:
    if not isinstance(new, ConstantValue) or type(new.value) is not type(expected):
        return False
    return bool(new.value == expected)


def _is_made(
    now: dict[Source, Value | Deleted], source: Source, name: object, present: bool
) -> bool:
    """Whether an attribute that was not there is stored."""
    owner = source.base if isinstance(source, AttrSource) and source.attr == "__dict__" else source
    if present or not isinstance(name, str) or owner is None:
        return False
    return now.get(AttrSource(owner, name), DELETED) is not DELETED


def _written(journal: Journal) -> Iterator[tuple[Source, Value | Deleted]]:
    """What existing objects are left with, by where it is read."""
    for owner, stores in journal.attrs.items():
        if owner.source is not None:
            step: Any = ItemSource if isinstance(owner.source, NamespaceSource) else AttrSource
            yield from ((step(owner.source, name), new) for name, new in stores.items())
    for value in journal.mutated:
        if isinstance(value, CellValue):
            if value.contents is not None and value.contents_source is not None:
                yield value.contents_source, value.contents
        elif value.source is not None:
            for key, item in _numbers(_content(value)):
                yield ItemSource(value.source, key), item


def _content(value: Value) -> Any:
    """What a container is left with; None for one that is only added to, and for what is none."""
    if getattr(value, "growing", None):
        return None
    content = getattr(value, "table", getattr(value, "items", None))
    return content if isinstance(content, list | dict) else None


def _numbers(content: Any) -> Iterator[tuple[object, ConstantValue]]:
    """Constants in a container, with their keys or positions."""
    pairs: Iterable[Any] = enumerate(content or ())
    if isinstance(content, dict):
        pairs = content.values()
    for pair in pairs:
        key, item = pair if isinstance(pair, tuple) else (None, None)
        key = key.value if isinstance(key, ConstantValue) else key
        if isinstance(item, ConstantValue) and isinstance(key, str | int):
            yield key, item
