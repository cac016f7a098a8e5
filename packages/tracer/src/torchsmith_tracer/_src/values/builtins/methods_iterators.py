"""``__reduce__`` and ``__setstate__`` of the builtin iterators: how they are copied and pickled."""

from __future__ import annotations

from typing import Any

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import iterators
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import NONE, TRUE, ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, TupleValue

_TABLES: list[Any] = [{}, {}.values(), {}.items()]
_ITERABLES: list[Any] = [[], (), "", "é", b"", set(), range(0), range(1 << 99), *_TABLES]
_CLASSES: list[Any] = [*(type(iter(c)) for c in _ITERABLES), enumerate, filter, map, reversed, zip]
_CLASSES += [type(reversed(c)) for c in ([], *_TABLES)]
_CLASSES += [iterators.CallableIterator.cls, iterators.GetitemIterator.cls]
_LISTS: tuple[Any, ...] = (type(iter([])), type(reversed([])))


def _made(fn: Value, *args: Value, index: int | None = None) -> TupleValue:
    state = [] if index is None else [ConstantValue(index)]
    return TupleValue([fn, TupleValue(list(args)), *state])


def _reduce(tx: Trace, self: Value, /) -> Value | None:
    it: Any = self.base_value()
    cls, opener, kind = tx.interp.type_of(self), tx.interp.const(iter), it.python_type()
    match it:
        case iterators.RangeIterator():
            return tx.interp.fold(it.host().__reduce__)
        case iterators.EnumerateValue():
            return _made(cls, it.it, ConstantValue(it.index))
        case iterators.ZipValue():
            return TupleValue([*_made(cls, *it.its).items, *([TRUE] if it.strict else ())])
        case iterators.MapValue():
            return _made(cls, it.fn, *it.its)
        case iterators.FilterValue():
            return _made(cls, NONE if it.fn is None else it.fn, it.it)
        case iterators.CallableIterator():
            return _made(opener, *((TupleValue([]),) if it.done else (it.fn, it.sentinel)))
    if isinstance(it, iterators.DictIterator) or kind is type(iter(set())):
        mark = tx.journal.checkpoint()
        left = tx.interp.unpack(it)
        tx.journal.rollback(mark)  # what is left is looked at, not taken
        return _made(opener, ListValue(left))
    if not isinstance(it, iterators.Counted):
        return None
    backwards = isinstance(it, iterators.ReversedValue)
    if it.index < (-1 if backwards else 0):
        empty = ListValue([]) if kind in _LISTS else TupleValue([])
        return _made(cls if kind is reversed else opener, empty)
    if backwards:
        opener = cls if kind is reversed else tx.interp.const(reversed)
    owner = next((getattr(it, n) for n in ("sequence", "obj", "owner") if hasattr(it, n)), None)
    return None if owner is None else _made(opener, owner, index=it.index)


def _setstate(tx: Trace, self: Value, state: Value, /) -> Value | None:
    it: Any = self.base_value()
    if isinstance(it, iterators.ZipValue):
        tx.journal.assign(it, "strict", tx.interp.truth(state))
        return NONE
    index, least, most = tx.interp.index(state), 0, None
    match it:
        case iterators.RangeIterator():
            most = it.count
        case iterators.ReversedValue():
            least, most = -1, it.last
        case iterators.SequenceIterator():
            most = len(it.sequence.items)
        case iterators.ItemsIterator():
            most = len(it.items)
        case iterators.GetitemIterator():
            pass
        case _:
            return None
    if it.index >= least:
        it.move(tx, max(least, index if most is None else min(index, most)))
    return NONE


for _cls in dict.fromkeys(_CLASSES):
    for _name, _fn in (("__reduce__", _reduce), ("__setstate__", _setstate)):
        if _name in vars(_cls):
            method(_cls, _name)(_fn)
