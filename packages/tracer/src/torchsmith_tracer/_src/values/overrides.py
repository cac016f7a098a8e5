"""``__torch_function__``: what classes of tensors, and objects that act as tensors, make of an
operator. It is ordinary Python code, traced in place of the operator, in C++'s order: subclasses
first, then from left to right; the next one is asked after ``NotImplemented``.

Which function a callable of torch hands on (``x + 1`` hands on ``torch.Tensor.add``), and whether
it asks at all, is found out by calling it under a mode that only takes note.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.overrides import get_default_nowrap_functions
from torchsmith_guards import PinnedSource

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values import function_modes
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import builtin
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import (
    NONE,
    NOT_IMPLEMENTED,
    ConstantValue,
    is_not_implemented,
)
from torchsmith_tracer._src.values.containers import ListValue, NamedTupleValue, TupleValue
from torchsmith_tracer._src.values.contexts import TorchFunctionDisabled
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.lookup import bind, lookup
from torchsmith_tracer._src.values.python_instances import ObjectValue
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue, is_operand
from torchsmith_tracer._src.values.tensor_methods import method
from torchsmith_tracer._src.values.tensor_objects import (
    TENSOR_CLASSES,
    TensorPart,
    as_class,
    tensor_below,
    tensor_object,
)
from torchsmith_tracer._src.values.torch_fn import call_torch, name_of
from torchsmith_tracer._src.values.torch_queries import find_handler, handles
from torchsmith_tracer._src.values.wrapper_tensors import WrapperTensor

# --- whether overrides are on --------------------------------------------------------------------


def enabled(tx: Trace) -> bool:
    """Whether operators ask the classes of their arguments now."""
    if any(isinstance(context, TorchFunctionDisabled) for context in tx.graph.contexts):
        return False
    return private.torch_function_enabled()


@contextmanager
def _disabled(tx: Trace) -> Iterator[None]:
    context = TorchFunctionDisabled(private.disable_torch_function[0])
    context.enter(tx)
    try:
        yield
    finally:
        context.exit(tx)


# --- who is asked --------------------------------------------------------------------------------


def overrides(tx: Trace, value: Value) -> bool:
    """Whether the class of ``value`` has a ``__torch_function__`` that counts."""
    if isinstance(value, TensorPart):
        return value.overrides
    if isinstance(value, ObjectValue):
        found = lookup(tx, value.python_type(), "__torch_function__")
        return found is not None and found.attr is not private.no_torch_function
    return False


def flattened(tx: Trace, args: Args, kwargs: Kwargs) -> Iterator[Value]:
    """The arguments, and what lists and tuples among them hold."""
    for arg in (*args, *kwargs.values()):
        if isinstance(arg, ListValue | TupleValue):
            yield from arg.unpack(tx)
        else:
            yield arg


def involved(tx: Trace, args: Args, kwargs: Kwargs) -> bool:
    """Whether a tensor object, or what acts as a tensor, is among the arguments."""
    if function_modes.watching(tx):
        return True
    for value in flattened(tx, args, kwargs):
        if type(value) is not TensorValue and isinstance(value, ObjectValue):
            if isinstance(value, TensorPart) or overrides(tx, value):
                return True
    return False


def overloaded(tx: Trace, values: Iterator[Value], *, plain: bool = False) -> list[Value]:
    """One value of each class that is to be asked, in the order of precedence. Torch's own Python
    code asks plain tensors, too (``plain``)."""
    found: list[Value] = []
    for value in values:
        is_plain = plain and value.python_type() is torch.Tensor
        if not is_plain and not overrides(tx, value):
            continue
        cls = value.python_type()
        if any(v.python_type() is cls for v in found):
            continue
        places = (i for i, v in enumerate(found) if issubclass(cls, v.python_type()))
        found.insert(next(places, len(found)), value)
    return found


def dispatch(
    tx: Trace, func: Value, relevant: Sequence[Value], args: Args, kwargs: Kwargs | None
) -> Value:
    """Ask the classes of ``relevant`` what ``func(*args, **kwargs)`` is."""
    kinds = TupleValue([tx.interp.type_of(value) for value in relevant])
    rest = [] if kwargs is None else [tx.interp.dict(kwargs)]
    modes = function_modes.active(tx)
    if modes:
        result = function_modes.ask(tx, modes[-1], [func, kinds, TupleValue(args), *rest])
        if not is_not_implemented(result):
            return result
    for value in relevant:
        found = lookup(tx, value.python_type(), "__torch_function__")
        assert found is not None
        if isinstance(found.attr, types.FunctionType):
            raise Unsupported("opaque-call", what="__torch_function__ that is no class method")
        hook = bind(tx, found, value, tx.interp.type_of(value), "__torch_function__")
        result = tx.interp.call(hook, [func, kinds, TupleValue(args), *rest])
        if not is_not_implemented(result):
            return result
    error = "no class of the arguments implements it"
    raise Unsupported("op-failed", what=func.describe(), error=error)


# --- what is handed on ---------------------------------------------------------------------------


class _Seen(Exception):
    """A callable has asked; ``args`` has the function that it hands on, and the classes."""


class _Probe(torch.overrides.TorchFunctionMode):
    """Takes note of the function that a callable hands on."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        raise _Seen(func, types)


