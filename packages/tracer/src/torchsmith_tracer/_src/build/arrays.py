"""Wrapping arrays and scalars of NumPy: the tensor in their memory is the graph's input."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torchsmith_guards import ArraySource, GuardKind, Source, TensorSpec, share_memory, tensor_of

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.torch_private import storage_id
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue, torch_dtype
from torchsmith_tracer._src.values.opaque import OpaqueValue
from torchsmith_tracer._src.values.tensor import TensorValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder


def wrap_array(builder: Builder, obj: object, source: Source) -> Value:
    """An array, or a number of NumPy that varies, found at ``source``. One whose elements tensors
    do not have, or that goes backwards in memory, is an opaque object."""
    builder.guard(source, GuardKind.TYPE, type(obj), "class of an array")
    try:
        tensor = tensor_of(obj) if torch_dtype(obj.dtype) is not None else None  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        tensor = None
    if tensor is None:
        return OpaqueArray(obj, source)
    place = ArraySource(source)
    dims = builder.frame_state.dynamic_dims(place, tensor, builder.tx.settings.dynamic)
    fake = builder.tx.graph.fake.fakeify(tensor, place, dims)
    builder.guard(place, GuardKind.TENSOR, TensorSpec.of(tensor, dims), "layout of an array")
    node = builder.tx.graph.add_input(place, fake, tensor)
    value = TensorValue(node, fake, place, tensor)
    array = ArrayValue(value, type(obj), source=source, real=obj)
    if not array.is_scalar:
        builder.arrays.append(array)
        builder.tx.graph.record(builder.arrays.pop)
    return array


class OpaqueArray(OpaqueValue):
    """An array of a kind that is not traced."""

    __slots__ = ()

    def describe(self) -> str:
        where = f" `{self.source.expr}`" if self.source is not None else ""
        return f"array{where} of {self.obj.dtype}"  # type: ignore[attr-defined]


def guard_memory(builder: Builder, tensors: list[TensorValue]) -> None:
    """Arrays say nothing of whose memory they are in: where the graph writes to one, or to a tensor
    beside one, guard that no other input is there.

    Raises:
        Unsupported: one is.
    """
    mutated = builder.tx.graph.mutated
    arrays = [a.tensor for a in builder.arrays]
    for value in [*arrays, *tensors]:
        if storage_id(value.fake) not in mutated:
            continue
        others = [t for t in ([*arrays, *tensors] if value in arrays else arrays) if t is not value]
        others = [t for t in others if t.fake.device == value.fake.device]
        if not others:
            continue
        real = [t.real for t in others]
        assert value.real is not None and value.source is not None
        if share_memory(value.real, *(t for t in real if isinstance(t, torch.Tensor))):
            what = f"a write to {value.describe()}"
            raise Unsupported("numpy", what=what, error="another argument is in its memory")
        sources = tuple(t.source for t in others if t.source is not None)
        builder.guard(value.source, GuardKind.DISJOINT, sources, "an array is written to")
