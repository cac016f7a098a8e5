"""Values of lists and tuples, whose length is guarded, unless it is another at each compile: what
those hold is read, with its guards, only if more is asked for than to make them longer.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from torchsmith_guards import GuardKind, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import ListValue, TupleValue, Unread

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder


def list_or_tuple(builder: Builder, obj: object, source: Source) -> Value:
    """The value of a list or a tuple, found at ``source``."""
    assert isinstance(obj, list | tuple)
    if obj is warnings.filters:  # they are others while tracing
        raise Unsupported("opaque-attribute", what="filters", object="module warnings")
    tx, kind, length = builder.tx, type(obj), len(obj)
    made = ListValue if kind is list else TupleValue

    def read() -> list[Value]:
        builder.guard(source, GuardKind.LENGTH, (kind, length), f"length of a {kind.__name__}")
        return builder.items_of(obj, source)

    dynamic = False if tx.settings.dynamic is False else None
    if builder.frame_state.is_dynamic_scalar(source, length, dynamic):
        builder.guard(source, GuardKind.TYPE, kind, "what something is put behind the end of")
        return made(Unread(read, tx.journal), source)
    return made(read(), source)
