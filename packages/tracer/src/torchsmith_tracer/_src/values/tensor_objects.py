"""Tensors of a Python subclass: objects with a class and attributes whose builtin part is a tensor.

The graph holds the plain tensor below such an object (``storage``), never the object itself: what
its class makes of an operator (``__torch_function__``) is traced as the Python code that it is, see
``overrides.py``. An existing object is read through ``plain_tensor``, which shares its storage and
its history; a new one is made of the graph's plain result by ``of_class``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import cast

import torch
from torchsmith_guards import ResultSource, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.torch_private import base_tensor, no_torch_dispatch, no_torch_function
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.python_instances import NewObjectValue, ObjectValue
from torchsmith_tracer._src.values.tensor import TensorValue

TENSOR_CLASSES = (torch.Tensor, base_tensor, *base_tensor.__mro__[1:-1])
# Facts of a tensor object itself that the plain tensor below it does not share.
_OWN = frozenset(
    "grad is_leaf grad_fn retains_grad output_nr name _grad _base _version _backward_hooks "
    "_post_accumulate_grad_hooks".split()
)
_READABLE = frozenset(("grad", "is_leaf", "retains_grad", "output_nr", "name"))


def plain_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The plain tensor with the storage and the history of ``tensor``."""
    return of_class(tensor, torch.Tensor)


def of_class(tensor: torch.Tensor, cls: type[torch.Tensor]) -> torch.Tensor:
    """``tensor.as_subclass(cls)``, whatever the grad mode: what has a history keeps it."""
    if torch.is_grad_enabled():
        return base_tensor.as_subclass(tensor, cls)  # type: ignore[attr-defined, no-any-return]
    with torch.enable_grad():
        return base_tensor.as_subclass(tensor, cls)  # type: ignore[attr-defined, no-any-return]


@functools.cache
def _reader(name: str) -> Callable[[torch.Tensor], object]:
    """A function that reads a property of a tensor below what its class makes of it."""
    read = getattr(torch.Tensor, name).__get__

    def own(tensor: torch.Tensor) -> object:
        with torch._C.DisableTorchFunctionSubclass():
            return read(tensor)

    own.__name__ = f"own_{name.strip('_')}"
    return own


def is_traced_class(cls: type) -> bool:
    """Whether tensors of a subclass are plain ones but for Python: no ``__torch_dispatch__``."""
    return getattr(cls, "__torch_dispatch__", None) is no_torch_dispatch


def note_hooks(tx: Trace, cls: type) -> None:
    """Which hooks a class has is a fact."""
    for name in ("__torch_function__", "__torch_dispatch__"):
        lookup(tx, cls, name)


class TensorPart:
    """What existing and new tensor objects have in common."""

    __slots__ = ()
    cls: type
    obj: object
    storage: Value | None
    source: Source | None

    @property
    def plain(self) -> TensorValue:
        """The tensor in the graph."""
        return cast("TensorValue", self.storage)

    @property
    def overrides(self) -> bool:
        """Whether the class has a say in what operators do."""
        return getattr(self.cls, "__torch_function__", None) is not no_torch_function

    def describe(self) -> str:
        return f"{self.cls.__name__}: {self.plain.describe()}"

    as_constant = Value.as_constant
    as_proxy = Value.as_proxy

    def hash_key(self, tx: Trace) -> object:
        found = lookup(tx, self.cls, "__hash__")
        if found is not None and found.owner in TENSOR_CLASSES:
            return tx.interp.identity_key(self)  # type: ignore[arg-type]
        return super().hash_key(tx)  # type: ignore[misc]

    def isinstance_hook(self, tx: Trace, cls: type) -> object:
        """See ``TensorValue.isinstance_hook``."""
        return self.plain.isinstance_hook(tx, cls, cast("Value", self))

    # --- C attributes ------------------------------------------------------------------------
    def slot_get(self, tx: Trace, name: str, descriptor: object) -> Value:
        if getattr(descriptor, "__objclass__", None) not in TENSOR_CLASSES or name == "__dict__":
            return super().slot_get(tx, name, descriptor)  # type: ignore[misc, no-any-return]
        from torchsmith_tracer._src.values.overrides import read_property

        return read_property(tx, self, descriptor)

    def plain_get(self, tx: Trace, name: str) -> Value:
        """A property of the tensor, below what the class makes of it."""
        if name not in _OWN or not self.overrides or self.obj is None:
            return self.plain.getattr(tx, name)
        assert isinstance(self.obj, torch.Tensor) and self.source is not None
        found = _reader(name)(self.obj)
        if name not in _READABLE and found is not None:
            raise Unsupported("tensor-attribute", what=name, tensor=self.describe())
        return tx.builder.wrap(found, ResultSource(self.source, _reader(name)))

    def plain_set(self, tx: Trace, name: str, value: Value) -> None:
        """Set a property of the tensor, below what the class makes of it."""
        if self.overrides or isinstance(value, TensorPart):
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        self.plain.setattr(tx, name, value)

    def generic_setattr(self, tx: Trace, name: str, value: Value) -> None:
        found = lookup(tx, self.cls, name)
        if found is not None and found.owner in TENSOR_CLASSES:
            if isinstance(found.attr, types.GetSetDescriptorType):
                from torchsmith_tracer._src.values.overrides import write_property

                write_property(tx, self, found.attr, value)
                return
        super().generic_setattr(tx, name, value)  # type: ignore[misc]

    def generic_delattr(self, tx: Trace, name: str) -> None:
        found = lookup(tx, self.cls, name)
        if found is not None and found.owner in TENSOR_CLASSES:
            raise Unsupported("tensor-attribute-store", what=name, tensor=self.describe())
        super().generic_delattr(tx, name)  # type: ignore[misc]

    call_builtin = TensorValue.call_builtin


class TensorObject(TensorPart, ObjectValue):
    """An existing tensor of a subclass; ``storage`` is the graph input."""

    __slots__ = ()


class NewTensorObject(TensorPart, NewObjectValue):
    """A tensor of a subclass that traced code made."""

    __slots__ = ()

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(of_class, self.plain, self.class_expr(cg))

    def reconstruct_fill(self, cg: Emitter) -> None:
        return None


def tensor_below(value: Value) -> Value:
    """The plain tensor of a tensor object; any other value itself."""
    return value.plain if isinstance(value, TensorPart) else value


def as_class(tx: Trace, tensor: Value, cls: type) -> Value:
    """``tensor.as_subclass(cls)``: a new object that shares the storage."""
    plain = tx.graph.call_function(torch.ops.aten.alias.default, (tensor_below(tensor),))
    return tensor_object(tx, plain, cls)


def tensor_object(tx: Trace, plain: Value, cls: type) -> Value:
    """A new object of class ``cls`` around a new plain tensor."""
    if cls is torch.Tensor:
        return plain
    if not is_traced_class(cls) or issubclass(cls, torch.nn.Parameter) or hasattr(cls, "__del__"):
        raise Unsupported("opaque-call", what=f"making a tensor of class {cls.__name__}")
    note_hooks(tx, cls)
    return NewTensorObject(tx.journal, cls, tx.interp.class_value(cls), plain)
