"""Wrapping tensors of wrapper subclasses: those inside first, then a fake wrapper around theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torchsmith_guards import AttrSource, GuardKind, ResultSource, Source

from torchsmith_tracer._src.torch_private import FakeTensor, disable_torch_function
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import DescriptorValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.wrapper_tensors import HOOKS, WrapperTensor, is_wrapper_class

if TYPE_CHECKING:
    from torchsmith_tracer._src.build.builder import Builder


def wrap_descriptor(builder: Builder, obj: object, source: Source) -> Value:
    """A ``staticmethod`` or ``classmethod`` object."""
    assert isinstance(obj, staticmethod | classmethod)
    builder.guard(source, GuardKind.TYPE, type(obj), "descriptor")
    func = builder.wrap(obj.__func__, AttrSource(source, "__func__"))
    return DescriptorValue(type(obj), {"__func__": func}, source)


def wrapper_facts(tensor: Any) -> tuple[object, ...]:
    """What a fake wrapper is made from, inner tensors aside. In place of sizes and strides stands
    the inner tensor that has the same, if there is one: they may then be symbols."""
    with disable_torch_function[0]():
        names, context = tensor.__tensor_flatten__()
        if tensor.layout is torch.jagged:
            layout: object = None  # follows from the inner tensors
        else:
            same = [name for name in names if _layout(getattr(tensor, name)) == _layout(tensor)]
            layout = same[0] if same else _layout(tensor)
        flags = (tensor.requires_grad, tensor.is_leaf)
        return (tuple(names), context, tensor.dtype, tensor.device, tensor.layout, layout, flags)


def _layout(tensor: torch.Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.stride()


def wrap_wrapper(builder: Builder, obj: Any, source: Source) -> WrapperTensor | None:
    """The value of a wrapper found at ``source``, or None when it cannot be traced."""
    cls, tx = type(obj), builder.tx
    if not is_wrapper_class(cls) or _layout_of(obj) not in (torch.strided, torch.jagged):
        return None
    facts = wrapper_facts(obj)
    if facts != wrapper_facts(obj):
        return None  # its description is no value, and would never be the same again
    builder.guard(source, GuardKind.TYPE, cls, "class of a tensor")
    for name in HOOKS:
        lookup(tx, cls, name)
    names, context, *_ = facts
    why = "metadata of a wrapped tensor"
    builder.guard(ResultSource(source, wrapper_facts), GuardKind.CONSTANT, facts, why)
    inner: dict[str, torch.Tensor] = {}
    for name in names:  # type: ignore[attr-defined]
        builder.inner.add(AttrSource(source, name))
        value = builder.wrap(getattr(obj, name), AttrSource(source, name))
        if not isinstance(value, TensorValue):
            return None
        inner[name] = value.fake
    try:
        fake = _fake(builder, obj, inner, context, facts[5])
    except Exception:  # noqa: BLE001 - the class's own code, which is not made for fake tensors
        return None
    if fake is None:
        return None
    node = tx.graph.add_input(source, fake, obj)
    value = WrapperTensor(node, fake, tx.graph.contexts, source, obj)
    if fake.requires_grad and fake.is_leaf:
        builder.note_leaf(value)
    return value


def _layout_of(tensor: torch.Tensor) -> torch.layout:
    with disable_torch_function[0]():
        return tensor.layout


def _fake(
    builder: Builder, obj: Any, inner: dict[str, torch.Tensor], context: object, layout: object
) -> torch.Tensor | None:
    if isinstance(layout, str):
        size, stride = tuple(inner[layout].shape), inner[layout].stride()
    elif layout is None:
        size, stride = tuple(obj.shape), obj.stride()
    else:
        size, stride = layout  # type: ignore[misc]
        if any(isinstance(n, torch.SymInt) for x in inner.values() for n in x.shape):
            return None  # how its sizes follow from those inside is not known
    with builder.tx.graph.fake.mode, disable_torch_function[0](), torch.enable_grad():
        fake: Any = type(obj).__tensor_unflatten__(inner, context, torch.Size(size), stride)
        if type(fake) is not type(obj) or not _is_fake(fake):
            return None
        if obj.requires_grad and not fake.requires_grad:
            fake.requires_grad_()
        if obj.requires_grad and not obj.is_leaf and fake.is_leaf:
            fake = fake.view_as(fake)
    same = (fake.requires_grad, fake.is_leaf) == (obj.requires_grad, obj.is_leaf)
    return fake if same and type(fake) is type(obj) else None


def _is_fake(tensor: Any) -> bool:
    if isinstance(tensor, FakeTensor):
        return True
    if not hasattr(tensor, "__tensor_flatten__"):
        return False
    names, _ = tensor.__tensor_flatten__()
    return all(_is_fake(getattr(tensor, name)) for name in names)
