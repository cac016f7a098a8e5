"""Number arguments of operators for which the program gives a tensor: ``a.add_(b, alpha=t)``.

Eager reads the number out of the tensor, which a graph cannot; the product with the tensor, in
the order and in the type in which the operator's own kernel multiplies, is the same, and a new
tensor is filled after it was made. The undocumented functions are traced, not run.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import Implementation
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_methods import method
from torchsmith_tracer._src.values.torch_queries import register


def _kinds(*tensors: Any) -> tuple[torch.dtype, torch.dtype]:
    """Data types that elementwise operators on these give, and that their kernels compute in."""
    counted = [t.dtype for t in tensors if t.dim()] or [t.dtype for t in tensors]
    kind = functools.reduce(torch.promote_types, counted)
    return kind, torch.promote_types(kind, torch.float32)


def _as(kind: torch.dtype, tensor: Any) -> Any:
    return tensor if tensor.dtype == kind else tensor.to(kind)


def _plus(tensor: Any, scaled: Any, kind: torch.dtype, inplace: Any) -> object:
    """``tensor`` and a product of the type that is computed in."""
    return tensor.add_(scaled) if inplace else _as(kind, _as(scaled.dtype, tensor) + scaled)


def _add(inplace: Any, tensor: Any, other: Any, *, alpha: Any) -> object:
    kind, wide = _kinds(tensor, other)
    return _plus(tensor, _as(wide, other) * _as(wide, alpha), kind, inplace)


def _sub(inplace: Any, tensor: Any, other: Any, *, alpha: Any) -> object:
    return _add(inplace, tensor, other, alpha=-alpha)


def _addcmul(inplace: Any, tensor: Any, one: Any, two: Any, *, value: Any) -> object:
    kind, wide = _kinds(tensor, one, two)
    return _plus(tensor, _as(wide, one) * _as(wide, value) * _as(wide, two), kind, inplace)


def _addcdiv(inplace: Any, tensor: Any, one: Any, two: Any, *, value: Any) -> object:
    kind, wide = _kinds(tensor, one, two)
    return _plus(tensor, _as(wide, one) * _as(wide, value) / _as(wide, two), kind, inplace)


def _sum(keyword: str, compute: Callable[..., object], *, inplace: bool) -> Implementation:
    """An operator with a tensor as its ``keyword`` adds a product to a tensor."""

    def call(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> Value | None:
        factor = kwargs.get(keyword)
        if not isinstance(factor, TensorValue) or factor.fake.dim() or factor.fake.requires_grad:
            return None
        if len(kwargs) > 1 or len(args) != (1 if keyword == "alpha" else 2):
            return None
        for part in (tensor, factor, *args):
            if not isinstance(part, TensorValue) or not part.fake.dtype.is_floating_point:
                return None
        given = [ConstantValue(inplace), tensor, *args]
        return tx.builder.wrap_new(compute).call(tx, given, kwargs)

    return call


for _end in ("", "_"):
    method(f"add{_end}")(_sum("alpha", _add, inplace=bool(_end)))
    method(f"sub{_end}")(_sum("alpha", _sub, inplace=bool(_end)))
    method(f"addcmul{_end}")(_sum("value", _addcmul, inplace=bool(_end)))
    method(f"addcdiv{_end}")(_sum("value", _addcdiv, inplace=bool(_end)))


def _one_by_one(name: str, tensors: Any, first: Any, second: Any, scalars: Any) -> object:
    for tensor, a, b, value in zip(tensors, first, second, scalars, strict=True):
        getattr(tensor, name)(a, b, value=value)
    return tensors


def _each(name: str) -> Callable[[Trace, Args, Kwargs], Value | None]:
    """One operator a tensor where the numbers are tensors."""

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = [*args, *kwargs.values()]
        if len(given) != 4 or not kwargs.keys() <= {"value", "scalars"}:
            return None
        numbers = [given[3]] if not isinstance(given[3], SequenceValue) else given[3].unpack(tx)
        if not any(isinstance(number, TensorValue) for number in numbers):
            return None
        function = tx.builder.wrap_new(_one_by_one)
        return function.call(tx, [ConstantValue(name), *given], {})

    return call


register(torch._foreach_addcmul_, _each("addcmul_"))
register(torch._foreach_addcdiv_, _each("addcdiv_"))


def _fill(make: Any, first: Any, fill_value: Any, **named: Any) -> object:
    return make(first, 0.0, **named).fill_(fill_value)


def _full(make: Callable[..., object]) -> Callable[[Trace, Args, Kwargs], Value | None]:
    """A new tensor of a number that is in a tensor."""

    def call(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        given = dict(zip(("size", "fill_value"), args)) | kwargs
        first = given.pop("input", None) or given.pop("size", None)
        number = given.pop("fill_value", None)
        if first is None or not given.keys() <= {"dtype", "device", "memory_format"}:
            return None
        if not isinstance(number, TensorValue) or number.fake.dim() or number.fake.requires_grad:
            return None
        dtype: object = given["dtype"].as_constant() if "dtype" in given else None
        if dtype is None and isinstance(first, TensorValue):
            dtype = first.fake.dtype
        for kind in (number.fake.dtype, dtype or number.fake.dtype):
            if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
                return None
        function = tx.builder.wrap_new(_fill)
        return function.call(tx, [tx.builder.wrap_new(make), first, number], given)

    return call


for _make in (torch.full, torch.full_like):
    register(_make, _full(_make))


@method("new_full")
def _new_full(tx: Trace, tensor: TensorValue, /, *args: Value, **kwargs: Value) -> Value | None:
    own = {"dtype": tensor.fake.dtype, "device": tensor.fake.device}
    given = {key: value for key, value in kwargs.items() if not tx.interp.is_none(value)}
    return _full(torch.full)(tx, args, {k: ConstantValue(v) for k, v in own.items()} | given)
