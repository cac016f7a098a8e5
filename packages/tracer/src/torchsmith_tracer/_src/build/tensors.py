"""Wrapping real tensors: fake counterpart, graph input, guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torchsmith_guards import GuardKind, ResultSource, Source, TensorSpec

from torchsmith_tracer._src import torch_private
from torchsmith_tracer._src.breaks.signals import InternalError
from torchsmith_tracer._src.build.dynamic import state_ranges
from torchsmith_tracer._src.build.wrappers import wrap_wrapper
from torchsmith_tracer._src.graph.known_values import table_of
from torchsmith_tracer._src.size_marks import unbacked
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.opaque import OpaqueValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_objects import (
    TensorObject,
    is_traced_class,
    note_hooks,
    plain_tensor,
)

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder


def wrap_tensor(builder: Builder, obj: object, source: Source) -> Value:
    """A tensor found at ``source`` becomes a graph input; a kind of tensor that cannot be traced
    becomes an opaque object."""
    assert isinstance(obj, torch.Tensor)
    if isinstance(obj, torch_private.FakeTensor):
        raise InternalError(f"a fake tensor was found at {source}")
    if is_traced_subclass(obj):
        return _tensor_object(builder, obj, source)
    if torch_private.is_wrapper(obj):
        wrapper = wrap_wrapper(builder, obj, source)
        if wrapper is not None:
            return wrapper
    if not is_plain(obj):
        builder.guard(source, GuardKind.TYPE, type(obj), "tensor that cannot be traced")
        if is_traced_class(type(obj)) and obj.is_nested:  # it has no sizes to compare
            builder.tx.world.computed(obj, source, "is_nested")
        elif type(obj) in (torch.Tensor, nn.Parameter):
            builder.guard(source, GuardKind.TENSOR, TensorSpec.of(obj), "layout of a tensor")
        return OpaqueTensor(obj, source)
    return _graph_input(builder, obj, source)


def _graph_input(builder: Builder, obj: torch.Tensor, source: Source) -> TensorValue:
    tx = builder.tx
    dims = strides = frozenset[int]()
    held = _is_held(obj, source)
    if not held:
        dims = builder.frame_state.dynamic_dims(source, obj, tx.settings.dynamic)
        strides = builder.frame_state.dynamic_strides(source, obj, tx.settings.dynamic)
    free = unbacked(obj) & dims
    fake = tx.graph.fake.fakeify(obj, source, dims, free, strides)
    if obj.is_inference():
        tx.graph.note_unwritable([torch_private.storage_id(fake)])
    if dims and tx.graph.shape_env is not None:
        state_ranges(tx.graph.shape_env, source, obj)
    spec = TensorSpec.of(obj, dims, free, dynamic_strides=strides)
    builder.guard(source, GuardKind.TENSOR, spec, "metadata of a tensor")
    node = tx.graph.add_input(source, fake, obj)
    node.meta["held_by_module"] = held
    value = TensorValue(node, fake, source, obj)
    if fake.requires_grad and fake.is_leaf:
        builder.note_leaf(value)
    return value


def _tensor_object(builder: Builder, obj: torch.Tensor, source: Source) -> Value:
    """A tensor of a subclass: an object around a graph input."""
    kind = type(obj)
    builder.guard(source, GuardKind.TYPE, kind, "class of a tensor")
    builder.tx.interp.class_value(kind)
    note_hooks(builder.tx, kind)
    if kind.__torch_function__ is torch_private.no_torch_function:
        return TensorObject(obj, source, _graph_input(builder, obj, source))
    plain = plain_tensor(obj)
    marks = {name: mark for name, mark in obj.__dict__.items() if name.startswith("_dynamo_")}
    plain.__dict__.update(marks)
    below = _graph_input(builder, plain, ResultSource(source, plain_tensor))
    return TensorObject(obj, source, below)


def is_traced_subclass(tensor: torch.Tensor) -> bool:
    """True for tensors of a subclass of the user's that are plain ones but for Python."""
    kind = type(tensor)
    if kind in (torch.Tensor, nn.Parameter) or not is_traced_class(kind):
        return False
    if kind.__module__.partition(".")[0] == "torch" or hasattr(kind, "__del__"):
        return False
    return is_plain(plain_tensor(tensor))


def is_plain(tensor: torch.Tensor) -> bool:
    """True for tensors that the graph can hold: strided, not nested, no Python subclass."""
    return (
        type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_quantized
        and not torch_private.is_functional(tensor)
    )


def _is_held(tensor: torch.Tensor, source: Source) -> bool:
    """Whether it is a parameter or buffer: these keep their sizes, and may be frozen."""
    return isinstance(tensor, nn.Parameter) or table_of(source) in ("_buffers", "_parameters")


class OpaqueTensor(OpaqueValue):
    """A tensor of a kind that is not traced: sparse, nested, quantized, a subclass."""

    __slots__ = ()

    def describe(self) -> str:
        kind = type(self.obj)
        what = kind.__qualname__
        if isinstance(self.obj, torch.Tensor) and kind in (torch.Tensor, nn.Parameter):
            what = f"{self.obj.layout} tensor".removeprefix("torch.")
        elif not is_traced_class(kind):
            what += ", a class of tensors with __torch_dispatch__ that is not traced"
        return f"`{self.source.expr}` ({what})" if self.source is not None else what
