"""Slots that call the special methods that a class defines in Python, as CPython's do."""

from __future__ import annotations

import builtins

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import bool_value, dunder, is_not_implemented
from torchsmith_tracer._src.values.lookup import Found, in_python, lookup


class HasSpecialMethods(Value):
    """Mixin of values whose class may define special methods in Python. In a slot for which it
    has none, the next base answers."""

    __slots__ = ()

    def type_entry(self, tx: Trace, name: str) -> Found | None:
        """What the type of the object has by this name, in C or in Python."""
        return lookup(tx, self.python_type(), name)

    def special_method(self, tx: Trace, name: str) -> Value | None:
        """The method to call in the slot of this name, bound."""
        raise NotImplementedError(name)

    def call_special(self, tx: Trace, name: str, *args: Value) -> Value | None:
        """What the special method returns; None where there is none to call."""
        method = self.special_method(tx, name)
        return None if method is None else tx.interp.call(method, args)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        method = self.special_method(tx, "__call__")
        if method is None:
            return super().call(tx, args, kwargs)
        return tx.interp.call(method, args, kwargs)

    def getitem(self, tx: Trace, key: Value) -> Value:
        return self.call_special(tx, "__getitem__", key) or super().getitem(tx, key)

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        if self.call_special(tx, "__setitem__", key, value) is None:
            self._lacks_half(tx, "__setitem__", "__delitem__")
            super().setitem(tx, key, value)

    def delitem(self, tx: Trace, key: Value) -> None:
        if self.call_special(tx, "__delitem__", key) is None:
            self._lacks_half(tx, "__delitem__", "__setitem__")
            super().delitem(tx, key)

    def _lacks_half(self, tx: Trace, name: str, other: str) -> None:
        # The two are one slot in C.
        if self.base_value() is self and in_python(self.type_entry(tx, other)):
            raise tx.interp.error(AttributeError, name)

    def length(self, tx: Trace) -> Value:
        length = self.call_special(tx, "__len__")
        if length is None:
            return super().length(tx)
        if self.base_value() is not self and not length.is_constant():
            return length  # the number of items of the builtin part
        return tx.interp.check_length(length)

    def contains(self, tx: Trace, item: Value) -> Value:
        found = self.type_entry(tx, "__contains__")
        if found is not None and found.attr is None:
            raise tx.interp.error(TypeError, f"{self.type_name!r} object is not a container")
        answer = self.call_special(tx, "__contains__", item)
        return super().contains(tx, item) if answer is None else bool_value(tx.interp.truth(answer))

    def iter(self, tx: Trace) -> Value:
        if self.type_entry(tx, "__iter__") is None and self.special_method(tx, "__getitem__"):
            return tx.interp.getitem_iterator(self)
        iterator = self.call_special(tx, "__iter__")
        return super().iter(tx) if iterator is None else tx.interp.check_iterator(iterator)

    def next(self, tx: Trace) -> Value:
        return self.call_special(tx, "__next__") or super().next(tx)

    def binary(
        self, tx: Trace, op: str, other: Value, *, reflected: builtins.bool = False
    ) -> Value | None:
        result = self.call_special(tx, dunder(op, reflected=reflected), other)
        if result is None:
            return super().binary(tx, op, other, reflected=reflected)
        return None if is_not_implemented(result) else result

    def unary(self, tx: Trace, op: str) -> Value:
        return self.call_special(tx, dunder(op)) or super().unary(tx, op)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        result = self.call_special(tx, f"__{op}__", other)
        if result is not None:
            return None if is_not_implemented(result) else result
        found = self.type_entry(tx, "__ne__") if op == "ne" else None
        if found is not None and found.owner is object:
            equal = self.call_special(tx, "__eq__", other)
            if equal is not None:
                unknown = is_not_implemented(equal)
                return None if unknown else bool_value(not tx.interp.truth(equal))
        return super().richcompare(tx, op, other)

    def bool(self, tx: Trace) -> builtins.bool:
        answer = self.call_special(tx, "__bool__")
        if answer is not None:
            return tx.interp.check_bool(answer)
        if self.type_entry(tx, "__bool__") is not None:
            return super().bool(tx)
        return self.type_entry(tx, "__len__") is None or tx.interp.truth(self.length(tx))
