"""Truth values at branches: a tensor's is assumed where the other outcome can only raise.

``assert x.all()``, ``if x.isnan().any(): raise ValueError(...)`` and ``assert x.max().item() < n``
go on in the graph, which checks the tensor or number. Where the check fails, so does the graph, and
the function runs natively: it raises the program's own error, or its handler deals with it.
"""

from __future__ import annotations

from typing import Any

import torch
from torchsmith_guards import hint_of

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.code import Instruction
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.frames.raising import raising_side
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.read_numbers import ReadNumber
from torchsmith_tracer._src.values.symnum import SymNumValue, assume
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_queries import assert_tensor


def truth(tx: Trace, frame: Frame, value: Value, jump: Instruction) -> bool:
    """The truth value that the conditional ``jump`` asks for."""
    if isinstance(value, ReadNumber):
        value = value.tensor
    if isinstance(value, TensorValue | SymNumValue):
        raises = raising_side(frame.info.instructions, jump)
        if raises is not None and _can_be_assumed(tx, value):
            _assume(tx, value, not raises)
            return not raises
    return value.bool(tx)


_negated: Any = torch.sym_not


def _assume(tx: Trace, value: TensorValue | SymNumValue, truth: bool) -> None:
    if isinstance(value, TensorValue):
        nonzero = tx.graph.call_method("ne", (value, ConstantValue(0)))
        assert_tensor(tx, nonzero if truth else tx.graph.call_method("logical_not", (nonzero,)))
        return
    number: Any = value.sym
    held = number if isinstance(number, torch.SymBool) else number != 0
    try:
        assume(tx, held if truth else _negated(held))
    except Unsupported:  # no check of its symbols, but one of the number itself
        said = value if truth else value.logical_not(tx)
        assert isinstance(said, SymNumValue)
        tx.graph.append_assert(said.node, "the data must decide a branch as expected")


def _can_be_assumed(tx: Trace, value: TensorValue | SymNumValue) -> bool:
    if isinstance(value, SymNumValue):
        return hint_of(value.sym) is None
    if type(value) is not TensorValue or tx.graph.transforms:
        return False
    return value.fake.device.type != "meta" and value.fake.numel() == 1
