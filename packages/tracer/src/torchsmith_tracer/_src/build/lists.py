"""Wrapping lists, tuples and sizes of tensors."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torchsmith_guards import GuardKind, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.build.dynamic import key_of
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.printing import recorded
from torchsmith_tracer._src.values.containers import ListValue, TupleValue, Unread
from torchsmith_tracer._src.values.sizes import SizeValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder

# Lengths that have code of their own; tuples are arguments more often than data.
_OF_LISTS, _OF_TUPLES = 2, 3


def wrap_list(builder: Builder, obj: object, source: Source) -> Value:
    """A sequence found at ``source``; one of another length each time is not read before it has
    to be."""
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
