"""Objects whose ``__dict__`` is reached in other ways, too: through other objects, or as a dict."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, cast

from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.modules import ModuleValue
from torchsmith_tracer._src.values.python_instances import ObjectValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder


def share_dict(builder: Builder, value: ObjectValue) -> ObjectValue:
    """``value``, whose attributes are those of whatever else has the same ``__dict__``."""
    assert value.source is not None
    world, tables = builder.tx.world, builder.tables
    table = world.instance_dict(value.obj)
    if not isinstance(table, dict):
        return value
    key, known = id(table), value if table is value.obj else builder.known(table)
    first = tables.get(key)
    if known is None and type(table) is not dict:
        known = builder.wrap(table, world.own_table(value.obj, value.source))
    if first is not None and not value.slot_names():
        places = [world.own_table(v.obj, v.source) for v in (first, value) if v.source]
        builder.same_object(table, places[0], places[-1])
        builder.tx.journal.share(value, first)
    elif first is None and known is not None:
        place = world.own_table(value.obj, value.source)
        if known.source != place:
            builder.same_object(table, known.source, place)
        entries = known.base_value()
        if not isinstance(entries, DictValue) or entries.cls is not dict:
            raise Unsupported("unsupported-slot", what="a __dict__ that has an order of its own,")
        if isinstance(value, ModuleValue):
            raise Unsupported("unsupported-slot", what="a __dict__ of a module, seen as a dict,")
        value.entries = entries
    elif first is not None:
        raise Unsupported("unsupported-slot", what="a __dict__ that is used elsewhere, too,")
    else:
        tables[key] = value
        builder.tx.graph.record(lambda: tables.__delitem__(key))
    return value


def guard_dicts(
    builder: Builder,
    seen: Iterable[tuple[object, Value, object]],
    changed: Collection[Value],
) -> None:
    """Guard that what was changed in place is not the ``__dict__`` of another object that was
    ``seen``; only what has attributes of the same names may be."""
    if not changed:
        return
    world = builder.tx.world
    tables = [(v, world.instance_dict(v.obj) or {}) for v in builder.tables.values()]
    for obj, value, _ in seen:
        if type(value) is not DictValue or value.source is None:
            continue
        own = {key for key in cast("dict[object, object]", obj) if type(key) is str}
        for holder, table in tables:
            hit = value in changed or holder in changed
            if hit and holder.source is not None and not own.isdisjoint(table):
                place = world.own_table(holder.obj, holder.source)
                why = "one of these is changed in place"
                builder.guard(value.source, GuardKind.NOT_SAME, (place,), why)
