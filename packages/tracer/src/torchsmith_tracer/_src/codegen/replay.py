"""Writes the journal into the body: what traced code changed is changed for real.

Only objects that exist outside of the trace are written here. Objects born in the trace are built
with their final content when something that is returned or stored needs them.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.effects.journal import Deleted, Journal, exists
from torchsmith_tracer._src.values.base import Value

if TYPE_CHECKING:
    from torchsmith_tracer._src.codegen.emitter import Emitter


_PLAIN_SETATTR: tuple[object, ...] = (
    object.__setattr__,
    types.ModuleType.__setattr__,
    type.__setattr__,
    types.FunctionType.__setattr__,
)


def replay(cg: Emitter, journal: Journal) -> None:
    """Emit all changes of existing objects."""
    for value in list(journal.mutated):
        if exists(value):
            _write_back(cg, value)
    for value, stores in list(journal.attrs.items()):
        if exists(value) and value not in cg.new_attrs:
            emit_attrs(cg, value, stores, journal.dropped.get(value, ()))
    for effect in journal.effects:
        if isinstance(effect, tuple):
            _call(cg, effect)
        else:
            cg.expr(effect)


def emit_attrs(
    cg: Emitter, value: Value, stores: Mapping[str, Value | Deleted], dropped: Iterable[str] = ()
) -> None:
    """Emit attribute stores on one object, after the deletion of ``dropped`` ones: an attribute
    that traced code both made and deleted was never there."""
    kind = value.python_type()
    if kind is dict:  # a namespace: stores are global variables
        for name in dropped:
            _call(cg, (dict.pop, value, name, None))
        for name, new in stores.items():
            if not isinstance(new, Deleted):
                cg.statement(f"{cg.expr(value)}[{cg.const(name)}] = {cg.expr(new)}")
        return
    plain = kind.__setattr__ in _PLAIN_SETATTR
    for name in dropped:
        _call(cg, (_drop, _base_slot(kind, "__delattr__"), value, name))
    for name, new in stores.items():
        if isinstance(new, Deleted):
            continue
        if plain:
            cg.set_attr(value, name, new)
        else:
            # The class's own __setattr__ has been traced already; only the slot is written.
            _call(cg, (_base_slot(kind, "__setattr__"), value, name, new))


def _drop(delete: Callable[[object, str], None], obj: object, name: str) -> None:
    with contextlib.suppress(AttributeError):
        delete(obj, name)


def _base_slot(kind: type, name: str) -> object:
    """The C-level ``__setattr__`` or ``__delattr__`` below Python overrides; ``object``'s refuses
    some types."""
    for base in kind.__mro__:
        own = base.__dict__.get(name)
        if isinstance(own, types.WrapperDescriptorType):
            return own
    return getattr(object, name)


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
    elif issubclass(kind, list):
        cg.effect(list.__setitem__, value, cg.const(slice(None)), _items(cg, value))
    elif issubclass(kind, dict):
        table: Mapping[object, tuple[Value, Value]] = value.table  # type: ignore[attr-defined]
        ordered = issubclass(kind, collections.OrderedDict)
        base = collections.OrderedDict if ordered else dict
        _refill(cg, value, base.clear, base.update, cg.dict_of(table.values()))
    elif issubclass(kind, set):
        _refill(cg, value, set.clear, set.update, _items(cg, value))
    elif issubclass(kind, collections.deque):
        _refill(cg, value, collections.deque.clear, collections.deque.extend, _items(cg, value))
    else:
        raise InternalError(f"no way to write back {value.describe()}")


def _items(cg: Emitter, value: Value) -> str:
    """A list of the final content."""
    table = getattr(value, "table", None)
    return cg.list_of(table.values() if table is not None else value.items)  # type: ignore[attr-defined]


def _refill(cg: Emitter, value: Value, clear: object, fill: object, content: str) -> None:
    """Clear the container and fill it, by the methods of the base type: a subclass's overrides
    have been traced already."""
    content = cg.temporary(content)
    cg.effect(clear, value)
    cg.effect(fill, value, content)


def _call(cg: Emitter, effect: tuple[object, ...]) -> None:
    """An effect ``(callable, value, ...)``: call it with the values' objects."""
    args = [arg if isinstance(arg, Value) else cg.const(arg) for arg in effect[1:]]
    cg.statement(cg.call_of(cg.bound(effect[0], "effect"), args))
