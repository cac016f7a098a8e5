"""Parameters made by traced code."""

from __future__ import annotations

import torch
from torch import nn

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import constructor
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.tensor import TensorValue


def parameter(data: torch.Tensor, requires_grad: bool) -> nn.Parameter:
    """``data`` as a parameter: the very same object where a graph has made it one already."""
    return data if isinstance(data, nn.Parameter) else nn.Parameter(data, requires_grad)


class ParameterValue(TensorValue):
    """A parameter made by traced code. Graphs may give it back as a plain tensor."""

    __slots__ = ()

    def reconstruct(self, cg: Emitter) -> str:
        flag = cg.const(self.fake.requires_grad)
        return cg.call(parameter, cg.graph_output(self), flag)


@constructor(nn.Parameter)
def _parameter(tx: Trace, data: Value | None = None, requires_grad: Value | None = None) -> Value:
    if data is None or tx.interp.is_none(data):
        data = tx.graph.call_function(torch.empty, (ConstantValue(0),))
    if not isinstance(data, TensorValue):
        raise Unsupported("opaque-call", what="torch.nn.Parameter")
    flag = requires_grad is None or bool(tx.interp.concrete(requires_grad))
    made = tx.graph.call_function(nn.Parameter, (data, ConstantValue(flag)))
    assert isinstance(made, TensorValue)
    value = ParameterValue(made.node, made.fake)
    value.cls = nn.Parameter
    if flag:
        tx.builder.note_leaf(value)
    return value
