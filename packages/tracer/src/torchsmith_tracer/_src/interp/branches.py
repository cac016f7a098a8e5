"""Truth values at branches: a tensor's is assumed where the other outcome can only raise.

``assert x.all()`` and ``if x.isnan().any(): raise ValueError(...)`` go on in the graph, which
checks the tensor. Where the check fails, so does the graph, and the function runs natively: it
raises the program's own error, or its handler deals with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import assert_tensor

_LONGEST = 200  # instructions that make an exception


def truth(tx: Trace, frame: Frame, value: Value, jump: Instruction) -> bool:
    """The truth value that the conditional ``jump`` asks for."""
    if type(value) is TensorValue and jump.opname.endswith(("IF_TRUE", "IF_FALSE")):
        code = frame.info.instructions
        ways = [jump.target, jump.index + 1]  # if true, if false
        if jump.opname.endswith("FALSE"):
            ways.reverse()
        when_true, when_false = (_only_raises(code, way) for way in ways)
        if when_true != when_false and _can_be_assumed(tx, value):
            held = tx.graph.call_method("ne", (value, ConstantValue(0)))
            assert_tensor(tx, tx.graph.call_method("logical_not", (held,)) if when_true else held)
            return when_false
    return value.bool(tx)


def _can_be_assumed(tx: Trace, value: TensorValue) -> bool:
    """On a GPU a failed check would take the whole process with it."""
    return value.fake.device.type == "cpu" and value.fake.numel() == 1 and not tx.graph.transforms


def _only_raises(code: Sequence[Instruction], at: int) -> bool:
    """Whether nothing but an exception follows an instruction, without another branch."""
    for ins in code[at : at + _LONGEST]:
        if ins.opname == "RAISE_VARARGS":
            return True
        if ins.target >= 0 or ins.opname.startswith(("RETURN", "YIELD", "RERAISE")):
            return False
    return False
