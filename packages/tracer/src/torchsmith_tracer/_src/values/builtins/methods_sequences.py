"""Methods of list, tuple, deque and range."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, cast

from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.functions import sort
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    RangeValue,
    SequenceValue,
    SliceValue,
)
from torchsmith_tracer._src.values.iterators import ReversedValue
from torchsmith_tracer._src.values.lazy import realize

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace

_FALSE = ConstantValue(False)


def _seq(value: Value) -> SequenceValue:
    return cast("SequenceValue", value.base_value())


def _list(value: Value) -> ListValue:
    return cast("ListValue", value.base_value())


def _index_in(
    tx: Trace, self: Value, item: Value, start: Value | None, stop: Value | None, message: str
) -> Value:
    seq = _seq(self)
    window = range(len(seq.items))[SliceValue(start or NONE, stop or NONE, NONE).as_slice(tx)]
    for i in window:
        if i < len(seq.items) and tx.interp.equal(realize(tx, seq.items[i]), item):
            return ConstantValue(i)
    raise tx.interp.error(ValueError, message)


@method(list, "index")
def _list_index(
    tx: Trace, self: Value, item: Value, start: Value | None = None, stop: Value | None = None, /
) -> Value:
    text = tx.interp.try_concrete(item)
    message = f"{text!r} is not in list"
    return _index_in(tx, self, item, start, stop, message)


@method(tuple, "index")
def _tuple_index(
    tx: Trace, self: Value, item: Value, start: Value | None = None, stop: Value | None = None, /
) -> Value:
    return _index_in(tx, self, item, start, stop, "tuple.index(x): x not in tuple")


@method(collections.deque, "index")
def _deque_index(
    tx: Trace, self: Value, item: Value, start: Value | None = None, stop: Value | None = None, /
) -> Value:
    return _index_in(
        tx, self, item, start, stop, f"{tx.interp.try_concrete(item)!r} is not in deque"
    )


@method(list, "count")
@method(tuple, "count")
@method(collections.deque, "count")
def _count(tx: Trace, self: Value, item: Value, /) -> Value:
    values = _seq(self).unpack(tx)
    return ConstantValue(sum(tx.interp.equal(v, item) for v in values))


@method(tuple, "__getnewargs__")
def _getnewargs(tx: Trace, self: Value, /) -> Value:
    return tx.interp.tuple([tx.interp.tuple(_seq(self).items)])


# --- list and deque ----------------------------------------------------------------------------


@method(list, "append")
@method(collections.deque, "append")
def _append(tx: Trace, self: Value, item: Value, /) -> Value:
    _list(self).append(tx, item)
    return NONE


@method(list, "extend")
@method(collections.deque, "extend")
def _extend(tx: Trace, self: Value, items: Value, /) -> Value:
    target = _list(self)
    if isinstance(items, SequenceValue) or items.base_value() is target:
        target.replace(tx, target.items + _seq(items).items)
        return NONE
    if not tx.interp.is_iterable(items):
        kind = items.python_type().__name__
        raise tx.interp.error(TypeError, f"{kind!r} object is not iterable")
    it = items.iter(tx)
    # Item by item: what came before an exception of the iterator stays.
    while (item := tx.interp.step(it)) is not None:
        target.append(tx, item)
    return NONE


@method(list, "insert")
@method(collections.deque, "insert")
def _insert(tx: Trace, self: Value, index: Value, item: Value, /) -> Value:
    target = _list(self)
    if isinstance(target, DequeValue) and target.maxlen == len(target.items):
        raise tx.interp.error(IndexError, "deque already at its maximum size")
    items = list(target.items)
    items.insert(tx.interp.index(index), item)
    target.replace(tx, items)
    return NONE


@method(list, "pop")
def _pop(tx: Trace, self: Value, index: Value = ConstantValue(-1), /) -> Value:  # noqa: B008
    target = _list(self)
    if not target.items:
        raise tx.interp.error(IndexError, "pop from empty list")
    i = tx.interp.index(index)
    if not -len(target.items) <= i < len(target.items):
        raise tx.interp.error(IndexError, "pop index out of range")
    items = list(target.items)
    value = items.pop(i)
    target.replace(tx, items)
    return realize(tx, value)


@method(list, "remove")
@method(collections.deque, "remove")
def _remove(tx: Trace, self: Value, item: Value, /) -> Value:
    target = _list(self)
    for i, value in enumerate(target.unpack(tx)):
        if tx.interp.equal(value, item):
            items = list(target.items)
            del items[i]
            target.replace(tx, items)
            return NONE
    message = "list.remove(x): x not in list"
    if isinstance(target, DequeValue):
        message = f"{tx.interp.try_concrete(item)!r} is not in deque"
    raise tx.interp.error(ValueError, message)


@method(list, "clear")
@method(collections.deque, "clear")
def _clear(tx: Trace, self: Value, /) -> Value:
    _list(self).replace(tx, [])
    return NONE


@method(list, "reverse")
@method(collections.deque, "reverse")
def _reverse(tx: Trace, self: Value, /) -> Value:
    target = _list(self)
    target.replace(tx, target.items[::-1])
    return NONE


@method(list, "copy")
@method(collections.deque, "copy", "__copy__")
def _copy(tx: Trace, self: Value, /) -> Value:
    target = _list(self)
    if isinstance(target, DequeValue) and target is not self:  # calls the class
        return tx.interp.call(tx.interp.type_of(self), [self, target.limit()])
    return target.like(list(target.items))


@method(list, "sort")
def _sort(tx: Trace, self: Value, *, key: Value = NONE, reverse: Value = _FALSE) -> Value:
    target = _list(self)
    items = target.unpack(tx)
    target.replace(tx, [])  # as in CPython, the list looks empty meanwhile
    try:
        result = sort(tx, items, key, reverse)
    except Exception:
        target.replace(tx, items)
        raise
    if target.items:
        target.replace(tx, result)
        raise tx.interp.error(ValueError, "list modified during sort")
    target.replace(tx, result)
    return NONE


@method(list, "__reversed__")
@method(collections.deque, "__reversed__")
def _reversed(tx: Trace, self: Value, /) -> Value:
    return ReversedValue(_seq(self), len(_seq(self).items))


@method(list, "__init__")
def _list_init(tx: Trace, self: Value, iterable: Value | None = None, /) -> Value:
    _list(self).replace(tx, [])
    if iterable is not None:
        items = tx.interp.unpack_for(iterable, "{!r} object is not iterable")
        _list(self).replace(tx, items)
    return NONE


@method(collections.deque, "__init__")
def _deque_init(
    tx: Trace, self: Value, iterable: Value | None = None, maxlen: Value = NONE
) -> Value:
    target = cast("DequeValue", _list(self))
    old = target.maxlen
    tx.journal.record(lambda: setattr(target, "maxlen", old))
    target.maxlen = None if tx.interp.is_none(maxlen) else tx.interp.index(maxlen)
    target.replace(tx, [])
    return NONE if iterable is None else _extend(tx, self, iterable)


# --- deque -------------------------------------------------------------------------------------


@method(collections.deque, "appendleft")
def _appendleft(tx: Trace, self: Value, item: Value, /) -> Value:
    target = cast("DequeValue", _list(self))
    items = [item, *target.items]
    if target.maxlen is not None:
        items = items[: target.maxlen]
    target.replace(tx, items)
    return NONE


@method(collections.deque, "extendleft")
def _extendleft(tx: Trace, self: Value, items: Value, /) -> Value:
    mine = items.base_value() is _list(self)
    for item in list(_seq(self).items) if mine else tx.interp.unpack(items):
        _appendleft(tx, self, realize(tx, item))
    return NONE


method(collections.deque, "pop")(lambda tx, self, /: _deque_take(tx, self, -1))
method(collections.deque, "popleft")(lambda tx, self, /: _deque_take(tx, self, 0))


def _deque_take(tx: Trace, self: Value, index: int) -> Value:
    target = _list(self)
    if not target.items:
        raise tx.interp.error(IndexError, "pop from an empty deque")
    items = list(target.items)
    value = items.pop(index)
    target.replace(tx, items)
    return realize(tx, value)


@method(collections.deque, "rotate")
def _rotate(tx: Trace, self: Value, n: Value = ConstantValue(1), /) -> Value:  # noqa: B008
    target = _list(self)
    items = collections.deque(target.items)
    items.rotate(tx.interp.index(n))
    target.replace(tx, list(items))
    return NONE


# --- range -------------------------------------------------------------------------------------


@method(range, "index")
def _range_index(tx: Trace, self: Value, item: Value, /) -> Value:
    return tx.interp.fold(cast("RangeValue", self).host(tx).index, tx.interp.concrete(item))


@method(range, "count")
def _range_count(tx: Trace, self: Value, item: Value, /) -> Value:
    return tx.interp.fold(cast("RangeValue", self).host(tx).count, tx.interp.concrete(item))


@method(range, "__reversed__")
def _range_reversed(tx: Trace, self: Value, /) -> Value:
    return tx.interp.range_iterator(cast("RangeValue", self).host(tx)[::-1])


@method(slice, "indices")
def _indices(tx: Trace, self: Value, length: Value, /) -> Value:
    bounds = cast("SliceValue", self).as_slice(tx)
    return tx.interp.fold(bounds.indices, tx.interp.index(length))
