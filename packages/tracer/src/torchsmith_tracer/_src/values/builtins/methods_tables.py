"""Methods of dict, OrderedDict, defaultdict, set and frozenset."""

from __future__ import annotations

import collections
import sys
from typing import Any, cast

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.constructors import default_factory, fill_dict
from torchsmith_tracer._src.values.builtins.registry import method, traced_method
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.hash_keys import comparing_none, held_key
from torchsmith_tracer._src.values.instance_dict import InstanceDictValue
from torchsmith_tracer._src.values.iterators import DictIterator
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.mappings import DictValue, claim, look_up
from torchsmith_tracer._src.values.python_instances import ObjectValue
from torchsmith_tracer._src.values.sets import (
    SetValue,
    each_element,
    looked_up,
    steady,
    value_of,
    whole,
)
from torchsmith_tracer._src.values.views import DictViewValue

_TRUE = ConstantValue(True)


def _dict(value: Value) -> DictValue:
    return cast("DictValue", value.base_value())


@method(dict, "__init__")
@method(collections.OrderedDict, "__init__")
def _init(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    target = _dict(self)
    if isinstance(self, ObjectValue) and target.owner is self:
        # OrderedDict.__init__ and dict.update of a subclass go through its __setitem__.
        setter = tx.interp.special_method(self, "__setitem__")
        if target.cls is collections.OrderedDict and setter is not None:
            new = fill_dict(tx, DictValue(), "OrderedDict", args, kwargs)
            for key, value in list(new.table.values()):
                self.setitem(tx, key, realize(tx, value))
            return NONE
    fill_dict(tx, target, target.cls.__name__, args, kwargs)
    return NONE


@method(collections.defaultdict, "__init__")
def _default_init(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    target = _dict(self)
    tx.journal.assign(target, "factory", default_factory(tx, args))
    fill_dict(tx, target, "defaultdict", args[1:], kwargs)
    return NONE


@method(collections.defaultdict, "__missing__")
def _missing(tx: Trace, self: Value, key: Value, /) -> Value:
    if (factory := _dict(self).factory) is None:
        raise tx.interp.error_with(KeyError, [key])
    value = tx.interp.call(factory, [])
    self.setitem(tx, key, value)
    return value


@method(dict, "get")
def _get(tx: Trace, self: Value, key: Value, default: Value = NONE, /) -> Value:
    found = _dict(self).get(tx, key)
    return default if found is None else found


method(dict, "keys")(lambda tx, self, /: DictViewValue(_dict(self), "keys"))
method(dict, "values")(lambda tx, self, /: DictViewValue(_dict(self), "values"))
method(dict, "items")(lambda tx, self, /: DictViewValue(_dict(self), "items"))


@method(dict, "setdefault")
def _setdefault(tx: Trace, self: Value, key: Value, default: Value = NONE) -> Value:
    target = _dict(self)
    if isinstance(target, InstanceDictValue):
        if (held := target.get(tx, key)) is None:
            target.put(tx, key, held := default)
        return held
    hkey = tx.interp.hash_key(key)
    found, new = claim(target, hkey, (key, default))
    if new:
        target.added(tx, hkey)
    return realize(tx, found[1])


@method(dict, "pop")
def _pop(tx: Trace, self: Value, key: Value, default: Value | None = None) -> Value:
    if (found := _dict(self).remove(tx, key)) is not None:
        return found
    if default is None:
        raise tx.interp.error_with(KeyError, [key])
    return default


method(dict, "popitem")(lambda tx, self, /: _take(tx, _dict(self), last=True))


@method(collections.OrderedDict, "popitem")
def _ordered_popitem(tx: Trace, self: Value, last: Value = _TRUE) -> Value:
    return _take(tx, _dict(self), last=tx.interp.truth(last))


def _take(tx: Trace, target: DictValue, *, last: bool) -> Value:
    table = target.table
    if not table:
        noun = "dictionary" if target.cls is collections.OrderedDict else "popitem(): dictionary"
        raise tx.interp.error(KeyError, f"{noun} is empty")
    hkey = next(reversed(table)) if last else next(iter(table))
    with comparing_none():
        key, _ = table[hkey]
    return TupleValue([key, target.take(tx, hkey)])


@method(dict, "clear")
def _clear(tx: Trace, self: Value, /) -> Value:
    target = _dict(self)
    target.replace(tx, {}, target.table)
    return NONE


@method(dict, "copy")
@method(collections.OrderedDict, "copy", "__copy__")
@method(collections.defaultdict, "copy", "__copy__")
def _copy(tx: Trace, self: Value, /) -> Value:
    target = _dict(self)
    if isinstance(self, ObjectValue) and target.cls is not dict:
        given = [target.factory or NONE] if target.cls is collections.defaultdict else []
        return tx.interp.call(tx.interp.type_of(self), [*given, self])
    return target.copy()


def _joined(self: Any, first: object, then: object) -> object:
    if not isinstance(first, dict) or not isinstance(then, dict):
        return NotImplemented
    factory = (self.default_factory,) if isinstance(self, collections.defaultdict) else ()
    made = type(self)(*factory, first)
    dict.update(made, then)
    return made


for _cls in (collections.OrderedDict, collections.defaultdict):
    traced_method(_cls, "__or__", lambda self, other: _joined(self, self, other))
    traced_method(_cls, "__ror__", lambda self, other: _joined(self, other, self))


@method(dict, "update")
def _update(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    fill_dict(tx, _dict(self), "update", args, kwargs)
    return NONE


@method(dict, "fromkeys")
def _fromkeys(tx: Trace, cls: Value, iterable: Value, value: Value = NONE, /) -> Value:
    if not isinstance(cls, ClassValue):  # through an instance
        cls = tx.interp.type_of(cls)
    if cls.obj is dict:
        made, found = DictValue(), whole(tx, iterable)
        for element in found[0] if found else each_element(tx, iterable):
            claim(made, element.key, (value_of(element), value))
        return made
    new = tx.interp.call(cls, [])
    for key in tx.interp.each(iterable):
        new.setitem(tx, key, value)
    return new


@method(collections.OrderedDict, "fromkeys")
def _ordered_fromkeys(tx: Trace, cls: Value, iterable: Value, value: Value = NONE) -> Value:
    return _fromkeys(tx, cls, iterable, value)


method(dict, "__reversed__")(lambda tx, self, /: DictIterator(_dict(self), "keys", reverse=True))


@method(collections.OrderedDict, "move_to_end")
def _move_to_end(tx: Trace, self: Value, key: Value, last: Value = _TRUE) -> Value:
    target = _dict(self)
    hkey = tx.interp.hash_key(key)
    if look_up(target, hkey) is None:
        raise tx.interp.error_with(KeyError, [key])
    to_end, hkey = tx.interp.truth(last), held_key(hkey)
    with comparing_none():
        table = dict(target.table)
        pair = table.pop(hkey)
        table = {**table, hkey: pair} if to_end else {hkey: pair, **table}
    target.replace(tx, table)
    return NONE


# --- sets --------------------------------------------------------------------------------------


def _set(value: Value) -> SetValue:
    return cast("SetValue", value.base_value())


@method(set, "__init__")
def _set_init(tx: Trace, self: Value, iterable: Value | None = None, /) -> Value:
    _set(self).clear(tx)
    return NONE if iterable is None else _set_update(tx, self, iterable)


@method(set, "add")
def _add(tx: Trace, self: Value, item: Value, /) -> Value:
    _set(self).add(tx, item)
    return NONE


@method(set, "discard")
def _discard(tx: Trace, self: Value, item: Value, /) -> Value:
    _set(self).discard(tx, looked_up(tx, item))
    return NONE


@method(set, "remove")
def _remove(tx: Trace, self: Value, item: Value, /) -> Value:
    if not _set(self).discard(tx, looked_up(tx, item)):
        raise tx.interp.error_with(KeyError, [item])
    return NONE


@method(set, "pop")
def _set_pop(tx: Trace, self: Value, /) -> Value:
    if not _set(self).table:
        raise tx.interp.error(KeyError, "pop from an empty set")
    return _set(self).pop(tx)


@method(set, "clear")
def _set_clear(tx: Trace, self: Value, /) -> Value:
    _set(self).clear(tx)
    return NONE


@method(set, "copy")
@method(frozenset, "copy")
def _set_copy(tx: Trace, self: Value, /) -> Value:
    target = _set(self)
    return self if target.cls is frozenset and target is self else target.copy(tx)


@method(set, "update")
def _set_update(tx: Trace, self: Value, /, *others: Value) -> Value:
    for other in others:
        _set(self).update(tx, other)
    return NONE


@method(set, "difference_update")
def _set_difference_update(tx: Trace, self: Value, /, *others: Value) -> Value:
    for other in others:
        _set(self).difference_update(tx, other)
    return NONE


@method(set, "symmetric_difference_update")
def _set_symmetric_difference_update(tx: Trace, self: Value, other: Value, /) -> Value:
    _set(self).symmetric_difference_update(tx, other)
    return NONE


@method(set, "intersection_update")
def _set_intersection_update(tx: Trace, self: Value, /, *others: Value) -> Value:
    _set(self).intersection_update(tx, cast("SetValue", _intersection(tx, self, *others)))
    return NONE


def _intersection(tx: Trace, self: Value, /, *others: Value) -> Value:
    found = _set(self) if others else _set(self).copy(tx)
    for other in others:
        found = found.common(tx, other)
    return found


def _difference(tx: Trace, self: Value, /, *others: Value) -> Value:
    if not others:
        return _set(self).copy(tx)
    found = _set(self).difference(tx, others[0])
    for other in others[1:]:
        found.difference_update(tx, other)
    return found


for _kind in (set, frozenset):
    method(_kind, "union")(lambda tx, self, /, *others: _set(self).union(tx, *others))
    method(_kind, "intersection")(_intersection)
    method(_kind, "difference")(_difference)
    method(_kind, "symmetric_difference")(
        lambda tx, self, other, /: _set(self).symmetric_difference(tx, other)
    )


def _relation(name: str, *others: type) -> None:
    def relation(tx: Trace, self: Value, other: Value, /) -> Value:
        mine = self.base_value()
        if not isinstance(mine, SetValue):
            mine = SetValue.of(tx, tx.interp.unpack(self))
        with steady(mine, other):
            taken_over = name == "issubset" and sys.version_info < (3, 12)  # from a dict, too
            found = whole(tx, other) if taken_over else None
            kind = other.python_type() if name == "isdisjoint" else None  # asks any other iterator
            theirs = found[1] if found else each_element(tx, other, kind)
            return bool_value(getattr(mine.table, name)(theirs))

    for cls in (set, frozenset, *others):
        method(cls, name)(relation)


_relation("issubset")
_relation("issuperset")
_relation("isdisjoint", type({}.keys()), type({}.items()))
