"""Methods of dict, OrderedDict, defaultdict, set and frozenset."""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import Any, cast

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.constructors import default_factory, fill_dict
from torchsmith_tracer._src.values.builtins.registry import method, traced_method
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.instance_dict import InstanceDictValue
from torchsmith_tracer._src.values.iterators import DictIterator
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.mappings import (
    CHANGED,
    DictValue,
    DictViewValue,
    SetValue,
    claim,
    compare_keys,
    element_key,
    elements,
    held_key,
    look_up,
    steady,
)
from torchsmith_tracer._src.values.python_instances import ObjectValue

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
    key, value = table[hkey]
    target.remove(tx, key)
    return TupleValue([key, realize(tx, value)])


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
    return target.copy() if target.cls is not dict else DictValue(dict(target.table))


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
        return DictValue({h: (k, value) for h, k in elements(tx, iterable).items()})
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
    if hkey not in target.table:
        raise tx.interp.error_with(KeyError, [key])
    table = dict(target.table)
    pair = table.pop(hkey)
    table = {**table, hkey: pair} if tx.interp.truth(last) else {hkey: pair, **table}
    target.replace(tx, table)
    return NONE


# --- sets --------------------------------------------------------------------------------------


def _set(value: Value) -> SetValue:
    return cast("SetValue", value.base_value())


def _table(tx: Trace, value: Value) -> dict[object, Value]:
    base = value.base_value()
    return base.table if isinstance(base, SetValue) else elements(tx, value)


def _keyed(tx: Trace, value: Value) -> Iterable[tuple[object, Value]]:
    """The elements of any iterable with the keys of their hashes, each taken in its turn."""
    if type(value) is DictValue or isinstance(value.base_value(), SetValue):
        return list(elements(tx, value).items())
    return ((tx.interp.hash_key(item), item) for item in tx.interp.each(value))


@method(set, "__init__")
def _set_init(tx: Trace, self: Value, iterable: Value | None = None, /) -> Value:
    _set(self).replace(tx, {})
    return NONE if iterable is None else _set_update(tx, self, iterable)


@method(set, "add")
def _add(tx: Trace, self: Value, item: Value, /) -> Value:
    _set(self).add(tx, item)
    return NONE


@method(set, "discard")
def _discard(tx: Trace, self: Value, item: Value, /) -> Value:
    _drop(tx, _set(self), element_key(tx, item))
    return NONE


def _drop(tx: Trace, target: SetValue, key: object) -> None:
    if look_up(target, key) is not None:
        table = dict(target.table)
        del table[held_key(key)]
        target.replace(tx, table)


@method(set, "remove")
def _remove(tx: Trace, self: Value, item: Value, /) -> Value:
    if look_up(_set(self), element_key(tx, item)) is None:
        raise tx.interp.error_with(KeyError, [item])
    return _discard(tx, self, item)


@method(set, "pop")
def _set_pop(tx: Trace, self: Value, /) -> Value:
    target = _set(self)
    if not target.table:
        raise tx.interp.error(KeyError, "pop from an empty set")
    item = next(iter(target.in_order().values()))
    _discard(tx, self, item)
    return item


@method(set, "clear")
def _set_clear(tx: Trace, self: Value, /) -> Value:
    _set(self).replace(tx, {})
    return NONE


@method(set, "copy")
@method(frozenset, "copy")
def _set_copy(tx: Trace, self: Value, /) -> Value:
    target = _set(self)
    if target.cls is frozenset and target is self:
        return self
    return SetValue(dict(target.table), None, target.cls)


def _apart(self: Value, other: Value) -> list[Value]:
    return [] if other.base_value() is self.base_value() else [other]


@method(set, "update")
def _set_update(tx: Trace, self: Value, /, *others: Value) -> Value:
    for other in others:
        with steady(*_apart(self, other)):
            for key, item in _keyed(tx, other):
                table, count = _set(self).table, len(_set(self).table)
                new = _set(self).add_as(tx, key, item)
                if _set(self).table is not table or len(table) != count + new:
                    raise Unsupported("opaque-call", what=CHANGED)
    return NONE


@method(set, "difference_update")
def _set_difference_update(tx: Trace, self: Value, /, *others: Value) -> Value:
    for other in others:
        with steady(*_apart(self, other)):
            for key, _ in _keyed(tx, other):
                _drop(tx, _set(self), key)
    return NONE


def _fold(tx: Trace, self: Value, op: str, others: tuple[Value, ...]) -> dict[object, Value]:
    current = SetValue(dict(_set(self).table), None, _set(self).cls)
    for other in others:
        known = op != "and_" or isinstance(other.base_value(), SetValue)
        theirs = SetValue(_table(tx, other)) if known else _common(tx, current, other)
        result = current.binary(tx, op, theirs)
        assert result is not None
        current = cast("SetValue", result)
    return current.table


def _common(tx: Trace, mine: SetValue, other: Value) -> SetValue:
    """What both have; like CPython, it asks ``other`` for no more when it has found all."""
    found = SetValue({})
    for key, item in _keyed(tx, other):
        if look_up(mine, key) is not None and claim(found, key, item)[1]:
            if len(found.table) == len(mine.table):
                break
    return found


def _operation(name: str, op: str) -> None:
    def fresh(tx: Trace, self: Value, /, *others: Value) -> Value:
        with steady(self, *others):
            return SetValue(_fold(tx, self, op, others), None, _set(self).cls)

    def change(tx: Trace, self: Value, /, *others: Value) -> Value:
        with steady(self, *others):
            table = _fold(tx, self, op, others)
        _set(self).replace(tx, table)
        return NONE

    one = op == "xor"  # takes one other only
    for cls in (set, frozenset):
        method(cls, name)((lambda tx, self, other, /: fresh(tx, self, other)) if one else fresh)
    if op in ("and_", "xor"):
        changing = (lambda tx, self, other, /: change(tx, self, other)) if one else change
        method(set, name + "_update")(changing)


_operation("union", "or_")
_operation("intersection", "and_")
_operation("difference", "sub")
_operation("symmetric_difference", "xor")


def _relation(name: str, op: str) -> None:
    def relation(tx: Trace, self: Value, other: Value, /) -> Value:
        with steady(self, other):
            return bool_value(compare_keys(op, _set(self).table, _table(tx, other)))

    for cls in (set, frozenset):
        method(cls, name)(relation)


_relation("issubset", "le")
_relation("issuperset", "ge")


def _isdisjoint(tx: Trace, self: Value, other: Value, /) -> Value:
    mine = self.base_value()
    if not isinstance(mine, SetValue):
        mine = SetValue.of(tx, tx.interp.unpack(self))
    with steady(self, other):
        return bool_value(all(look_up(mine, key) is None for key, _ in _keyed(tx, other)))


_SETS: list[type] = [set, frozenset, type({}.keys()), type({}.items())]
for _kind in _SETS:
    method(_kind, "isdisjoint")(_isdisjoint)
