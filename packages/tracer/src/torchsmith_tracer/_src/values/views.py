"""Views of dicts, and mapping proxies."""

from __future__ import annotations

import builtins
import collections
import types
from typing import cast

from torchsmith_guards import Source

from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import COMPARE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.sets import SetValue

_VIEWS = {
    (kind, ordered): type(getattr(table, kind)())
    for kind in ("keys", "values", "items")
    for ordered, table in enumerate((dict[object, object](), collections.OrderedDict()))
}


class DictViewValue(BuiltinObject):
    """``d.keys()``, ``d.values()`` or ``d.items()`` (``kind``)."""

    __slots__ = ("kind", "mapping")

    def __init__(self, mapping: DictValue, kind: str) -> None:
        self.source = None
        self.mapping = mapping
        self.kind = kind

    def python_type(self) -> type:
        return _VIEWS[self.kind, int(issubclass(self.mapping.cls, collections.OrderedDict))]

    def length(self, tx: Trace) -> Value:
        return ConstantValue(len(self.mapping.table))

    def bool(self, tx: Trace) -> bool:
        return bool(self.mapping.table)

    def as_constant(self) -> object:
        mapping = self.mapping.as_constant()
        return getattr(mapping, self.kind)()

    def iter(self, tx: Trace) -> Value:
        return tx.interp.dict_iterator(self.mapping, self.kind)

    def contains(self, tx: Trace, item: Value) -> Value:
        if self.kind == "keys":
            return self.mapping.contains(tx, item)
        if self.kind == "items":
            pair = item.base_value()
            parts = pair.unpack(tx) if isinstance(pair, TupleValue) else []
            found = self.mapping.get(tx, parts[0]) if len(parts) == 2 else None
            return bool_value(found is not None and tx.interp.equal(found, parts[1]))
        return tx.interp.contains_by_iteration(self, item)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        if self.kind == "values" or op not in ("or_", "and_", "sub", "xor"):
            return None
        if op == "and_":
            return self._common(tx, other)
        first, then = (other, self) if reflected else (self, other)
        plain = first is self and self.kind == "keys" and self.python_type() is type({}.keys())
        made = SetValue()
        made.update(tx, self.mapping if plain else first)
        if op == "or_":
            made.update(tx, then)
        elif op == "sub":
            made.difference_update(tx, then)
        else:
            made.symmetric_difference_update(tx, then)
        return made

    def _common(self, tx: Trace, other: Value) -> SetValue:
        """As CPython: what is walked, and gives the elements, is ``other``, unless that
        is a longer set or view."""
        base, walked, held = other.base_value(), other, cast("Value", self)
        size = len(self.mapping.table)
        if isinstance(base, SetValue) and other.python_type() is set:
            if size <= len(base.table):
                walked, held = self, other
        elif isinstance(base, DictViewValue) and len(base.mapping.table) > size:
            walked, held = self, other
        made = SetValue()
        for item in tx.interp.each(walked):
            if tx.interp.truth(held.contains(tx, item)):
                made.add(tx, item)
        return made

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.base_value()
        kinds = [v.kind for v in (self, other) if isinstance(v, DictViewValue)]
        if "values" in kinds or not isinstance(other, DictViewValue | SetValue):
            return None
        sizes = [tx.interp.index(v.length(tx)) for v in (self, other)]
        inner, outer = (other, self) if op in ("gt", "ge") else (self, other)
        found = COMPARE["eq" if op == "ne" else op](*sizes) and all(
            tx.interp.truth(outer.contains(tx, item)) for item in tx.interp.unpack(inner)
        )
        return bool_value(found != (op == "ne"))

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        if name == "mapping":
            return MappingProxyValue(self.mapping)
        return super().c_attribute(tx, name, descriptor)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.method(self.mapping, self.kind)


class MappingProxyValue(BuiltinObject):
    """``types.MappingProxyType`` over a dict."""

    __slots__ = ("mapping",)
    cls = types.MappingProxyType

    def __init__(self, mapping: Value, source: Source | None = None) -> None:
        self.source = source
        self.mapping = mapping

    def getattr(self, tx: Trace, name: str) -> Value:
        if name in ("get", "keys", "values", "items", "copy"):
            return self.mapping.getattr(tx, name)
        return super().getattr(tx, name)

    def getitem(self, tx: Trace, key: Value) -> Value:
        return self.mapping.getitem(tx, key)

    def length(self, tx: Trace) -> Value:
        return self.mapping.length(tx)

    def contains(self, tx: Trace, item: Value) -> Value:
        return self.mapping.contains(tx, item)

    def iter(self, tx: Trace) -> Value:
        return self.mapping.iter(tx)

    def bool(self, tx: Trace) -> bool:
        return self.mapping.bool(tx)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        if op == "or_":
            other = other.mapping if isinstance(other, MappingProxyValue) else other
            return self.mapping.binary(tx, op, other, reflected=reflected)
        return None

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        other = other.mapping if isinstance(other, MappingProxyValue) else other
        return self.mapping.richcompare(tx, op, other)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(types.MappingProxyType, self.mapping)