class _ActsAsTensor:
    """In place of an object that is no tensor."""

    @classmethod
    def __torch_function__(cls, *args: object) -> object:
        return NotImplemented


# By id: the callable, what it hands on, and whether it asks a plain tensor, too.
_handed_on: dict[int, tuple[object, object, bool]] = {}


def _asks(tx: Trace, obj: Callable[..., object], args: Args, kwargs: Kwargs) -> tuple[object, bool]:
    """The function that ``obj`` hands on, or None when it asks nobody; whether it asks a plain
    tensor, too, when its class says nothing."""
    if (known := _handed_on.get(id(obj))) is not None:
        return known[1:]
    values = [_stand_in(tx, a) for a in args]
    named = {k: _stand_in(tx, v) for k, v in kwargs.items()}
    try:
        with _Probe():
            obj(*values, **named)
        func: object = None
        plain = False
    except _Seen as seen:
        func = seen.args[0]
        plain = torch.Tensor in seen.args[1]
    except Exception as e:
        error = f"{type(e).__name__}: {str(e).partition(chr(10))[0]}"
        raise Unsupported("op-failed", what=name_of(obj), error=error, cause=e) from e
    _handed_on[id(obj)] = obj, func, plain
    return func, plain


def _stand_in(tx: Trace, value: Value) -> object:
    if isinstance(value, TensorPart | TensorValue):
        return torch.zeros(2, 2)
    if isinstance(value, SymNumValue):
        return 2
    if isinstance(value, SizeValue):
        return torch.Size([2])
    if isinstance(value, ListValue | TupleValue):
        return value.cls([_stand_in(tx, v) for v in value.unpack(tx)])
    if isinstance(value, ObjectValue) and overrides(tx, value):
        return _ActsAsTensor()
    return tx.interp.concrete(value)


