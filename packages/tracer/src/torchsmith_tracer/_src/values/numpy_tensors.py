"""Between tensors and arrays of NumPy: the functions of torch that take one and give the other."""

from __future__ import annotations

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import FALSE, NONE, TRUE
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.numpy_arrays import ArrayValue, alias
from torchsmith_tracer._src.values.numpy_calls import from_tensor
from torchsmith_tracer._src.values.symbolic_calls import tensor_of_numbers
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.tensor_methods import method
from torchsmith_tracer._src.values.torch_queries import Handler, handles, register


@method("numpy")
def _numpy(tx: Trace, tensor: TensorValue, /, *, force: Value = FALSE) -> Value:
    if tx.interp.truth(force):
        for step in ("detach", "cpu", "resolve_conj", "resolve_neg"):
            made = tx.graph.call_method(step, (tensor,))
            assert isinstance(made, TensorValue)
            tensor = made
    return from_tensor(tx, tensor)


_PLACES = ("dtype", "device")


def _shared(tx: Trace, array: ArrayValue) -> TensorValue:
    """A tensor in the array's memory."""
    if torch.is_inference_mode_enabled():
        raise Unsupported("numpy", what="a tensor of an array", error="in inference mode")
    array.written(tx)  # torch warns about a read-only one
    return alias(tx, array.tensor)


@handles(torch.from_numpy)
def _from_numpy(tx: Trace, given: Value, /) -> Value:
    array = realize(tx, given)
    if not isinstance(array, ArrayValue) or array.is_scalar:
        raise Unsupported("opaque-call", what="torch.from_numpy")
    return _shared(tx, array)


def _converts(copies: bool) -> Handler:
    """``torch.tensor`` copies an array, ``torch.as_tensor`` does not unless it has to."""

    def convert(tx: Trace, args: Args, kwargs: Kwargs) -> Value | None:
        array = realize(tx, args[0]) if args else NONE
        if not isinstance(array, ArrayValue):
            if len(args) != 1 or kwargs.keys() - {"dtype", "device"}:
                return None
            return tensor_of_numbers(tx, array, **kwargs)
        rest = {k: v for k, v in kwargs.items() if not tx.interp.is_none(v)}
        if len(args) > 1 or array.is_scalar or rest.keys() - set(_PLACES):
            raise Unsupported("numpy", what="a tensor of an array", error="with more arguments")
        fake = array.tensor.fake
        if "device" not in rest and torch.get_default_device().type != "cpu":
            raise Unsupported("numpy", what="a tensor of an array", error="on another device")
        if copies:
            rest["copy"] = TRUE
        else:
            dtype, device = (rest[k].as_constant() if k in rest else None for k in _PLACES)
            if dtype in (None, fake.dtype) and device in (None, "cpu", fake.device):
                return _shared(tx, array)
        return tx.graph.call_method("to", (array.tensor,), rest)

    return convert


register(torch.tensor, _converts(copies=True))
for _fn in (torch.as_tensor, torch.asarray):
    register(_fn, _converts(copies=False))
