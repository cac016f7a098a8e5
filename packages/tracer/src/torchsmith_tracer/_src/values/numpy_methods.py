"""Attributes, methods and items of arrays of NumPy, and writes to them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.torch_private import storage_id as storage_of
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, MethodOf, Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue, SliceValue
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue, numpy, numpy_dtype, torch_dtype
from torchsmith_tracer._src.values.numpy_calls import (
    Asked,
    asarray,
    call,
    cast_to,
    check_cast,
    from_tensor,
    full,
    method_node,
    plain,
    read,
    refused,
)
from torchsmith_tracer._src.values.tensor import TensorValue, call_tensor_method

METHODS = frozenset(
    "sum prod mean std var min max any all argmin argmax cumsum cumprod clip round transpose "
    "reshape ravel flatten swapaxes squeeze diagonal trace take repeat dot copy astype conj "
    "conjugate fill item tolist __getitem__ __setitem__ __len__".split()
)


def attribute(tx: Trace, array: ArrayValue, name: str) -> Value:
    """``array.T``, ``array.real``, ``array.imag``."""
    return Asked(tx, name, operator.attrgetter(name), [array], {}, generic=True).answer()


class ArrayMethod(MethodOf["ArrayValue"]):
    """A method of an array, bound."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(getattr(self.owner.sample(), self.name))

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        args = [read(tx, a) for a in args]
        kwargs = {k: read(tx, v) for k, v in kwargs.items()}
        array, name = self.owner, self.name
        own = _METHODS.get(name)
        if own is not None:
            return own(tx, array, args, kwargs)

        def method(array: Any, *args: Any, **kwargs: Any) -> Any:
            return getattr(array, name)(*args, **kwargs)

        return Asked(tx, name, method, [array, *args], kwargs, generic=True).answer()


def _astype(tx: Trace, array: ArrayValue, args: list[Value], kwargs: Kwargs) -> Value:
    if len(args) != 1 or kwargs:
        raise refused("ndarray.astype", "these arguments")
    dtype = numpy().dtype(tx.interp.concrete(args[0]))
    wanted = torch_dtype(dtype)
    if wanted is None:
        raise refused("ndarray.astype", f"to {dtype}")
    check_cast(array.tensor.fake.dtype, wanted)
    asked = Asked(tx, "ndarray.astype", lambda a: a.astype(dtype), [array], {})
    return asked.conform(cast_to(tx, array.tensor, wanted))


def _fill(tx: Trace, array: ArrayValue, args: list[Value], kwargs: Kwargs) -> Value:
    setitem(tx, array, ConstantValue(Ellipsis), args[0])
    return NONE


def _reads(tx: Trace, array: ArrayValue, args: list[Value], kwargs: Kwargs) -> Value:
    if not args and not kwargs and tx.settings.capture_scalar_outputs:
        if not array.tensor.fake.dim():
            return call_tensor_method(tx, array.tensor, "item", (), {})
    raise Unsupported("item", what=f"reading a {array.describe()}")


_METHODS: dict[str, Callable[[Trace, ArrayValue, list[Value], Kwargs], Value]] = {
    "astype": _astype,
    "fill": _fill,
    "item": _reads,
    "tolist": _reads,
    "__getitem__": lambda tx, array, args, kwargs: getitem(tx, array, args[0]),
    "__len__": lambda tx, array, args, kwargs: array.length(tx),
}


# --- items -------------------------------------------------------------------------------------


