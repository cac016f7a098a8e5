"""Wrapping lists, tuples and sizes of tensors; tables of other keys each time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from torchsmith_guards import GuardKind, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.build.dynamic import key_of
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.printing import recorded
from torchsmith_tracer._src.values.containers import ListValue, TupleValue, Unread
from torchsmith_tracer._src.values.sizes import SizeValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder

_T = TypeVar("_T")
LITERALS = frozenset((bool, int, float, complex, str, bytes, type(None), type(Ellipsis)))
# Lengths, or keys, that have code of their own; tuples are arguments more often than data.
_OF_LISTS, _OF_TUPLES, _OF_TABLES = 2, 3, 3
_OF_MODULES = ("._buffers", "._modules", "._parameters")


def wrap_list(builder: Builder, obj: object, source: Source) -> Value:
    """A sequence found at ``source``; one whose length varies is not read before it has to be."""
    assert isinstance(obj, list | tuple)
    if obj is warnings.filters:  # they are others while tracing
        raise Unsupported("opaque-attribute", what="filters", object="module warnings")
    tx, kind, length = builder.tx, type(obj), len(obj)
    made = {list: ListValue, tuple: TupleValue}.get(kind, SizeValue)
    key, state = key_of(source), builder.frame_state

    def read() -> list[Value]:
        if obj is recorded():  # warnings come after the graph, and are looked at after that
            raise Unsupported("opaque-attribute", what="items", object="a record of warnings")
        if varies:
            what = f"{kind.__name__} `{source.expr}`"
            most = _OF_LISTS if kind is list else _OF_TUPLES
            state.unroll(tx, what, key, length, most)
        builder.guard(source, GuardKind.LENGTH, (kind, length), f"length of a {kind.__name__}")
        return builder.items_of(obj, source)

    if kind is list:
        state.lists.add(key)
    dynamic = False if tx.settings.dynamic is False else None
    varies = state.is_dynamic_scalar(source, length, dynamic) or obj is recorded()
    if not varies:
        state.unrolled.setdefault(key, set()).add(length)
        return made(read(), source)
    builder.guard(source, GuardKind.TYPE, kind, "what something is put behind the end of")
    return made(Unread(read, tx.journal), source)


def unless_other_keys(
    builder: Builder, obj: object, source: Source, kind: type, read: Callable[[], _T]
) -> _T | Unread:
    """What ``read`` finds in a dict or set (``kind``), unless it has other keys at each call."""
    keys = list(kind.__iter__(obj))  # type: ignore[attr-defined]
    held = tuple(keys) if all(map(is_plain_key, keys)) else len(keys)
    key, state = key_of(source), builder.frame_state

    def unrolled() -> _T:
        state.unroll(builder.tx, f"{kind.__name__} `{source.expr}`", key, held, _OF_TABLES)
        return read()

    fixed = key.endswith(_OF_MODULES) or builder.tx.settings.dynamic is False
    if fixed or not state.is_dynamic_scalar(source, held, None):
        state.unrolled.setdefault(key, set()).add(held)
        return read()
    builder.guard(source, GuardKind.TYPE, type(obj), "what is read natively")
    return Unread(unrolled, builder.tx.journal)


def is_plain_key(key: object) -> bool:
    """True for keys that are compared by value; NaN is found again by identity only."""
    if type(key) is tuple:
        return all(map(is_plain_key, key))
    return type(key) in LITERALS and key == key
