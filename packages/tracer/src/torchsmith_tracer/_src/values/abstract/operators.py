"""Operators, comparison, hashing and numbers over values, with CPython's messages."""

from __future__ import annotations

import functools
import operator
import sys
from typing import Any, cast

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import METHOD_TYPES
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import (
    COMPARE,
    ConstantValue,
    bool_value,
    dunder,
    explodes,
)
from torchsmith_tracer._src.values.containers import SequenceValue, TupleValue
from torchsmith_tracer._src.values.functions import BoundMethodValue, BuiltinMethodValue
from torchsmith_tracer._src.values.identity import IdentityValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.opaque import ReferenceValue
from torchsmith_tracer._src.values.python_instances import EnumValue, ObjectValue
from torchsmith_tracer._src.values.sets import SetValue, value_of
from torchsmith_tracer._src.values.symnum import SymNumValue

_NAMES = "add sub mul truediv floordiv mod matmul lshift rshift and_ or_ xor divmod".split()
_SIGNS = dict(zip(_NAMES, "+ - * / // % @ << >> & | ^ divmod()".split(), strict=True))
_SIGNS["pow"] = "** or pow()"
_COMPARE_SIGNS = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
_SWAPPED = {"lt": "gt", "le": "ge", "eq": "eq", "ne": "ne", "gt": "lt", "ge": "le"}
_INPLACE = {"i" + name.rstrip("_"): name for name in _SIGNS}


