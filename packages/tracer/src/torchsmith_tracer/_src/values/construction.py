"""Making instances: ``type.__call__``, ``object.__new__`` and the builtin bases' ``__new__``."""

from __future__ import annotations

import _random
import collections
import types
from collections.abc import Callable

import torch

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import METHODS
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import (
    DequeValue,
    ListValue,
    NamedTupleValue,
    TupleValue,
    is_plain_named,
)
from torchsmith_tracer._src.values.exceptions import Call, ExceptionValue, compute
from torchsmith_tracer._src.values.lookup import Found, attr_value, bind, lookup, lookup_in
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.overrides import new_tensor
from torchsmith_tracer._src.values.python_instances import NewObjectValue, storage_base
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.twins import TwinValue, twin_of
from torchsmith_tracer._src.values.wrapper_tensors import is_wrapper_class, new_wrapper


def construct(tx: Trace, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``type.__call__(cls, *args, **kwargs)``."""
    maker = lookup(tx, cls.obj, "__new__")
    assert maker is not None
    if issubclass(cls.obj, torch.Tensor) and is_wrapper_class(cls.obj):
        return new_wrapper(tx, cls.obj, args, kwargs)
    obj = make(tx, maker, cls, args, kwargs)
    if not type.__subclasscheck__(cls.obj, obj.python_type()):
        return obj
    actual = obj.python_type()
    init = lookup(tx, actual, "__init__")
    assert init is not None
    if init.owner is object:
        _check_no_arguments(tx, maker, cls, args, kwargs)
        return obj
    if isinstance(obj, ExceptionValue) and not (_is_python(init) or _is_python(maker)):
        return obj  # ``make`` has computed both
    if not isinstance(obj, NewObjectValue) and not _is_python(init):
        return obj
    if init.owner is list and _is_python(maker):
        kwargs = {}  # they were for ``__new__``
    method = bind(tx, init, obj, tx.interp.type_of(obj), "__init__")
    result = method.call(tx, args, kwargs)
    if not tx.interp.is_none(result):
        raise tx.interp.error(TypeError, f"__init__() should return None, not {result.type_name!r}")
    return obj


def _is_python(found: Found) -> bool:
    return isinstance(found.attr, Value | types.FunctionType | staticmethod | classmethod)


def make(tx: Trace, maker: Found, cls: ClassValue, args: Args, kwargs: Kwargs) -> Value:
    """``cls.__new__(cls, *args, **kwargs)``."""
    if _is_python(maker):
        fn = bind(tx, maker, None, cls, "__new__")
        return fn.call(tx, [cls, *args], kwargs)
    return new_instance(tx, cls, args, kwargs, maker)


def new_instance(
    tx: Trace, cls: ClassValue, args: Args, kwargs: Kwargs, maker: Found | None = None
) -> Value:
    """The C-level ``__new__`` of the builtin class that lays out ``cls``."""
    real = cls.obj
    if (marked := lookup_in(tx, (real,), "__abstractmethods__")) is not None:
        attr_value(tx, marked, "__abstractmethods__")  # guards it
    if real.__flags__ & _ABSTRACT:
        return tx.interp.fold(object.__new__, real)
    if lookup(tx, real, "__del__") is not None:
        what = f"class {real.__qualname__}, which has __del__"
        raise Unsupported("opaque-call", what=what, native=True)
    if issubclass(real, BaseException):
        init = lookup(tx, real, "__init__")
        assert init is not None
        again = None if _is_python(init) else (args, kwargs)
        return new_exception(tx, cls, args, kwargs, again)
    if issubclass(real, torch.Tensor):
        return new_tensor(tx, cls, args, kwargs)
    base = storage_base(real)
    if base is object:
        if args or kwargs:
            init = lookup(tx, real, "__init__")
            assert init is not None
            if maker is not None and init.owner is object:
                _check_no_arguments(tx, maker, cls, args, kwargs)
        return tx.interp.instantiate(cls)
    if issubclass(base, type):
        return METHODS[type, "__new__"](tx, tx.interp.class_value(type), cls, *args, **kwargs)  # type: ignore[return-value]
    if twin_of(base) is not None:
        if _takes_keywords(tx, real) and getattr(twin_of(base), "no_keywords", False):
            kwargs = {}  # of the subclass's own ``__init__``
        return tx.interp.instantiate(cls, make_twin(tx, base, args, kwargs))
    if base in (filter, map, reversed) and _takes_keywords(tx, real):
        kwargs = {}
    if (build := _STORAGE.get(base)) is None:
        raise Unsupported("opaque-call", what=f"constructor of {real.__qualname__}")
    if kwargs and base in (frozenset, tuple) and not _takes_keywords(tx, real):
        raise tx.interp.error(TypeError, f"{base.__name__}() takes no keyword arguments")
    storage = build(tx, base, args, kwargs)
    if isinstance(storage, TupleValue) and cls.recipe is None and is_plain_named(tx, real):
        return NamedTupleValue(storage.items, real)
    return tx.interp.instantiate(cls, storage)


def _takes_keywords(tx: Trace, cls: type) -> bool:
    init = lookup(tx, cls, "__init__")
    return init is not None and _is_python(init)


def make_twin(tx: Trace, real: type, args: Args, kwargs: Kwargs) -> TwinValue:
    """A new object of a C class that has a twin."""
    value = TwinValue(tx, real)
    init = lookup(tx, value.cls, "__init__")
    assert init is not None
    bind(tx, init, value, tx.interp.class_value(real), "__init__").call(tx, args, kwargs)
    return value


_ABSTRACT = 1 << 20


def new_exception(
    tx: Trace, cls: ClassValue, args: Args, kwargs: Kwargs, init: Call | None
) -> ExceptionValue:
    """``BaseException.__new__``, and with ``init`` its ``__init__``, of the builtin class."""
    kind, found, fields = compute(tx, cls.obj, args, kwargs, init)
    exact = cls if cls.recipe is not None else None
    made = ExceptionValue(tx.journal, kind, args, exact, fields)
    made.args = found
    return made


def _check_no_arguments(
    tx: Trace, maker: Found, cls: ClassValue, args: Args, kwargs: Kwargs
) -> None:
    """``object.__init__`` and ``object.__new__`` refuse arguments that nobody takes."""
    if not args and not kwargs:
        return
    name = cls.obj.__name__
    if maker.owner is object:
        raise tx.interp.error(TypeError, f"{name}() takes no arguments")


# --- builtin parts of instances ------------------------------------------------------------------

Builder = Callable[["Trace", type, Args, Kwargs], Value | None]


def _immutable(tx: Trace, base: type, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1:
        message = f"{base.__name__} expected at most 1 argument, got {len(args)}"
        raise tx.interp.error(TypeError, message)
    if base is tuple:
        return TupleValue(tx.interp.unpack(args[0]) if args else [])
    made = SetValue(cls=frozenset)
    if args:
        made.update(tx, args[0])
    return made


def _constant(tx: Trace, base: type, args: Args, kwargs: Kwargs) -> Value:
    value = tx.interp.class_value(base).call(tx, args, kwargs)
    if not isinstance(value, ConstantValue):
        raise Unsupported("not-constant", what=value.describe())
    return value


def _namespace(tx: Trace, base: type, args: Args, kwargs: Kwargs) -> Value | None:
    return None  # made when it is needed, or its attributes are all there is


_STORAGE: dict[type, Builder] = {
    types.SimpleNamespace: _namespace,
    _random.Random: _namespace,
    **dict.fromkeys(
        (enumerate, filter, map, reversed, zip),
        lambda tx, base, *given: tx.interp.class_value(base).call(tx, *given),
    ),
    **dict.fromkeys(
        (dict, collections.OrderedDict, collections.defaultdict),
        lambda tx, base, args, kwargs: DictValue(None, None, base),
    ),
    list: lambda *_: ListValue([]),
    collections.deque: lambda *_: DequeValue([]),
    set: lambda *_: SetValue(),
    **dict.fromkeys((frozenset, tuple), _immutable),
    **dict.fromkeys((bool, int, float, str, bytes, complex), _constant),
}