def call(tx: Trace, obj: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """A callable of torch on arguments among which tensor objects are."""
    python, handler = isinstance(obj, types.FunctionType), find_handler(obj)
    asks = python and (handler is None or "handle_torch_function" in obj.__code__.co_names)
    if handler in _QUERIES or (python and not asks):
        result = handler(tx, args, kwargs)  # type: ignore[misc]
        if result is not None:
            return result
    asked = enabled(tx) and obj not in _ASKS_NO_CLASS
    relevant = overloaded(tx, flattened(tx, args, kwargs)) if asked else []
    if not relevant and not function_modes.active(tx):
        return _below(tx, obj, args, kwargs)
    if any(isinstance(value, WrapperTensor) for value in flattened(tx, args, kwargs)):
        raise Unsupported("opaque-call", what=f"{name_of(obj)} on two classes of tensors")
    if asks:  # by itself, with the arguments in the form that it likes
        function = FunctionValue.existing(tx, obj, PinnedSource(obj))  # type: ignore[arg-type]
        return tx.interp.call_python(function, args, kwargs, resumable=False)
    if isinstance(obj, private.OPERATORS):
        return dispatch(tx, tx.builder.wrap_new(obj), relevant, args, kwargs)
    func, plain = _asks(tx, obj, args, kwargs)
    if func is None:
        return _below(tx, obj, args, kwargs)
    if plain and not relevant:
        relevant = overloaded(tx, iter(args[:1]), plain=True)
    return dispatch(tx, tx.builder.wrap_new(func), relevant, args, kwargs or None)


def _below(tx: Trace, obj: Callable[..., object], args: Args, kwargs: Kwargs) -> Value:
    """The operator itself, on the plain tensors below."""
    parts = [value for value in flattened(tx, args, kwargs) if isinstance(value, TensorPart)]
    known: dict[Value, Value] = {part.plain: part for part in parts}
    name = getattr(obj, "__name__", "")
    if name in _CHANGES_OBJECT and any(part.overrides for part in parts):
        raise Unsupported("tensor-attribute", what=name, tensor=args[0].describe())
    below = [_plain(tx, a) for a in args]
    if involved(tx, below, {k: _plain(tx, v) for k, v in kwargs.items()}):
        raise Unsupported("opaque-call", what=f"{name_of(obj)} on an object that is no tensor")
    if name in _ARITHMETIC and not all(is_operand(value) for value in below):
        return NOT_IMPLEMENTED
    result = call_torch(tx, obj, below, {k: _plain(tx, v) for k, v in kwargs.items()})
    return _restored(result, known)


_ASKS_NO_CLASS = (torch.tensor, torch.as_tensor, torch.asarray)
_CHANGES_OBJECT = frozenset("requires_grad_ retain_grad detach_ set_ resize_ resize_as_".split())
_ARITHMETIC = frozenset(
    f"__{prefix}{name}__"
    for name in "add sub mul truediv div floordiv mod pow matmul and or xor lshift rshift".split()
    for prefix in ("", "r", "i")
) | frozenset("__lt__ __le__ __eq__ __ne__ __gt__ __ge__".split())


def _plain(tx: Trace, value: Value) -> Value:
    if isinstance(value, ListValue | TupleValue) and not isinstance(value, SizeValue):
        items = value.unpack(tx)
        if any(isinstance(v, TensorPart | ListValue | TupleValue) for v in items):
            return value.like([_plain(tx, v) for v in items])
    return tensor_below(value)


def _restored(result: Value, known: dict[Value, Value]) -> Value:
    """A result that is one of the arguments is that very object."""
    if isinstance(result, TensorValue):
        return known.get(result, result)
    if known and isinstance(result, ListValue | TupleValue) and result.source is None:
        result.items[:] = [_restored(item, known) for item in result.items]
    return result


# --- properties ----------------------------------------------------------------------------------


def watched_property(tx: Trace, tensor: Value, descriptor: object) -> Value:
    """A property of a plain tensor, where a mode is asked about it."""
    name: str = descriptor.__name__  # type: ignore[attr-defined]
    func = tx.builder.wrap_new(getattr(torch.Tensor, name).__get__)
    relevant = overloaded(tx, iter((tensor,)), plain=True)
    return dispatch(tx, func, relevant, [tensor], None)


def read_property(tx: Trace, tensor: TensorPart, descriptor: object) -> Value:
    """``tensor.name`` for a property that is implemented in C."""
    name: str = descriptor.__name__  # type: ignore[attr-defined]
    asked = _ask_property(tx, tensor, name, "__get__", [])
    return tensor.plain_get(tx, name) if asked is None else asked


def write_property(tx: Trace, tensor: TensorPart, descriptor: object, value: Value) -> None:
    """``tensor.name = value`` for a property that is implemented in C."""
    name: str = descriptor.__name__  # type: ignore[attr-defined]
    if _ask_property(tx, tensor, name, "__set__", [value]) is None:
        tensor.plain_set(tx, name, value)


def _ask_property(
    tx: Trace, tensor: TensorPart, name: str, slot: str, args: list[Value]
) -> Value | None:
    assert isinstance(tensor, Value)
    asks = tensor.overrides and enabled(tx)
    if not asks and not function_modes.watching(tx):
        return None
    func = tx.builder.wrap_new(getattr(getattr(torch.Tensor, name), slot))
    return dispatch(tx, func, [tensor] if asks else [], [tensor, *args], None)


def call_property(tx: Trace, obj: object, args: Args, kwargs: Kwargs) -> Value | None:
    """``torch.Tensor.shape.__get__(x)`` and the like; None for other callables."""
    descriptor = getattr(obj, "__self__", None)
    if not isinstance(obj, types.MethodWrapperType) or kwargs:
        return None
    if not isinstance(descriptor, types.GetSetDescriptorType):
        return None
    if descriptor.__objclass__ not in TENSOR_CLASSES:
        return None
    tensor, name = args[0], descriptor.__name__
    if obj.__name__ == "__get__" and len(args) <= 2:
        if isinstance(tensor, TensorPart):
            return read_property(tx, tensor, descriptor)
        return tensor.getattr(tx, name) if isinstance(tensor, TensorValue) else None
    if obj.__name__ == "__set__" and len(args) == 2:
        if isinstance(tensor, TensorPart):
            write_property(tx, tensor, descriptor, args[1])
            return NONE
        if isinstance(tensor, TensorValue):
            tensor.setattr(tx, name, args[1])
            return NONE
    return None


# --- torch's own Python code for overrides --------------------------------------------------------


@builtin(private.default_torch_function)
def _default(
    tx: Trace,
    cls: Value,
    func: Value,
    types: Value,
    args: Value | None = None,
    kwargs: Value | None = None,
) -> Value:
    """``torch.Tensor.__torch_function__``: the operator itself, its results of the class."""
    assert isinstance(cls, ClassValue)
    for kind in tx.interp.unpack(types):
        if not isinstance(kind, ClassValue) or not tx.world.is_subclass(cls.obj, kind.obj):
            return NOT_IMPLEMENTED
    rest: Kwargs = {}
    if kwargs is not None and not tx.interp.is_none(kwargs):
        rest = tx.interp.keywords(kwargs)
    with _disabled(tx):
        result = tx.interp.call(func, [] if args is None else tx.interp.unpack(args), rest)
    if func.is_constant() and func.as_constant() in get_default_nowrap_functions():
        return result
    if getattr(func, "obj", None) in get_default_nowrap_functions():
        return result
    return _converted(tx, result, cls.obj)


def _converted(tx: Trace, result: Value, cls: type) -> Value:
    if cls is torch.Tensor:
        return result
    kind = result.python_type()
    if isinstance(result, TensorValue | TensorPart):
        return result if issubclass(kind, cls) else as_class(tx, result, cls)
    if isinstance(result, SizeValue) or not isinstance(result, ListValue | TupleValue):
        return result
    items = [_converted(tx, item, cls) for item in result.unpack(tx)]
    if isinstance(result, NamedTupleValue):
        return NamedTupleValue(items, kind)
    return result.like(items)


@handles(torch.overrides.handle_torch_function)
def _handle(
    tx: Trace, public_api: Value, relevant_args: Value, *args: Value, **kwargs: Value
) -> Value:
    asked = iter(tx.interp.unpack(relevant_args)) if enabled(tx) else iter(())
    relevant = overloaded(tx, asked, plain=True)
    return dispatch(tx, public_api, relevant, args, kwargs)


def _any(tx: Trace, values: Sequence[Value]) -> Value:
    asked = function_modes.watching(tx) or (enabled(tx) and any(overrides(tx, v) for v in values))
    return ConstantValue(asked)


@handles(torch.overrides.is_tensor_like)
def _is_tensor_like(tx: Trace, inp: Value) -> Value:
    kind = inp.python_type()
    asked = lookup(tx, kind, "__torch_function__") is not None
    return ConstantValue(issubclass(kind, torch.Tensor) or asked)


handles(*private.OVERRIDES_OF)(lambda tx, given, /: _any(tx, tx.interp.unpack(given)))
handles(*private.OVERRIDES_OF_ANY)(lambda tx, *given: _any(tx, given))
handles(private.torch_function_enabled)(lambda tx: ConstantValue(enabled(tx)))
_QUERIES = {
    find_handler(torch.overrides.handle_torch_function),
    find_handler(torch.overrides.is_tensor_like),
    *map(find_handler, private.OVERRIDES_OF + private.OVERRIDES_OF_ANY),
}


# --- making tensor objects ------------------------------------------------------------------------


@method("as_subclass")
def _as_subclass(tx: Trace, tensor: TensorValue, /, cls: Value) -> Value:
    if not isinstance(cls, ClassValue) or not issubclass(cls.obj, torch.Tensor):
        raise Unsupported("opaque-call", what="as_subclass")
    return as_class(tx, tensor, cls.obj)


@builtin(private.make_subclass)
def _make_subclass(
    tx: Trace, cls: Value, data: Value, require_grad: Value | None = None, **kwargs: Value
) -> Value:
    if not isinstance(cls, ClassValue) or kwargs:
        raise Unsupported("opaque-call", what="_make_subclass with these arguments")
    if require_grad is not None and tx.interp.concrete(require_grad):
        raise Unsupported("opaque-call", what="_make_subclass of a leaf that requires gradients")
    plain = tx.graph.call_method("detach", (tensor_below(data),))
    return tensor_object(tx, plain, cls.obj)


def new_tensor(tx: Trace, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``torch.Tensor.__new__(cls, *args)``."""
    plain = tx.interp.class_value(torch.Tensor).call(tx, [tensor_below(a) for a in args], kwargs)
    return as_class(tx, plain, cls.obj)