class Operators(Part):
    """Operators, comparison, numbers."""

    def binary(self, op: str, a: Value, b: Value) -> Value:
        """``a op b`` with reflected operands; ``op`` as in ``Value.binary``."""
        if (result := self._binary(op, a, b)) is None:
            raise self.operand_error(op, a, b)
        return result

    def _binary(self, op: str, a: Value, b: Value) -> Value | None:
        tx = self.tx
        if type(a) is ConstantValue and type(b) is ConstantValue:
            return a.binary(tx, op, b)
        left, right = a.python_type(), b.python_type()
        if (
            right is not left
            and type.__subclasscheck__(left, right)
            and self._reflects(op, left, right)
        ):
            result = b.binary(tx, op, a, reflected=True)
            return result if result is not None else a.binary(tx, op, b)
        result = a.binary(tx, op, b)
        if result is None and (left is not right or not isinstance(b, ObjectValue)):
            result = b.binary(tx, op, a, reflected=True)
        return result

    def _reflects(self, op: str, left: type, right: type) -> bool:
        """Whether subclass ``right`` overrides the reflected method of ``left``."""
        name = dunder(op, reflected=True)
        mine, theirs = lookup(self.tx, right, name), lookup(self.tx, left, name)
        if mine is None:
            return False
        return theirs is None or mine.attr is not theirs.attr

    def inplace(self, op: str, a: Value, b: Value) -> Value:
        """``a op= b``; ``op`` with a leading i (``iadd``)."""
        if (result := a.binary(self.tx, op, b)) is not None:
            return result
        plain = _INPLACE[op]
        if type(a) is type(b) is ConstantValue and not explodes(plain, a.value, b.value):
            return self.interp.fold(getattr(operator, op), a.value, b.value)
        if (result := self._binary(plain, a, b)) is None:
            raise self.operand_error(plain, a, b, inplace=True)
        return result

    def operand_error(
        self, op: str, a: Value, b: Value, *, inplace: bool = False
    ) -> ObservedException:
        x, y = a.type_name, b.type_name
        base = a.base_value()
        if op == "add":
            if isinstance(base, SequenceValue):
                x = base.base_type().__name__
                return self.interp.error(TypeError, f'can only concatenate {x} (not "{y}") to {x}')
            if isinstance(base, ConstantValue) and isinstance(base.value, str | bytes):
                if isinstance(base.value, str):
                    return self.interp.error(
                        TypeError, f'can only concatenate str (not "{y}") to str'
                    )
                return self.interp.error(TypeError, f"can't concat {y} to bytes")
        if op == "mul":
            for seq, other in ((base, y), (b.base_value(), x)):
                is_text = isinstance(seq, ConstantValue) and isinstance(seq.value, str | bytes)
                if isinstance(seq, SequenceValue) or is_text:
                    message = f"can't multiply sequence by non-int of type {other!r}"
                    return self.interp.error(TypeError, message)
        sign = _SIGNS[op]
        if inplace:
            sign = "**=" if op == "pow" else sign + "="
        message = f"unsupported operand type(s) for {sign}: {x!r} and {y!r}"
        return self.interp.error(TypeError, message)

    def compare(self, op: str, a: Value, b: Value) -> Value:
        """``a op b`` for ``lt le eq ne gt ge``."""
        tx = self.tx
        if type(a) is ConstantValue and type(b) is ConstantValue:
            return self.interp.fold(COMPARE[op], a.value, b.value)
        left, right = a.python_type(), b.python_type()
        swapped = _SWAPPED[op]
        tried = False
        if right is not left and type.__subclasscheck__(left, right):
            found = lookup(tx, right, f"__{swapped}__")
            if found is not None and found.owner is not object:
                tried = True
                if (result := b.richcompare(tx, swapped, a)) is not None:
                    return result
        result = a.richcompare(tx, op, b)
        if result is None and not tried:
            result = b.richcompare(tx, swapped, a)
        if result is not None:
            return result
        if op == "eq":
            return bool_value(self.interp.is_same(a, b))
        if op == "ne":
            return bool_value(not self.interp.is_same(a, b))
        x, y = a.type_name, b.type_name
        message = f"{_COMPARE_SIGNS[op]!r} not supported between instances of {x!r} and {y!r}"
        raise self.interp.error(TypeError, message)

    def equal(self, a: Value, b: Value) -> bool:
        """Identity or ``bool(a == b)``: how containers compare elements."""
        kinds = {type(a), type(b)}
        if kinds == {ConstantValue}:  # one object or two: that counts for NaN alone
            same = self.interp.hash_key(a) is self.interp.hash_key(b)
        else:
            same = a is b if SymNumValue in kinds else self.interp.is_same(a, b)
        return same or self.interp.truth(self.compare("eq", a, b))

    def hash_of(self, value: Value) -> int:
        """``hash(value)`` as a number."""
        result: Value | None = None
        if isinstance(value, EnumValue):
            if (result := value.call_special(self.tx, "__hash__")) is None:
                return hash(value.value)
        elif isinstance(value, ClassValue | ReferenceValue):
            if (result := value.users_hash(self.tx)) is None:
                return hash(self.interp.identity_key(value))
        elif isinstance(value, ObjectValue):
            # An object that plays one of a C class has the methods of what plays it.
            found = lookup(self.tx, value.cls, "__hash__")
            own = None if found is None else found.attr
            if own is not None and own is not object.__hash__:
                method = value.special_method(self.tx, "__hash__")
                assert method is not None
                if not isinstance(own, METHOD_TYPES):
                    result = self.interp.call(method, [])
                elif value.storage is not None:
                    return hash(value.storage.hash_key(self.tx))
        if result is None:
            return hash(self.interp.hash_key(value))
        if isinstance(result, IdentityValue):  # of a subclass of tensors, say
            return hash(result.hash_key(self.tx))
        number = self.interp.try_concrete(result)
        if not isinstance(number, int):
            raise self.interp.error(TypeError, "__hash__ method should return an integer")
        fits = -sys.maxsize <= number <= sys.maxsize and number != -1  # taken as it is, else hashed
        return number if fits else hash(number)

    def shown_hash(self, value: Value, number: int) -> Value:
        """``number``, the hash of ``value``, for the program to see. What ``functools`` remembers
        stays in its keys."""
        if self.interp.keys or self.tx.frames[-1].info.code.co_filename == functools.__file__:
            return ConstantValue(number)
        return ConstantValue(self._by_identity(value, number))

    def _by_identity(self, value: Value, number: int) -> int:
        """The hash of an object that has it from its address, which is guarded."""
        if isinstance(value, IdentityValue) and value.target.source is not None:
            return number
        base, source = value.base_value(), value.source
        if isinstance(base, TupleValue | SetValue):
            if isinstance(base, SetValue):
                parts = [(value_of(element), element.hash) for element in base.table]
            else:
                items = self.interp.unpack(base)
                parts = [(item, hash(self.interp.hash_key(item))) for item in items]
            for item, key in parts:
                if self._by_identity(item, key) != key:
                    raise Unsupported("opaque-call", what=f"hash() of {value.describe()}")
            return number
        found = lookup(self.tx, value.python_type(), "__hash__")
        by_identity = hasattr(value, "fake") or (
            found is not None and found.attr is object.__hash__
        )
        if by_identity and isinstance(value, ConstantValue):
            return hash(value.value)  # None, a dtype: there is one of each
        obj: object = getattr(value, "real", None)
        if obj is None:
            obj = getattr(value, "obj", None)
        if by_identity and source is not None and obj is not None:
            self.tx.world.identity(obj, source)
            return object.__hash__(obj)
        if isinstance(value, BoundMethodValue | BuiltinMethodValue | IdentityValue) or (
            by_identity and (obj is None or getattr(value, "recipe", None) is not None)
        ):
            raise Unsupported("opaque-call", what=f"hash() of {value.describe()}")
        return number

    def try_index(self, value: Value) -> int | None:
        """``operator.index`` as a known int, or None when the value is not an integer."""
        if isinstance(value, EnumValue) and (found := value.call_special(self.tx, "__index__")):
            return self.index(found)
        value = value.known(self.tx) if isinstance(value, IdentityValue) else value
        if isinstance(value, ConstantValue):
            real = value.value
            if type(real) is int:
                return real
            return operator.index(cast(Any, real)) if hasattr(real, "__index__") else None
        if isinstance(value, ObjectValue) and not issubclass(value.cls, int):
            if (method := value.special_method(self.tx, "__index__")) is None:
                return None
            result = self.interp.call(method, [])
            if not issubclass(result.python_type(), int):
                message = f"__index__ returned non-int (type {result.type_name})"
                raise self.interp.error(TypeError, message)
            if result.python_type() is not int:  # which is warned of
                raise Unsupported("raises", what=f"the index of {value.describe()}")
            return cast("int", self.interp.concrete(result))
        if issubclass(value.python_type(), int):
            return int(cast("int", self.interp.concrete(value)))
        if lookup(self.tx, value.python_type(), "__index__") is not None:
            known = self.interp.concrete(self.interp.call(value.getattr(self.tx, "__index__"), []))
            return known if isinstance(known, int) else None
        return None

    def index(self, value: Value) -> int:
        """``operator.index`` as a known int; TypeError when the value is not an integer."""
        if (number := self.try_index(value)) is None:
            raise self.interp.error(
                TypeError, f"{value.type_name!r} object cannot be interpreted as an integer"
            )
        return number

    def check_length(self, value: Value) -> Value:
        """The result of a user's ``__len__``, checked."""
        varies = value.python_type() is int and not value.is_constant()
        number = value if varies else ConstantValue(self.index(value))
        if self.interp.truth(self.interp.compare("lt", number, ConstantValue(0))):
            raise self.interp.error(ValueError, "__len__() should return >= 0")
        if isinstance(number, ConstantValue) and cast("int", number.value) > sys.maxsize:
            raise self.interp.error(OverflowError, "cannot fit 'int' into an index-sized integer")
        return number

    def check_bool(self, value: Value) -> bool:
        """The result of a user's ``__bool__``, checked."""
        known = self.interp.try_concrete(value)
        if isinstance(known, bool):
            return known
        if issubclass(value.python_type(), bool):
            return value.bool(self.tx)
        raise self.interp.error(
            TypeError, f"__bool__ should return bool, returned {value.type_name}"
        )

    def exception_matches(
        self, exc: Value, kinds: type[BaseException] | tuple[type[BaseException], ...]
    ) -> bool:
        """``isinstance(exc, kinds)``."""
        return issubclass(exc.python_type(), kinds)
