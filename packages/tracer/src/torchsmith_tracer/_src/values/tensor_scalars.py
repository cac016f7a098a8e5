"""Number arguments of operators for which the program gives a tensor: ``a.add_(b, alpha=t)``.

Eager reads the number out of the tensor, which a graph cannot; the product with the tensor, in
the order in which the operator's own kernel multiplies, is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.tensor import TensorValue, call_tensor_method
from torchsmith_tracer._src.values.tensor_methods import Handler, method
from torchsmith_tracer._src.values.torch_queries import register

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace

Args = Sequence[Value]
Kwargs = dict[str, Value]

_FACTORS = {"add": "alpha", "sub": "alpha", "subtract": "alpha", "addcmul": "value",
            "addcdiv": "value"}  # fmt: skip
_OPERANDS = {"alpha": ("other",), "value": ("tensor1", "tensor2")}
_PLAIN = {"addcmul": "add", "addcdiv": "add"}  # what is left when the product is known


def _rewritten(
    tx: Trace, name: str, tensor: Value, args: Args, kwargs: Kwargs
) -> tuple[str, Value, Value] | None:
    """``(operator, tensor, operand)`` that gives what ``name`` gives; None to leave it as it is."""
    base = name.rstrip("_")
    factor = kwargs.get(_FACTORS[base])
    operands = dict(zip(_OPERANDS[_FACTORS[base]], args, strict=False)) | kwargs
    found = [operands.get(n) for n in _OPERANDS[_FACTORS[base]]]
    if not isinstance(factor, TensorValue) or len(operands) != len(found) + 1:
        return None
    tensors = [t for t in (factor, *found) if isinstance(t, TensorValue)]
    if len(tensors) != len(found) + 1 or not isinstance(tensor, TensorValue):
        return None
    if factor.fake.dim() or factor.fake.requires_grad:
        return None
    if not all(t.fake.dtype.is_floating_point for t in (*tensors, tensor)):
        return None
    first = tensors[1]
    if factor.fake.dtype is not first.fake.dtype:
        number = tx.graph.call_method("to", (factor, first.fake.dtype))
    else:
        number = factor
    product = tx.graph.call_function(torch.mul, (first, number))
    if base == "addcmul":
        product = tx.graph.call_function(torch.mul, (product, tensors[2]))
    elif base == "addcdiv":
        product = tx.graph.call_function(torch.div, (product, tensors[2]))
    return name.replace(base, _PLAIN.get(base, base)), tensor, product


def _of_method(name: str) -> Handler:
    def call(tx: Trace, tensor: TensorValue, args: list[Value], kwargs: Kwargs) -> Value | None:
        found = _rewritten(tx, name, tensor, args, kwargs)
        return None if found is None else tx.graph.call_method(found[0], found[1:])

    return call


def _of_function(name: str) -> Callable[[Trace, Args, Kwargs], Value | None]:
    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        rest = dict(kwargs)
        tensor = args[0] if args else rest.pop("input", None)
        if tensor is None:
            return None
        found = _rewritten(tx, name, tensor, args[1:], rest)
        return (
            None if found is None else tx.graph.call_function(getattr(torch, found[0]), found[1:])
        )

    return call


for _name in _FACTORS:
    register(getattr(torch, _name), _of_function(_name))
    for _method in (_name, f"{_name}_"):
        method(_method)(_of_method(_method))


def _each_with_scalar(name: str) -> Callable[[Trace, Args, Kwargs], Value | None]:
    """``_foreach_addcdiv_`` and the like: one operator a tensor where the numbers are tensors."""

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = [*args, *kwargs.values()]
        if len(given) != 4 or not kwargs.keys() <= {"value", "scalars"}:
            return None
        *lists, scalars = given
        if not isinstance(scalars, TensorValue) and (
            not isinstance(scalars, SequenceValue)
            or not any(isinstance(s, TensorValue) for s in tx.interp.unpack(scalars))
        ):
            return None
        rows = [tx.interp.unpack(part) for part in (*lists, scalars)]
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            return None
        for tensor, first, second, number in zip(*rows, strict=True):
            if not isinstance(tensor, TensorValue):
                return None
            call_tensor_method(tx, tensor, name, [first, second], {"value": number})
        return lists[0]

    return call


for _name in ("addcmul_", "addcdiv_"):
    register(getattr(torch, f"_foreach_{_name}"), _each_with_scalar(_name))