def _key(tx: Trace, array: ArrayValue, key: Value) -> tuple[Value, bool]:
    """A subscript as tensors take it, and whether it picks elements by arrays.

    Raises:
        Unsupported: tensors take it another way.
    """
    key = read(tx, key)
    whole = isinstance(key, SequenceValue) and issubclass(key.python_type(), tuple)
    parts = list(key.items) if isinstance(key, SequenceValue) and whole else [key]
    fancy = numbers = False
    made: list[Value] = []
    for part in parts:
        if isinstance(part, SequenceValue):
            part = asarray(tx, part)
        if isinstance(part, ArrayValue):
            if part.tensor.fake.dtype.is_floating_point or part.tensor.fake.is_complex():
                raise Unsupported("op-failed", what="a subscript", error="an array of no integers")
            fancy = True
            mask = part.tensor.fake.dtype is torch.bool
            part = part.tensor if mask else cast_to(tx, part.tensor, torch.int64)
        elif isinstance(part, SliceValue):
            step = tx.interp.try_concrete(part.items[2])
            if type(step) is int and step < 0:
                raise refused("ndarray.__getitem__", "a view that goes backwards")
        elif isinstance(part, TensorValue):
            raise refused("ndarray.__getitem__", "a tensor as the subscript")
        else:
            host = tx.interp.try_concrete(part)
            if type(host) is bool:
                raise refused("ndarray.__getitem__", "a truth value as the subscript")
            if host is not None and host is not Ellipsis:
                numbers = True
                index = tx.interp.try_index(part)
                if index is None:
                    raise Unsupported("op-failed", what="a subscript", error="of such a type")
                part = ConstantValue(index)
        made.append(part)
    if fancy and numbers:  # NumPy takes the number for an array there
        raise refused("ndarray.__getitem__", "numbers and arrays in one subscript")
    return (tx.interp.tuple(made) if whole else made[0]), fancy


def getitem(tx: Trace, array: ArrayValue, key: Value) -> Value:
    """``array[key]``."""
    asked = Asked(tx, "ndarray.__getitem__", operator.getitem, [array, read(tx, key)], {})
    if array.is_scalar:
        raise refused("ndarray.__getitem__", "of a scalar")
    taken, _ = _key(tx, array, key)
    return asked.conform(array.tensor.getitem(tx, taken))


def setitem(tx: Trace, array: ArrayValue, key: Value, value: Value) -> None:
    """``array[key] = value``."""
    key, value = read(tx, key), read(tx, value)
    dtype = array.tensor.fake.dtype
    if isinstance(value, TensorValue):
        value = from_tensor(tx, value)
    if isinstance(value, SequenceValue):
        value = asarray(tx, value)
    content: Value
    Asked(tx, "ndarray.__setitem__", operator.setitem, [array, key, value], {})
    taken, fancy = _key(tx, array, key)
    array.written(tx)
    if not isinstance(value, ArrayValue):
        host = tx.interp.concrete(value)
        if type(host) not in (bool, int, float, complex) and not hasattr(host, "dtype"):
            raise refused("ndarray.__setitem__", f"{value.describe()}")
        number = numpy().array(host).astype(numpy_dtype(dtype))[()]
        content = full(tx, plain(ConstantValue(number)), dtype)
    else:
        check_cast(value.tensor.fake.dtype, dtype)
        tensor = cast_to(tx, value.tensor, dtype)
        if storage_of(tensor.fake) == storage_of(array.tensor.fake):
            tensor = method_node(tx, tensor, "clone")  # NumPy reads all before it writes
        content = tensor
    if fancy:
        items = taken.items if isinstance(taken, SequenceValue) else [taken]
        only = all(v.fake.dtype is torch.bool for v in items if isinstance(v, TensorValue))
        if not only or (isinstance(content, TensorValue) and content.fake.dim()):
            raise refused("ndarray.__setitem__", "elements that may be written twice")
    array.tensor.setitem(tx, taken, content)


def in_place(tx: Trace, array: ArrayValue, op: str, fn: Any, other: Value) -> Value | None:
    """``array op= other``."""
    other = read(tx, other)
    run = getattr(operator, op, None) or getattr(operator, op + "_")
    asked = Asked(tx, f"ndarray.__{op}__", run, [array, other], {})
    if asked.expected is not asked.host(array):
        raise refused(f"ndarray.__{op}__", "a new array")
    result = call(tx, fn, [array, other], {})
    assert isinstance(result, ArrayValue)
    array.written(tx)
    content = cast_to(tx, result.tensor, array.tensor.fake.dtype)
    tx.graph.call_method("copy_", (array.tensor, content))
    return array
