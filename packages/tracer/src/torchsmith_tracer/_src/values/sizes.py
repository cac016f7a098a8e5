"""``torch.Size`` values: tuples of known and symbolic numbers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import MethodOf, Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue, TupleValue
from torchsmith_tracer._src.values.symnum import symbolic

# From 2.13 on (at the latest) sizes stay sizes when they are added to tuples.
_OWN_ADD = "__add__" in vars(torch.Size)
_OWN_RADD = "__radd__" in vars(torch.Size)
_OWN_MUL = "__mul__" in vars(torch.Size)


class SizeValue(TupleValue):
    """A ``torch.Size``; its numbers may be symbolic."""

    __slots__ = ()
    cls = torch.Size

    def base_type(self) -> type:
        return tuple

    def like(self, items: list[Value]) -> Value:
        return SizeValue(items)

    def as_proxy(self) -> object:
        return tuple([v.as_proxy() for v in self.items])

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        other = other.base_value()
        if op == "add" and isinstance(other, SequenceValue) and other.base_type() is tuple:
            mine, theirs = self.unpack(tx), other.unpack(tx)
            items = [*theirs, *mine] if reflected else [*mine, *theirs]
            return SizeValue(items) if (_OWN_RADD if reflected else _OWN_ADD) else TupleValue(items)
        result = super().binary(tx, op, other, reflected=reflected)
        if isinstance(result, SizeValue) and op == "mul" and not _OWN_MUL:
            return TupleValue(result.items)
        return result

    def getattr(self, tx: Trace, name: str) -> Value:
        return SizeNumel(self, "numel") if name == "numel" else super().getattr(tx, name)

    def reconstruct(self, cg: Emitter) -> str:
        if self.is_constant():
            return cg.bound(self.as_constant(), "size")
        return cg.call(torch.Size, cg.tuple_of(self.items))


class SizeNumel(MethodOf["SizeValue"]):
    """``size.numel`` of a symbolic size."""

    __slots__ = ()
    cls = type(torch.Size().numel)

    def call(self, tx: Trace, args: object, kwargs: object) -> Value:
        result: Value = ConstantValue(1)
        for item in self.owner.unpack(tx):
            product = result.binary(tx, "mul", item)
            if product is None:
                product = item.binary(tx, "mul", result, reflected=True)
            assert product is not None
            result = product
        return result


def size_value(sizes: torch.Size, node_of: Callable[[int], fx.Node]) -> SizeValue:
    """The value of ``sizes``; ``node_of(i)`` gives the node of a symbolic one."""
    items: list[Value] = []
    for i, n in enumerate(sizes):
        items.append(ConstantValue(n) if type(n) is int else symbolic(node_of(i), n))
    return SizeValue(items)
