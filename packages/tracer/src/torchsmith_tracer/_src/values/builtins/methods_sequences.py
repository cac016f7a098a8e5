"""Methods of list, tuple, deque and range."""

from __future__ import annotations

import collections
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.constructors import most_items
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

_FALSE = ConstantValue(False)


def _seq(value: Value) -> SequenceValue:
    return cast("SequenceValue", value.base_value())


def _list(value: Value) -> ListValue:
    return cast("ListValue", value.base_value())


@dataclass(slots=True, eq=False)
class _Element:
    """An item, for methods of the host's own sequences that compare items: ``host`` has those of
    ``seq``, also when comparing has changed them."""

    tx: Trace
    seq: SequenceValue
    value: Value
    host: Any = None

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, _Element)
        before = [*map(id, self.seq.items)]
        same = self.tx.interp.equal(realize(self.tx, self.value), other.value)
        if before != [*map(id, self.seq.items)]:
            host = other.host if self.host is None else self.host
            host.clear()
            host.extend(_Element(self.tx, self.seq, v) for v in self.seq.items)
        return same

    def __repr__(self) -> str:
        return str(self.tx.interp.concrete(self.tx.interp.repr_of(self.value)))

    __hash__ = None  # type: ignore[assignment]


def _as_host(cls: type, name: str, *, item: int | None = None) -> None:
    """``cls.name`` runs on a real sequence of the items, with its exceptions. Argument number
    ``item`` is an item, the others are numbers."""
    compares = name in ("index", "count", "remove")

    def implementation(tx: Trace, self: Value, /, *args: Value) -> Value:
        seq = _seq(self)
        as_item: Any = partial(_Element, tx, seq) if compares else lambda v: v
        # The arguments first: a user's ``__index__`` may change the items.
        more: list[Any] = [
            as_item(a) if i == item else tx.interp.index(a) for i, a in enumerate(args)
        ]
        limit = (seq.maxlen,) if isinstance(seq, DequeValue) else ()
        host = cls(map(as_item, seq.items), *limit)
        if compares and more:
            more[0].host = host
        result = tx.interp.hosted(getattr(host, name), *more)
        if name not in ("index", "count"):
            items = [v.value for v in host] if compares else list(host)
            cast("ListValue", seq).replace(tx, items)
        return realize(tx, result) if isinstance(result, Value) else tx.interp.const(result)

    method(cls, name)(implementation)


for _cls in (list, tuple, collections.deque):
    _as_host(_cls, "index", item=0)
    _as_host(_cls, "count", item=0)
for _cls in (list, collections.deque):
    _as_host(_cls, "remove", item=0)
    _as_host(_cls, "insert", item=1)
    for _name in ("pop", "clear", "reverse"):
        _as_host(_cls, _name)
_as_host(collections.deque, "appendleft", item=0)
_as_host(collections.deque, "popleft")
_as_host(collections.deque, "rotate")


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
    _list(self).take(tx, items)
    return NONE


@method(list, "copy")
@method(collections.deque, "copy", "__copy__")
def _copy(tx: Trace, self: Value, /) -> Value:
    target = _list(self)
    if isinstance(target, DequeValue) and target is not self:  # calls the class
        limit = () if target.maxlen is None else (target.limit(),)
        return tx.interp.call(tx.interp.type_of(self), [self, *limit])
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
    return NONE if iterable is None else _extend(tx, self, iterable)


@method(collections.deque, "__init__")
def _deque_init(
    tx: Trace, self: Value, iterable: Value | None = None, maxlen: Value = NONE
) -> Value:
    target = cast("DequeValue", _list(self))
    tx.journal.assign(target, "maxlen", most_items(tx, maxlen))
    target.replace(tx, [])
    return NONE if iterable is None else _extend(tx, self, iterable)


# --- deque -------------------------------------------------------------------------------------


@method(collections.deque, "extendleft")
def _extendleft(tx: Trace, self: Value, items: Value, /) -> Value:
    mine = items.base_value() is _list(self)
    for item in list(_seq(self).items) if mine else tx.interp.each(items):
        tx.interp.call(self.base_value().getattr(tx, "appendleft"), [realize(tx, item)])
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
