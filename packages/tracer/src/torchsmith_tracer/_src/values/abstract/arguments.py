"""Binding of call arguments to a Python function's parameters, with CPython's error messages."""

from __future__ import annotations

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.mappings import DictValue

_VARARGS, _VARKEYWORDS = 0x04, 0x08


def bind_arguments(tx: Trace, fn: FunctionValue, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    """Locals at entry of ``fn`` called with ``args`` and ``kwargs``.

    Raises:
        ObservedException: a TypeError as CPython's.
    """
    code = fn.code
    count = code.co_argcount
    flags = code.co_flags
    names = code.co_varnames
    if (
        not kwargs
        and len(args) == count
        and not code.co_kwonlyargcount
        and not flags & (_VARARGS | _VARKEYWORDS)
    ):
        return dict(zip(names, args, strict=False))
    return _bind(tx, fn, args, kwargs)


def _bind(tx: Trace, fn: FunctionValue, args: Args, kwargs: Kwargs) -> dict[str, Value]:
    code = fn.code
    count, kwonly, flags = code.co_argcount, code.co_kwonlyargcount, code.co_flags
    names = code.co_varnames
    total = count + kwonly
    bound: dict[str, Value] = dict(zip(names[:count], args, strict=False))
    extra: dict[str, Value] = {}
    if kwargs:
        by_name = set(names[code.co_posonlyargcount : total])
        for name, value in kwargs.items():
            if name in by_name:
                if name in bound:
                    message = f"{fn.qualname}() got multiple values for argument {name!r}"
                    raise tx.interp.error(TypeError, message)
                bound[name] = value
            elif flags & _VARKEYWORDS:
                extra[name] = value
            else:
                _unexpected(tx, fn, name, kwargs)
    if len(args) > count and not flags & _VARARGS:
        _too_many(tx, fn, len(args), bound)
    for kind, given, needed in (("positional", len(args), count), ("keyword-only", count, total)):
        missing: list[str] = []
        for i, name in enumerate(names[given:needed], given):
            if name not in bound:
                default = fn.default(tx, i) if i < count else fn.kwdefault(tx, name)
                if default is None:
                    missing.append(name)
                else:
                    bound[name] = default
        if missing:
            _missing(tx, fn, kind, missing)
    slot = total
    if flags & _VARARGS:
        bound[names[slot]] = TupleValue(args[count:])
        slot += 1
    if flags & _VARKEYWORDS:
        bound[names[slot]] = DictValue({k: (ConstantValue(k), v) for k, v in extra.items()})
    return bound


def _missing(tx: Trace, fn: FunctionValue, kind: str, names: list[str]) -> None:
    quoted = [repr(name) for name in names]
    if len(quoted) == 1:
        text = quoted[0]
    elif len(quoted) == 2:
        text = f"{quoted[0]} and {quoted[1]}"
    else:
        text = f"{', '.join(quoted[:-1])}, and {quoted[-1]}"
    plural = "" if len(names) == 1 else "s"
    message = f"{fn.qualname}() missing {len(names)} required {kind} argument{plural}: {text}"
    raise tx.interp.error(TypeError, message)


def _too_many(tx: Trace, fn: FunctionValue, given: int, bound: dict[str, Value]) -> None:
    code = fn.code
    count = code.co_argcount
    defaults = sum(fn.default(tx, i) is not None for i in range(count))
    if defaults:
        takes, plural = f"from {count - defaults} to {count}", True
    else:
        takes, plural = str(count), count != 1
    keyword_only = code.co_varnames[count : count + code.co_kwonlyargcount]
    named = sum(name in bound for name in keyword_only)
    also = ""
    if named:
        also = (
            f" positional argument{'' if given == 1 else 's'} "
            f"(and {named} keyword-only argument{'' if named == 1 else 's'})"
        )
    verb = "was" if given == 1 and not named else "were"
    message = (
        f"{fn.qualname}() takes {takes} positional argument{'s' if plural else ''} "
        f"but {given}{also} {verb} given"
    )
    raise tx.interp.error(TypeError, message)


def _unexpected(tx: Trace, fn: FunctionValue, name: str, kwargs: dict[str, Value]) -> None:
    code = fn.code
    positional = [n for n in code.co_varnames[: code.co_posonlyargcount] if n in kwargs]
    if positional:
        message = (
            f"{fn.qualname}() got some positional-only arguments passed as keyword arguments: "
            f"'{', '.join(positional)}'"
        )
    else:
        message = f"{fn.qualname}() got an unexpected keyword argument {name!r}"
        message += _suggestion(fn, name)
    raise tx.interp.error(TypeError, message)


def _suggestion(fn: FunctionValue, name: str) -> str:
    """From 3.13 on CPython adds the closest parameter name; ask it."""
    import sys

    if sys.version_info < (3, 13):
        return ""
    code = fn.code
    first, last = code.co_posonlyargcount, code.co_argcount + code.co_kwonlyargcount
    try:
        from _suggestions import _generate_suggestions  # type: ignore[import-not-found]
    except ImportError:
        return ""
    guess = _generate_suggestions(list(code.co_varnames[first:last]), name)
    return "" if guess is None else f". Did you mean {guess!r}?"
