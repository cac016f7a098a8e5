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
            cg.load(effect)
            cg.pop_top()


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
                cg.load(new)
                cg.load(value)
                cg.load_const(name)
                cg.store_subscr()
        return
    plain = kind.__setattr__ in _PLAIN_SETATTR
    for name in dropped:
        _call(cg, (_drop, _base_slot(kind, "__delattr__"), value, name))
    for name, new in stores.items():
        if isinstance(new, Deleted):
            continue
        if plain:
            cg.load(new)
            cg.load(value)
            cg.store_attr(name)
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
            cg.load(value)
            cg.delete_attr("cell_contents")
            return
        cg.load(contents)
        cg.load(value)
        cg.store_attr("cell_contents")
    elif issubclass(kind, list):
        cg.load_callable(list.__setitem__, "set_items")
        cg.load(value)
        cg.load_const(slice(None))
        _items(cg, value)
        cg.call(3)
        cg.pop_top()
    elif issubclass(kind, dict):
        table: Mapping[object, tuple[Value, Value]] = value.table  # type: ignore[attr-defined]
        for key, item in table.values():
            cg.load(key)
            cg.load(item)
        cg.build_map(len(table))
        ordered = issubclass(kind, collections.OrderedDict)
        _refill(cg, value, collections.OrderedDict if ordered else dict, "update")
    elif issubclass(kind, set | collections.deque):
        _items(cg, value)
        base = set if issubclass(kind, set) else collections.deque
        _refill(cg, value, base, "update" if base is set else "extend")
    else:
        raise InternalError(f"no way to write back {value.describe()}")


def _items(cg: Emitter, value: Value) -> None:
    """Push a list of the final content."""
    table = getattr(value, "table", None)
    items: list[Value] = (
        list(table.values()) if table is not None else value.items  # type: ignore[attr-defined]
    )
    for item in items:
        cg.load(item)
    cg.build_list(len(items))


def _refill(cg: Emitter, value: Value, base: type, method: str) -> None:
    """With the new content on the stack: clear the container and fill it."""
    content = cg.store_temp()
    for name, loads in (("clear", False), (method, True)):
        # The base type's method: a subclass's override has been traced already.
        cg.load_callable(getattr(base, name), name)
        cg.load(value)
        if loads:
            cg.load_temp(content)
        cg.call(2 if loads else 1)
        cg.pop_top()


def _call(cg: Emitter, effect: tuple[object, ...]) -> None:
    """An effect ``(callable, value, ...)``: call it with the values' objects."""
    cg.load_callable(effect[0], "effect")
    for arg in effect[1:]:
        if isinstance(arg, Value):
            cg.load(arg)
        else:
            cg.load_const(arg)
    cg.call(len(effect) - 1)
    cg.pop_top()
