"""Tensors of wrapper subclasses: ``__torch_dispatch__`` over inner tensors that
``__tensor_flatten__`` names.

Such a tensor is one value of the graph. Operators on it are nodes, and what its class makes of them
in Python runs where the graph runs, as in eager mode; while tracing the same code runs on a fake
wrapper around fake inner tensors. Attributes and methods of the class are traced.
"""

from __future__ import annotations

import torch
from torch import fx
from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.torch_private import (
    default_torch_function,
    disable_torch_function,
    is_wrapper,
    no_torch_function,
)
from torchsmith_tracer._src.trace import Graph, OpenContext, Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.contexts import TorchFunctionDisabled
from torchsmith_tracer._src.values.lookup import bind, is_data_descriptor, lookup
from torchsmith_tracer._src.values.special_methods import HasSpecialMethods
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_objects import TENSOR_CLASSES

HOOKS = ("__torch_dispatch__", "__torch_function__", "__tensor_flatten__", "__tensor_unflatten__")
_LITERALS = (bool, int, float, str, type(None), torch.dtype, torch.device, torch.layout)


def is_wrapper_class(cls: type) -> bool:
    """Whether tensors of ``cls`` can be taken apart and put together again on fake tensors."""
    return (
        hasattr(cls, "__tensor_flatten__")
        and hasattr(cls, "__tensor_unflatten__")
        and not cls.__module__.startswith(("torch.distributed", "torch._subclasses"))
    )


def uses_default(cls: type) -> bool:
    """Whether the class leaves it to torch what its tensors' metadata is."""
    hook = getattr(cls, "__torch_function__", None)
    return hook is no_torch_function or getattr(hook, "__func__", None) is default_torch_function


def flat_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """``tensor`` and, if it is a wrapper, all tensors inside of it."""
    found = [tensor]
    if is_wrapper(tensor):
        names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        for name in names:
            found += flat_tensors(getattr(tensor, name))
    return found


class WrapperTensor(HasSpecialMethods, TensorValue):
    """See the module's docstring.

    Attributes:
        contexts: the graph's open contexts.
        parts: inner tensors of one that traced code made, by attribute.
    """

    __slots__ = ("contexts", "parts")

    def __init__(
        self,
        node: fx.Node,
        fake: torch.Tensor,
        contexts: list[OpenContext],
        source: Source | None = None,
        real: torch.Tensor | None = None,
    ) -> None:
        super().__init__(node, fake, source, real)
        self.cls = type(fake)
        self.contexts = contexts
        self.parts: dict[str, Value] = {}

    def describe(self) -> str:
        return f"{self.cls.__name__}: {super().describe()}"

    def as_proxy(self) -> fx.Node:
        if any(isinstance(context, TorchFunctionDisabled) for context in self.contexts):
            what = f"{self.cls.__name__} where __torch_function__ is switched off"
            raise Unsupported("not-a-graph-argument", what=what)
        return self.node

    # --- attributes --------------------------------------------------------------------------
    def getattr(self, tx: Trace, name: str) -> Value:
        stored = tx.journal.load_attr(self, name)
        if stored is not None and stored is not DELETED:
            return stored  # type: ignore[return-value]
        found = lookup(tx, self.cls, name)
        general = found is not None and found.owner in (*TENSOR_CLASSES, object)
        if found is not None and is_data_descriptor(tx, found.attr):
            if general:
                self._refuse_overridden(name)
                return super().getattr(tx, name)
            return bind(tx, found, self, tx.interp.type_of(self), name)
        value = self._own(tx, name) if stored is None else None
        if value is not None:
            return value
        if general:
            return super().getattr(tx, name)
        if self.source is not None and stored is None:
            why = f"attribute {name!r} was looked up"
            tx.world.no_entry(self.real, self.source, name, why)
        if found is not None:
            return bind(tx, found, self, tx.interp.type_of(self), name)
        if lookup(tx, self.cls, "__getattr__") is not None:
            raise Unsupported("tensor-attribute", what=name, tensor=self.describe())
        raise self.no_attribute(tx, name)

    def _refuse_overridden(self, name: str) -> None:
        """Metadata is read from the fake, below what the class makes of it."""
        if uses_default(self.cls):
            return
        own = getattr(self.fake, name)
        with disable_torch_function[0]():
            if isinstance(own, torch.Tensor) or own == getattr(self.fake, name):
                return
        raise Unsupported("tensor-attribute", what=name, tensor=self.describe())

    def _own(self, tx: Trace, name: str) -> Value | None:
        """An attribute of the object itself."""
        if self.real is not None:
            assert self.source is not None
            return tx.world.instance_entry(self.real, self.source, name)
        if name in self.parts:
            return self.parts[name]
        table = self.fake.__dict__
        if name not in table:
            return None
        entry = table[name]
        if isinstance(entry, _LITERALS):
            return ConstantValue(entry)
        if not isinstance(entry, torch.Tensor):
            raise Unsupported("tensor-attribute", what=name, tensor=self.describe())
        value = tx.graph.call_function(getattr, (self, ConstantValue(name)))
        self.parts[name] = value
        tx.graph.record(lambda: self.parts.__delitem__(name))
        return value

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        names, _ = self.fake.__tensor_flatten__()  # type: ignore[attr-defined]
        if name in names or self.special_method(tx, "__setattr__") or self._descriptor(tx, name):
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        super().setattr(tx, name, value)

    def _descriptor(self, tx: Trace, name: str) -> bool:
        found = lookup(tx, self.cls, name)
        return found is not None and is_data_descriptor(tx, found.attr)

    # --- slots -------------------------------------------------------------------------------
    def special_method(self, tx: Trace, name: str) -> Value | None:
        found = lookup(tx, self.cls, name)
        if found is None or found.owner in (*TENSOR_CLASSES, object):
            return None
        return bind(tx, found, self, tx.interp.type_of(self), name)

    def length(self, tx: Trace) -> Value:
        return self.call_special(tx, "__len__") or super().length(tx)


def wrapper_result(graph: Graph, node: fx.Node, fake: torch.Tensor) -> WrapperTensor:
    """The value of an operator's result that is a wrapper."""
    if not is_wrapper_class(type(fake)):
        raise Unsupported("op-result", what=str(node.target), type=type(fake).__name__)
    return WrapperTensor(node, fake, graph.contexts)


def new_wrapper(tx: Trace, cls: type, args: Args, kwargs: Kwargs) -> Value:
    """``cls(*args, **kwargs)``: the graph runs the constructor."""
    for name in (*HOOKS, "__new__", "__init__"):
        lookup(tx, cls, name)
    made = tx.graph.call_function(cls, args, kwargs)
    if not isinstance(made, WrapperTensor):
        raise Unsupported("opaque-call", what=f"constructor of {cls.__name__}")
    return made
