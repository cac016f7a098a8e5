"""Wrapping what an operator returned: tensors, nests of tensors, numbers, constants."""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING

import torch
from torch import fx

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.torch_private import FakeTensor, is_wrapper
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, NamedTupleValue, TupleValue
from torchsmith_tracer._src.values.opaque import GraphObject
from torchsmith_tracer._src.values.sizes import size_value
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.wrapper_tensors import wrapper_result

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph
    from torchsmith_tracer._src.values.base import Value

_CONSTANTS = (
    type(None), bool, int, float, complex, str,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


def wrap_result(graph: OutputGraph, node: fx.Node, fake: object) -> Value:
    """The value for ``node``, whose fake result is ``fake``.

    Raises:
        Unsupported: the operator returned an object that has no symbolic form.
    """
    if isinstance(fake, torch.Tensor):
        if type(fake) is not FakeTensor and is_wrapper(fake):
            return wrapper_result(graph, node, fake)
        if fake.layout is not torch.strided:
            raise Unsupported("op-result", what=str(node.target), type=f"{fake.layout} tensor")
        return TensorValue(node, fake)
    if isinstance(fake, torch.SymInt | torch.SymFloat | torch.SymBool):
        return SymNumValue(node, fake)
    if isinstance(fake, torch.Size):
        return size_value(fake, lambda i: _item(graph, node, i, fake[i]))
    if isinstance(fake, tuple | list):
        items = [_wrap_item(graph, node, i, part) for i, part in enumerate(fake)]
        kind = type(fake)
        if kind is list:
            return ListValue(items)
        if kind is tuple:
            return TupleValue(items)
        if kind.__module__ == "torch.return_types" or hasattr(kind, "_fields"):
            return NamedTupleValue(items, kind)
    if isinstance(fake, _CONSTANTS):
        return ConstantValue(fake)
    if isinstance(fake, types.FunctionType):
        return GraphObject(node)
    raise Unsupported("op-result", what=str(node.target), type=type(fake).__name__)


def _wrap_item(graph: OutputGraph, node: fx.Node, index: int, part: object) -> Value:
    if isinstance(part, _CONSTANTS):
        return ConstantValue(part)
    return wrap_result(graph, _item(graph, node, index, part), part)


def _item(graph: OutputGraph, node: fx.Node, index: int, part: object) -> fx.Node:
    return graph.add_call("call_function", operator.getitem, (node, index), {}, part)
