"""Opcodes for ``match`` statements."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith_tracer._src.breaks.signals import ObservedException
from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import NONE, ConstantValue, bool_value
from torchsmith_tracer._src.values.containers import TupleValue

_SEQUENCE = 1 << 5  # Py_TPFLAGS_SEQUENCE
_MAPPING = 1 << 6  # Py_TPFLAGS_MAPPING


@opcode("GET_LEN")
def _get_len(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.top().length(tx))


@opcode("MATCH_SEQUENCE", safe=True)
def _match_sequence(tx: Trace, frame: Frame, ins: Instruction) -> None:
    cls = frame.top().python_type()
    frame.stack.append(bool_value(cls.__flags__ & _SEQUENCE))


@opcode("MATCH_MAPPING", safe=True)
def _match_mapping(tx: Trace, frame: Frame, ins: Instruction) -> None:
    cls = frame.top().python_type()
    frame.stack.append(bool_value(cls.__flags__ & _MAPPING))


@opcode("MATCH_KEYS")
def _match_keys(tx: Trace, frame: Frame, ins: Instruction) -> None:
    keys = tx.interp.unpack(frame.top())
    subject = frame.top(2)
    frame.stack.append(_keys(tx, subject, keys))


def _field(tx: Trace, value: Value) -> str:
    name = tx.interp.concrete(value)
    if not isinstance(name, str):
        kind = type(name).__name__
        raise tx.interp.error(TypeError, f"__match_args__ elements must be strings (got {kind})")
    return name


@opcode("MATCH_CLASS")
def _match_class(tx: Trace, frame: Frame, ins: Instruction) -> None:
    names = tx.interp.unpack(frame.pop())
    cls = frame.pop()
    subject = frame.pop()
    values = _attributes(tx, subject, cls, ins.arg, names)
    frame.stack.append(NONE if values is None else TupleValue(values))


def _keys(tx: Trace, subject: Value, keys: Sequence[Value]) -> Value:
    """MATCH_KEYS: a tuple of the values, or None."""
    seen: set[object] = set()
    getter = subject.getattr(tx, "get")
    out: list[Value] = []
    missing = ConstantValue(tx.interp.UNKNOWN)
    for key in keys:
        hkey = tx.interp.hash_key(key)
        if hkey in seen:
            text = tx.interp.concrete(tx.interp.repr_of(key))
            raise tx.interp.error(ValueError, f"mapping pattern checks duplicate key ({text})")
        seen.add(hkey)
        value = tx.interp.call(getter, [key, missing])
        if value is missing:
            return NONE
        out.append(value)
    return TupleValue(out)


def _attributes(
    tx: Trace, subject: Value, cls: Value, positional: int, names: Sequence[Value]
) -> list[Value] | None:
    """MATCH_CLASS: the matched attributes, or None."""
    if not isinstance(cls, ClassValue):
        raise tx.interp.error(TypeError, "called match pattern must be a class")
    check = tx.builder.wrap_new(isinstance)
    if not tx.interp.truth(tx.interp.call(check, [subject, cls])):
        return None
    name = cls.obj.__name__
    attrs: list[str] = []
    values: list[Value] = []
    if positional:
        fields: list[str] | None = None
        try:
            args = cls.getattr(tx, "__match_args__")
            if not issubclass(args.python_type(), tuple):
                message = f"{name}.__match_args__ must be a tuple (got {args.type_name})"
                raise tx.interp.error(TypeError, message)
            fields = [_field(tx, v) for v in tx.interp.unpack(args)[:positional]]
            count = len(tx.interp.unpack(args))
        except ObservedException as e:
            if not tx.interp.exception_matches(e.exc, AttributeError):
                raise
        if fields is None:
            matches_self = cls.obj.__flags__ & (1 << 22)
            allowed = 1 if matches_self else 0
        else:
            allowed = count
        if positional > allowed:
            plural = "" if allowed == 1 else "s"
            message = (
                f"{name}() accepts {allowed} positional sub-pattern{plural} ({positional} given)"
            )
            raise tx.interp.error(TypeError, message)
        if fields is None:
            values.append(subject)
        else:
            attrs += fields[:positional]
    for item in names:
        attrs.append(str(tx.interp.concrete(item)))
    seen: set[str] = set()
    for attr in attrs:
        if attr in seen:
            message = f"{name}() got multiple sub-patterns for attribute {attr!r}"
            raise tx.interp.error(TypeError, message)
        seen.add(attr)
        try:
            values.append(subject.getattr(tx, attr))
        except ObservedException as e:
            if tx.interp.exception_matches(e.exc, AttributeError):
                return None
            raise
    return values
