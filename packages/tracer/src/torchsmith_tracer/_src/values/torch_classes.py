"""Constructors of torch classes, and what Python builtins do with tensors and symbolic numbers.

Imported for its registrations in the interpreter's tables.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.values import overrides
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import constructor
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.contexts import MAKERS
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue, combine
from torchsmith_tracer._src.values.tensor import TensorValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.trace import Trace


def _register_contexts() -> None:
    for cls, maker in MAKERS.items():

        def make(
            tx: Trace, *args: Value, _maker: Callable[..., Value] = maker, **kwargs: Value
        ) -> Value:
            return _maker(tx, args, kwargs)

        constructor(cls)(make)


_register_contexts()


@constructor(torch.Size)
def _size(tx: Trace, items: Value | None = None) -> Value:
    return SizeValue([] if items is None else tx.interp.unpack(items))


def _folded(cls: type) -> None:
    @constructor(cls)
    def make(tx: Trace, *args: Value, **kwargs: Value) -> Value:
        values = [tx.interp.concrete(a) for a in args]
        named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
        return tx.interp.fold(cls, *values, **named)


for _cls in (torch.device, torch.finfo, torch.iinfo):
    _folded(_cls)


@constructor(torch.Tensor)
def _tensor(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    if len(args) == 1 and isinstance(args[0], TensorValue) and not kwargs:
        return tx.graph.call_method("detach", (args[0],))
    return tx.graph.call_function(torch.Tensor, args, kwargs)


Hook = Callable[["Trace", Sequence[Value], dict[str, Value]], "Value | None"]


def _emit(target: Callable[..., object]) -> Hook:
    def hook(tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        return tx.graph.call_function(target, args, kwargs)

    return hook


_OPERATOR_NAMES = (
    "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs "
    "lt le eq ne gt ge getitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor"
).split()
TENSOR_BUILTINS: dict[object, Hook] = {
    abs: _emit(torch.abs),
    pow: _emit(operator.pow),
    operator.index: lambda tx, args, kwargs: _read(args),
    **{getattr(operator, n): _emit(getattr(operator, n)) for n in _OPERATOR_NAMES},
}


def _read(args: Sequence[Value]) -> Value:
    raise Unsupported("item", what=args[0].describe())


def tensor_builtin(
    tx: Trace, obj: object, args: Sequence[Value], kwargs: dict[str, Value]
) -> Value | None:
    """A builtin called with a tensor among its arguments; None when it has no special meaning."""
    found = overrides.call_property(tx, obj, args, kwargs)
    if found is not None:
        return found
    try:
        hook = TENSOR_BUILTINS.get(obj)
    except TypeError:
        return None
    if hook is not None and obj is not operator.index and overrides.involved(tx, args, kwargs):
        return _by_slot(tx, obj, args)
    if hook is not None:
        return hook(tx, args, kwargs)
    if obj in _MATH:
        raise Unsupported("item", what=f"math.{getattr(obj, '__name__', '?')} of a tensor")
    return None


def _by_slot(tx: Trace, obj: object, args: Sequence[Value]) -> Value | None:
    """A function of ``operator`` as the operator that it is."""
    name: str = obj.__name__.strip("_")  # type: ignore[attr-defined]
    if name in ("lt", "le", "eq", "ne", "gt", "ge"):
        return tx.interp.compare(name, *args)
    if name in ("neg", "pos", "invert"):
        return args[0].unary(tx, name)
    if name == "getitem":
        return args[0].getitem(tx, args[1])
    if name == "abs":
        return tx.interp.call(args[0].getattr(tx, "__abs__"), [])
    if name in ("and", "or"):
        name += "_"
    inplace = name.startswith("i") and name != "index"
    return (tx.interp.inplace if inplace else tx.interp.binary)(name, *args)


_MATH = {f for f in vars(math).values() if callable(f)}


def number_builtin(
    tx: Trace, obj: object, args: Sequence[Value], kwargs: dict[str, Value]
) -> Value | None:
    """A builtin called with a symbolic number among its arguments."""
    first = args[0]
    if obj in (max, min) and len(args) == 2 and not kwargs:
        if all(_is_int(a) for a in args):
            fn: Callable[..., object] = torch.sym_max if obj is max else torch.sym_min
            numbers = [a.sym if isinstance(a, SymNumValue) else a.as_constant() for a in args]
            return combine(tx, fn, tuple(args), fn(*numbers))
    if obj in (operator.index, math.trunc, math.floor, math.ceil) and isinstance(
        first, SymNumValue
    ):
        if isinstance(first.sym, torch.SymInt):
            return first
    if obj is abs and isinstance(first, SymNumValue) and not isinstance(first.sym, torch.SymBool):
        return combine(tx, abs, (first,), abs(first.sym))  # type: ignore[arg-type]
    binary = _NUMBER_OPERATORS.get(obj) if callable(obj) else None
    if binary is not None and len(args) == 2:
        result = args[0].binary(tx, binary, args[1])
        if result is None:
            result = args[1].binary(tx, binary, args[0], reflected=True)
        return result
    if obj in _MATH or obj in (abs, round, pow, divmod):
        known = [tx.interp.concrete(a) for a in args]
        named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
        return tx.interp.fold(obj, *known, **named)  # type: ignore[arg-type]
    return None


_NUMBER_OPERATORS: dict[object, str] = {
    getattr(operator, n): n for n in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
}


def _is_int(value: Value) -> bool:
    if isinstance(value, SymNumValue):
        return isinstance(value.sym, torch.SymInt)
    return isinstance(value, ConstantValue) and type(value.value) is int
