"""Dunder methods of builtin types, called by name, as slots of ``Value``."""

from __future__ import annotations

from collections.abc import Callable

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import (
    NONE,
    NOT_IMPLEMENTED,
    ConstantValue,
    bool_value,
    dunder,
)
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.python_instances import ObjectValue

Slot = Callable[["Trace", Value, list[Value]], "Value | None"]

SLOTS: dict[str, Slot] = {}
_TWO = frozenset(("__setitem__", "__setattr__"))
_NONE = frozenset(
    (
        "__len__ __iter__ __next__ __bool__ __hash__ __repr__ __str__ __neg__ __pos__ "
        "__invert__ __index__ __int__ __trunc__ __float__ __length_hint__ __enter__"
    ).split()
)
_ANY = frozenset("__call__ __init_subclass__ __subclasshook__ __exit__".split())
_POWERS = ("__pow__", "__rpow__")  # a modulus may follow


def call_slot(tx: Trace, name: str, obj: Value, args: list[Value]) -> Value | None:
    """``obj.<name>(*args)`` through the slot; None when there is no such slot."""
    if (slot := SLOTS.get(name)) is None or (name in _POWERS and len(args) != 1):
        return None
    expected = 2 if name in _TWO else 0 if name in _NONE else 1
    if len(args) != expected and name not in _ANY:
        plural = "" if expected == 1 else "s"
        raise tx.interp.error(TypeError, f"expected {expected} argument{plural}, got {len(args)}")
    return slot(tx, obj, args)


def _slot(*names: str) -> Callable[[Slot], Slot]:
    def register(fn: Slot) -> Slot:
        for name in names:
            SLOTS[name] = fn
        return fn

    return register


def attribute_name(tx: Trace, value: Value) -> str:
    """The name that an attribute is asked for by."""
    name = tx.interp.concrete(value)
    if not isinstance(name, str):
        kind = type(name).__name__
        raise tx.interp.error(TypeError, f"attribute name must be string, not {kind!r}")
    return str.__str__(name)  # no member of an enum, whose text is no name


def _set_item(tx: Trace, obj: Value, args: list[Value]) -> Value:
    obj.setitem(tx, args[0], args[1])
    return NONE


def _delete_item(tx: Trace, obj: Value, args: list[Value]) -> Value:
    obj.delitem(tx, args[0])
    return NONE


SLOTS.update(
    __len__=lambda tx, obj, args: obj.length(tx),
    __getitem__=lambda tx, obj, args: obj.getitem(tx, args[0]),
    __setitem__=_set_item,
    __delitem__=_delete_item,
    __contains__=lambda tx, obj, args: obj.contains(tx, args[0]),
    __iter__=lambda tx, obj, args: obj.iter(tx),
    __next__=lambda tx, obj, args: obj.next(tx),
    __bool__=lambda tx, obj, args: bool_value(obj.bool(tx)),
    __call__=lambda tx, obj, args: obj.call(tx, args, {}),
    __repr__=lambda tx, obj, args: tx.interp.default_text(obj, "__repr__"),
    __init_subclass__=lambda tx, obj, args: NONE,
    __subclasshook__=lambda tx, obj, args: NONE,
)


@_slot("__hash__")
def _hash(tx: Trace, obj: Value, args: list[Value]) -> Value:
    known = isinstance(obj, ObjectValue | ClassValue)
    key = tx.interp.identity_key(obj) if known else obj.hash_key(tx)
    return tx.interp.shown_hash(obj, hash(key))


@_slot("__getattribute__")
def _getattribute(tx: Trace, obj: Value, args: list[Value]) -> Value:
    name = attribute_name(tx, args[0])
    if isinstance(obj, ObjectValue | ClassValue):
        return obj.generic_getattr(tx, name)
    return obj.getattr(tx, name)


@_slot("__setattr__")
def _setattr(tx: Trace, obj: Value, args: list[Value]) -> Value:
    name = attribute_name(tx, args[0])
    if isinstance(obj, ObjectValue | ClassValue):
        obj.generic_setattr(tx, name, args[1])
    else:
        obj.setattr(tx, name, args[1])
    return NONE


@_slot("__delattr__")
def _delattr(tx: Trace, obj: Value, args: list[Value]) -> Value:
    name = attribute_name(tx, args[0])
    if isinstance(obj, ObjectValue | ClassValue):
        obj.generic_delattr(tx, name)
    else:
        obj.delattr(tx, name)
    return NONE


