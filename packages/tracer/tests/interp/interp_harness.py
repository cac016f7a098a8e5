"""Runs functions without tensors in the interpreter and compares with CPython."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable

from torchsmith_guards import FunctionSource, LocalSource
from torchsmith_tracer._src.breaks.signals import BreakAt, ObservedException
from torchsmith_tracer._src.compilation import Compilation
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import SequenceValue
from torchsmith_tracer._src.values.exceptions import ExceptionValue
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.lazy import LazyValue
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import NewObjectValue, ObjectValue
from torchsmith_tracer._src.values.sets import SetValue


def new_trace() -> Compilation:
    return Compilation(Settings())


def interpret(fn: Callable[..., object], *args: object) -> tuple[Compilation, Value]:
    """Trace ``fn`` called with existing objects ``args``; may raise what the tracer raises."""
    assert isinstance(fn, types.FunctionType)
    trace = new_trace()
    trace.interp.namespace(fn.__globals__)
    entry = FunctionValue.existing(trace, fn, FunctionSource())
    values = [trace.builder.wrap(arg, LocalSource(f"arg{i}")) for i, arg in enumerate(args)]
    from torchsmith_tracer._src.values.abstract.arguments import bind_arguments

    names = bind_arguments(trace, entry, values, {})
    return trace, trace.loop.run(trace.loop.root_frame(entry, names))


def to_host(value: Value, memo: dict[Value, object] | None = None) -> object:
    """A plain Python object with the content of ``value``, for comparison."""
    memo = {} if memo is None else memo
    if value in memo:
        return memo[value]
    if isinstance(value, LazyValue):
        return value.obj
    if isinstance(value, ExceptionValue):
        return (value.cls.__name__, [to_host(v, memo) for v in value.args.items])
    if isinstance(value, NewObjectValue):
        attrs = value.journal.attrs.get(value) or {}
        out: dict[str, object] = {"__class__": value.cls.__name__}
        memo[value] = out
        if value.storage is not None and not attrs and hasattr(value.cls, "_make"):
            return value.cls._make(to_host(value.storage, memo))
        if value.storage is not None:
            out["__storage__"] = to_host(value.storage, memo)
        for name, attr in attrs.items():
            if attr is not DELETED:
                out[name] = to_host(attr, memo)
        return out
    if isinstance(value, ObjectValue):
        return value.obj
    if isinstance(value, ClassValue):
        return value.obj
    if isinstance(value, SequenceValue):
        items = [to_host(v, memo) for v in value.items]
        kind = value.python_type()
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    if isinstance(value, DictValue):
        return (
            value.cls((to_host(k, memo), to_host(v, memo)) for k, v in value.table.values())
            if value.factory is None
            else {to_host(k): to_host(v) for k, v in value.table.values()}
        )
    if isinstance(value, SetValue):
        return value.cls(to_host(v, memo) for v in value.items)
    return value.as_constant()


def normal(obj: object) -> object:
    """CPython's result in the form that ``to_host`` gives."""
    if isinstance(obj, BaseException):
        return (type(obj).__name__, [normal(a) for a in obj.args])
    if type(obj) in (list, tuple, set, frozenset):
        return type(obj)(normal(x) for x in obj)  # type: ignore[call-arg]
    if type(obj) is dict:
        return {normal(k): normal(v) for k, v in obj.items()}
    module = type(obj).__module__
    if module not in ("builtins", "collections", "functools", "enum") and hasattr(obj, "__dict__"):
        if not hasattr(type(obj), "_fields") and not isinstance(obj, type):
            from enum import Enum

            if not isinstance(obj, Enum | types.ModuleType):
                return {
                    "__class__": type(obj).__name__,
                    **{k: normal(v) for k, v in vars(obj).items()},
                }
    return obj


def message(exc: ExceptionValue) -> str:
    """``str`` of the exception, as far as it is known."""
    values = [v.value for v in exc.args.items if isinstance(v, ConstantValue)]
    if len(values) != len(exc.args.items):
        return exc.describe()
    if issubclass(exc.cls, KeyError) and len(values) == 1:
        return repr(values[0])
    return "" if not values else str(values[0] if len(values) == 1 else tuple(values))


def outcome(run: Callable[[], object]) -> tuple[str, object]:
    try:
        return "returned", run()
    except ObservedException as e:
        exc = e.exc
        assert isinstance(exc, ExceptionValue)
        return "raised", (exc.cls.__name__, message(exc))
    except BreakAt as e:
        if e.signal.kind == "raises":
            exc = e.__cause__.exc  # type: ignore[union-attr]
            return "raised", (exc.cls.__name__, message(exc))
        raise


def check(fn: Callable[..., object], *args: object) -> None:
    """Assert that interpreting ``fn(*args)`` gives what CPython gives."""
    theirs = copy.deepcopy(args)
    try:
        expected: tuple[str, object] = ("returned", normal(fn(*theirs)))
    except Exception as e:
        expected = ("raised", (type(e).__name__, str(e)))
    got = outcome(lambda: to_host(interpret(fn, *args)[1]))
    assert got == expected, f"{fn.__name__}: {got} instead of {expected}"
    assert repr(got) == repr(expected) or "0x" in repr(got) or "{" in repr(got), (got, expected)
