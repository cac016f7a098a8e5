"""Constructors of torch classes, and what Python builtins do with tensors and symbolic numbers.

Imported for its registrations in the interpreter's tables.
"""

from __future__ import annotations

import math
import operator
import types
from collections.abc import Callable, Hashable, Sequence
from functools import partial

import torch

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import overrides
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.contexts import MAKERS, ContextValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.math_calls import math_call
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue, combine, known
from torchsmith_tracer._src.values.tensor import TensorValue

for _context, _maker in MAKERS.items():
    constructor(_context)(_maker)


def _through_class(name: str, tx: Trace, manager: Value, /, *args: Value) -> Value | None:
    """``type(manager).__enter__(manager)``, as ``contextlib.ExitStack`` does it."""
    if not isinstance(manager, ContextValue):
        return None  # an instance of a derived class, whose methods are traced
    return tx.interp.call(manager.getattr(tx, name), args)


for _name in ("__enter__", "__exit__"):
    _own = {fn for cls in MAKERS if isinstance(fn := getattr(cls, _name), types.FunctionType)}
    builtin(*_own)(partial(_through_class, _name))


@constructor(torch.Size)
def _size(tx: Trace, items: Value | None = None) -> Value:
    sizes = [] if items is None else tx.interp.unpack(items)
    for i, size in enumerate(sizes):
        if lookup(tx, size.python_type(), "__index__") is None:
            text = f"torch.Size() takes an iterable of 'int' (item {i} is {size.type_name!r})"
            raise tx.interp.error(TypeError, text)
    return SizeValue(sizes)


def _folded(cls: type) -> None:
    @constructor(cls)
    def make(tx: Trace, *args: Value, **kwargs: Value) -> Value:
        values = [tx.interp.concrete(a) for a in args]
        named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
        return tx.interp.fold(cls, *values, **named)


for _cls in (torch.device, torch.finfo, torch.iinfo):
    _folded(_cls)


@constructor(private.lazy_property)
def _lazy_property(tx: Trace, wrapped: Value) -> Value:
    """What a lazy property of a distribution is, seen through its class."""
    if (real := getattr(wrapped, "fn", None)) is None:
        raise Unsupported("opaque-call", what="a lazy property of a new function")
    return tx.builder.wrap_new(private.lazy_property(real))


@constructor(torch.Tensor)
def _tensor(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    if len(args) == 1 and isinstance(args[0], TensorValue) and not kwargs:
        return tx.graph.call_method("detach", (args[0],))
    if len(args) == 1 and isinstance(args[0], SizeValue) and not kwargs:  # no data, as tuples are
        return tx.graph.call_function(torch.empty, args, {"device": ConstantValue("cpu")})
    return tx.graph.call_function(torch.Tensor, args, kwargs)


def tensor_builtin(tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value | None:
    """A builtin called with a tensor among its arguments; None when it has no special meaning."""
    if (found := overrides.call_property(tx, obj, args, kwargs)) is not None:
        return found
    if obj is abs:
        return tx.interp.call(args[0].getattr(tx, "__abs__"), [])
    if obj is pow and len(args) == 2 and not kwargs:
        return tx.interp.binary("pow", *args)
    if isinstance(obj, Hashable) and obj in _NUMBERS_ONLY:
        raise Unsupported("item", what=f"{getattr(obj, '__name__', '?')} of a tensor")
    return None


_MATH = {f for f in vars(math).values() if callable(f)}
_NUMBERS_ONLY = {*_MATH, operator.index}


def number_builtin(tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value | None:
    """A builtin called with a symbolic number among its arguments."""
    first = args[0]
    if obj in (max, min) and len(args) == 2 and not kwargs:
        if _are(args, torch.SymInt, int) or _are(args, torch.SymFloat, float):
            fn: Callable[..., object] = torch.sym_max if obj is max else torch.sym_min
            numbers = [a.sym if isinstance(a, SymNumValue) else a.as_constant() for a in args]
            return combine(tx, fn, tuple(args), fn(*numbers))
    if obj in (operator.index, math.trunc, math.floor, math.ceil) and isinstance(
        first, SymNumValue
    ):
        if isinstance(first.sym, torch.SymInt):
            return first
        if obj is not operator.index and isinstance(first.sym, torch.SymFloat):
            return first.getattr(tx, f"__{obj.__name__}__").call(tx, (), {})
    if obj in _MATH and not kwargs:
        if (found := math_call(tx, getattr(obj, "__name__", ""), args)) is not None:
            return found
    if obj is abs and isinstance(first, SymNumValue) and not isinstance(first.sym, torch.SymBool):
        return combine(tx, abs, (first,), abs(first.sym))  # type: ignore[arg-type]
    if obj is round and isinstance(first, SymNumValue) and not kwargs:
        digits = [known(n) for n in args[1:] if not tx.interp.is_none(n)]
        if isinstance(first.sym, torch.SymInt) and not digits:
            return first
        if isinstance(first.sym, torch.SymFloat) and _are(digits, torch.SymInt, int):
            places = [n.as_constant() for n in digits]
            return combine(tx, round, (first, *digits), round(first.sym, *places))  # type: ignore[call-overload]
    if obj in _MATH or obj in (abs, round, pow, divmod):
        given = [tx.interp.concrete(a) for a in args]
        named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
        return tx.interp.fold(obj, *given, **named)  # type: ignore[arg-type]
    return None


def _are(values: Sequence[Value], symbolic: type, kind: type) -> bool:
    """Whether all are numbers of one kind, symbolic or not."""
    return all(
        isinstance(v.sym, symbolic)
        if isinstance(v, SymNumValue)
        else isinstance(v, ConstantValue) and type(v.value) is kind
        for v in values
    )
