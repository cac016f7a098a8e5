"""Opcodes for ``match`` statements."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.interp.registry import opcode
from torchsmith_tracer._src.values.constants import NONE, bool_value
from torchsmith_tracer._src.values.containers import TupleValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.base import Value

_SEQUENCE = 1 << 5  # Py_TPFLAGS_SEQUENCE
_MAPPING = 1 << 6  # Py_TPFLAGS_MAPPING


@opcode("GET_LEN")
def _get_len(tx: Trace, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(tx.interp.length(cast("Value", frame.stack[-1])))


@opcode("MATCH_SEQUENCE", safe=True)
def _match_sequence(tx: Trace, frame: Frame, ins: Instruction) -> None:
    cls = cast("Value", frame.stack[-1]).python_type()
    frame.stack.append(bool_value(cls.__flags__ & _SEQUENCE))


@opcode("MATCH_MAPPING", safe=True)
def _match_mapping(tx: Trace, frame: Frame, ins: Instruction) -> None:
    cls = cast("Value", frame.stack[-1]).python_type()
    frame.stack.append(bool_value(cls.__flags__ & _MAPPING))


@opcode("MATCH_KEYS")
def _match_keys(tx: Trace, frame: Frame, ins: Instruction) -> None:
    keys = tx.interp.unpack(cast("Value", frame.stack[-1]))
    subject = cast("Value", frame.stack[-2])
    frame.stack.append(tx.interp.match_keys(subject, keys))


@opcode("MATCH_CLASS")
def _match_class(tx: Trace, frame: Frame, ins: Instruction) -> None:
    names = tx.interp.unpack(cast("Value", frame.stack.pop()))
    cls = cast("Value", frame.stack.pop())
    subject = cast("Value", frame.stack.pop())
    values = tx.interp.match_class(subject, cls, ins.arg, names)
    frame.stack.append(NONE if values is None else TupleValue(values))
