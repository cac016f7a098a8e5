"""Values that are known completely while tracing: numbers, strings, None, enum members, dtypes.

Every slot computes on the real object and wraps the result again; an exception of the real
operation becomes an exception of the traced program.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject

BINARY: dict[str, Callable[..., object]] = {
    name: getattr(operator, name)
    for name in (("add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor").split())
}
BINARY["and"] = operator.and_
BINARY["or"] = operator.or_
BINARY["divmod"] = divmod
COMPARE: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name) for name in ("lt", "le", "eq", "ne", "gt", "ge")
}
UNARY: dict[str, Callable[..., object]] = {
    name: getattr(operator, name) for name in ("neg", "pos", "invert")
}

# Types of numbers whose methods take each other.
_NUMBERS = {(int, int), (bool, int), (float, int), (float, float)}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def dunder(op: str, *, reflected: bool = False) -> str:
    """``add`` -> ``__add__`` or ``__radd__``; ``and_`` -> ``__and__``."""
    return f"__{'r' if reflected else ''}{op.rstrip('_')}__"


_LIMIT = 1_000_000  # longest sequence or number of bits that folding may make


def explodes(op: str, a: object, b: object) -> bool:
    """True when folding ``a op b`` could take unreasonable time or memory."""
    if op == "mul":
        for n, seq in ((a, b), (b, a)):
            if isinstance(n, int) and isinstance(seq, str | bytes | tuple | list):
                return n * len(seq) > _LIMIT
    elif isinstance(a, int) and isinstance(b, int):
        if op == "pow":
            return b > 0 and a.bit_length() * b > _LIMIT
        if op == "lshift":
            return a.bit_length() + b > _LIMIT
    return False


class ConstantValue(BuiltinObject):
    """One immutable Python object, ``value``."""

    __slots__ = ("value",)
    asks_class = False  # whether classes of the user's may have given it operators

    def __init__(self, value: object, source: Source | None = None) -> None:
        self.source = source
        self.value = value

    def python_type(self) -> type:
        return type(self.value)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> object:
        return self.value

    def as_proxy(self) -> object:
        return self.value

    def describe(self) -> str:
        text = repr(self.value)
        return f"the constant {text if len(text) < 60 else text[:57] + '...'}"

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if callable(self.value):
            raise Unsupported("opaque-call", what=repr(self.value))
        name = type(self.value).__name__
        raise tx.interp.error(TypeError, f"{name!r} object is not callable")

    def c_attribute(self, tx: Trace, name: str, descriptor: object) -> Value:
        return tx.interp.fold(getattr, self.value, name)

    def getitem(self, tx: Trace, key: Value) -> Value:
        return tx.interp.fold(operator.getitem, self.value, tx.interp.concrete(key))

    def length(self, tx: Trace) -> Value:
        return tx.interp.fold(len, self.value)

    def contains(self, tx: Trace, item: Value) -> Value:
        return tx.interp.fold(operator.contains, self.value, tx.interp.concrete(item))

    def iter(self, tx: Trace) -> Value:
        if isinstance(self.value, str | bytes):
            return tx.interp.iterator([tx.interp.const(c) for c in self.value], self)
        if hasattr(type(self.value), "__iter__"):
            items = list(self.value)  # type: ignore[call-overload]
            return tx.interp.iterator([tx.interp.const(c) for c in items], self)
        name = type(self.value).__name__
        raise tx.interp.error(TypeError, f"{name!r} object is not iterable")

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        fn = BINARY.get(op)
        if fn is None:
            return None
        if other.computes or (getattr(other, "asks_class", False) and not self.asks_class):
            return None  # NumPy's or an enum member's: the result is its business
        if not isinstance(other, ConstantValue):
            content = other.base_value()
            text = isinstance(self.value, str | bytes)
            if type(content) is ConstantValue and (
                not text or (op != "mod" and type(content.value) is type(self.value))
            ):
                return self._own(tx, dunder(op, reflected=reflected), content)
            if op == "mod" and not reflected and isinstance(self.value, str | bytes):
                if isinstance(self.value, str):
                    return tx.interp.percent(self.value, other)
                return tx.interp.fold(operator.mod, self.value, tx.interp.concrete(other))
            if op == "mul" and isinstance(self.value, str | bytes):
                count = tx.interp.try_index(other)
                if count is not None:
                    return self.binary(tx, op, ConstantValue(count))
            if (type(self.value), other.python_type()) in _NUMBERS:  # a symbolic one
                return other.binary(tx, op, self, reflected=not reflected)
            return None
        a, b = (other.value, self.value) if reflected else (self.value, other.value)
        if explodes(op, a, b):
            raise Unsupported("too-large-to-fold", what=f"{op} of {type(a).__name__}")
        return tx.interp.fold(fn, a, b)

    def unary(self, tx: Trace, op: str) -> Value:
        return tx.interp.fold(UNARY[op], self.value)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if isinstance(other, ConstantValue) and self.asks_class >= other.asks_class:
            return tx.interp.fold(COMPARE[op], self.value, other.value)
        content = other.base_value()
        if type(content) is ConstantValue and not isinstance(other, ConstantValue):
            return self._own(tx, f"__{op}__", content)
        if (type(self.value), other.python_type()) in _NUMBERS:
            return other.richcompare(tx, _SWAPPED.get(op, op), self)
        return None

    def own(self, tx: Trace, name: str, other: ConstantValue) -> Value:
        """What the type's own method makes of a constant, perhaps ``NotImplemented``."""
        method = getattr(self.value, name, None)
        op, operands = name.strip("_"), (self.value, other.value)
        if explodes(op.removeprefix("r"), *(operands[::-1] if op[0] == "r" else operands)):
            raise Unsupported("too-large-to-fold", what=f"{name} of {self.type_name}")
        return NOT_IMPLEMENTED if method is None else tx.interp.fold(method, other.value)

    def _own(self, tx: Trace, name: str, other: ConstantValue) -> Value | None:
        result = self.own(tx, name, other)
        return None if is_not_implemented(result) else result

    def bool(self, tx: Trace) -> bool:
        if self.value is not NotImplemented:
            return bool(self.value)
        return tx.interp.hosted(bool, self.value)  # which warns

    def hash_key(self, tx: Trace) -> object:
        tx.interp.hosted(hash, self.value)
        return self.value

    def reconstruct(self, cg: Emitter) -> str:
        return cg.const(self.value)


NONE = ConstantValue(None)
TRUE = ConstantValue(True)
FALSE = ConstantValue(False)
ZERO = ConstantValue(0)
NOT_IMPLEMENTED = ConstantValue(NotImplemented)


def bool_value(flag: object) -> ConstantValue:
    """TRUE or FALSE."""
    return TRUE if flag else FALSE


def is_not_implemented(value: Value) -> bool:
    """True for the constant NotImplemented."""
    return isinstance(value, ConstantValue) and value.value is NotImplemented


def is_none(value: Value) -> bool:
    """True for the constant None."""
    return isinstance(value, ConstantValue) and value.value is None
