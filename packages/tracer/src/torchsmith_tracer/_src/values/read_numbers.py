"""The number of ``item()`` that is compared at once, to decide about an exception alone.

``assert x.max().item() < n`` need not read the number: the tensor is compared in the graph, in a
type in which that is exact, and what is asserted is the tensor.
"""

from __future__ import annotations

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.frames.raising import is_only_checked
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue

_EXACT = 2**53  # whole numbers up to here are floats, too


class ReadNumber(Value):
    """``tensor.item()``; ``tensor`` has one element, of float64 or int64."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: TensorValue) -> None:
        super().__init__(None)
        self.tensor = tensor

    def python_type(self) -> type:
        return float if self.tensor.fake.is_floating_point() else int

    def describe(self) -> str:
        return f"item() of a {self.tensor.describe()}"

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        raise Unsupported("item", what=self.describe())

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if isinstance(other, ReadNumber) and other.python_type() is self.python_type():
            return tx.interp.compare(op, self.tensor, other.tensor)
        if not self._is_exact(other):
            raise Unsupported("item", what=self.describe())
        return tx.interp.compare(op, self.tensor, other)

    def _is_exact(self, other: Value) -> bool:
        if isinstance(other, SymNumValue):
            return other.python_type() is self.python_type()
        if not isinstance(other, ConstantValue):
            return False
        number = other.value
        if type(number) is float:
            return self.python_type() is float
        return type(number) is int and abs(number) <= _EXACT

    def bool(self, tx: Trace) -> bool:
        return self.tensor.bool(tx)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.method(self.tensor, "item")


def read_number(tx: Trace, tensor: TensorValue, convert: type | None) -> ReadNumber | None:
    """``tensor.item()``, or ``convert`` of it, where only an exception depends on the number."""
    frame, fake = tx.frames[-1], tensor.fake
    whole = not fake.is_floating_point()
    if (
        convert not in (None, int if whole else float)
        or fake.device.type != "cpu"
        or fake.numel() != 1
        or fake.is_complex()
        or fake.dtype is torch.uint64
        or tx.graph.transforms
        or not is_only_checked(frame.info.instructions, frame.instruction)
    ):
        return None
    exact = ConstantValue(torch.int64 if whole else torch.float64)
    made = tx.graph.call_method("to", (tx.graph.call_method("detach", (tensor,)), exact))
    made = tx.graph.call_method("reshape", (made, ConstantValue(())))
    assert isinstance(made, TensorValue)
    return ReadNumber(made)