@_slot("__str__")
def _str(tx: Trace, obj: Value, args: list[Value]) -> Value:
    if isinstance(obj, ObjectValue):
        return tx.interp.repr_of(obj)
    return tx.interp.str_of(obj)


@_slot("__format__")
def _format(tx: Trace, obj: Value, args: list[Value]) -> Value:
    if isinstance(obj, ObjectValue):
        if tx.interp.concrete(args[0]):
            name = obj.cls.__name__
            message = f"unsupported format string passed to {name}.__format__"
            raise tx.interp.error(TypeError, message)
        return tx.interp.str_of(obj)
    return tx.interp.format(obj, args[0])


@_slot("__index__", "__int__", "__trunc__")
def _int(tx: Trace, obj: Value, args: list[Value]) -> Value | None:
    if isinstance(obj, ConstantValue) and isinstance(obj.value, int | float):
        return tx.interp.fold(int, obj.value)
    return None


@_slot("__float__")
def _float(tx: Trace, obj: Value, args: list[Value]) -> Value | None:
    return tx.interp.fold(float, obj.value) if isinstance(obj, ConstantValue) else None


@_slot("__length_hint__")
def _length_hint(tx: Trace, obj: Value, args: list[Value]) -> Value:
    remaining = getattr(obj, "remaining", None)
    count = None if remaining is None else remaining(tx)
    return NOT_IMPLEMENTED if count is None else ConstantValue(count)


@_slot("__enter__", "__exit__")
def _enter(tx: Trace, obj: Value, args: list[Value]) -> Value:
    raise Unsupported("opaque-call", what=f"entering or leaving {obj.describe()}")


def _comparison(op: str) -> Slot:
    def slot(tx: Trace, obj: Value, args: list[Value]) -> Value:
        if isinstance(obj, ObjectValue | ClassValue):  # object.__eq__ and its kin
            if op == "ne":
                result = obj.richcompare(tx, "eq", args[0])
                found = obj.type_entry(tx, "__eq__")
                if result is not None and found is not None and found.owner is not object:
                    return bool_value(not tx.interp.truth(result))
            result = None
        elif type(obj) is type(other := args[0].base_value()) is ConstantValue:
            return obj.own(tx, f"__{op}__", other)
        else:
            result = obj.richcompare(tx, op, args[0])
        if result is None and op in ("eq", "ne") and tx.interp.is_same(obj, args[0]):
            return ConstantValue(op == "eq")  # object's, as the type's own compares the content
        return NOT_IMPLEMENTED if result is None else result

    return slot


for _op in ("lt", "le", "eq", "ne", "gt", "ge"):
    SLOTS[f"__{_op}__"] = _comparison(_op)


def _operator(op: str, *, reflected: bool) -> Slot:
    def slot(tx: Trace, obj: Value, args: list[Value]) -> Value:
        other = args[0].base_value()
        if type(obj) is ConstantValue and type(other) is ConstantValue:
            return obj.own(tx, dunder(op, reflected=reflected), other)
        result = obj.binary(tx, op, args[0], reflected=reflected)
        text = isinstance(obj, ConstantValue) and isinstance(obj.value, str | bytes)
        if result is None and op in ("add", "mul") and (text or isinstance(obj, SequenceValue)):
            if op == "mul":
                tx.interp.index(args[0])
            raise tx.interp.operand_error(op, obj, args[0])
        return NOT_IMPLEMENTED if result is None else result

    return slot


_OPERATORS = "add sub mul truediv floordiv mod pow matmul lshift rshift and_ or_ xor divmod"
for _op in _OPERATORS.split():
    _bare = _op.rstrip("_")
    SLOTS[f"__{_bare}__"] = _operator(_op, reflected=False)
    SLOTS[f"__r{_bare}__"] = _operator(_op, reflected=True)
    SLOTS[f"__i{_bare}__"] = _operator("i" + _bare, reflected=False)


def _unary(op: str) -> Slot:
    def slot(tx: Trace, obj: Value, args: list[Value]) -> Value:
        return obj.unary(tx, op)

    return slot


for _op in ("neg", "pos", "invert"):
    SLOTS[f"__{_op}__"] = _unary(_op)
