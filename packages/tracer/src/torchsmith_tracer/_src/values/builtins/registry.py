"""Tables of implementations for builtin callables, keyed by the callable itself."""

from __future__ import annotations

import builtins
import cmath
import codecs
import collections
import datetime
import fractions
import inspect
import math
import operator
import os
import pathlib
import re
import string
import sys
import types
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple, TypeVar

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value

Implementation = Callable[..., "Value | None"]
Closure = Callable[["Trace", "Callable[[str], Value]", Args, Kwargs], "Value"]
F = TypeVar("F", bound=Implementation)

BUILTINS: dict[object, Implementation] = {}  # C functions and other callables
FUNCTIONS: dict[object, Implementation] = {}  # Python functions that are replaced as a whole
CLOSURES: dict[int, Closure] = {}  # functions that others make, by the identity of their code
CLASSES: dict[type, Implementation] = {}  # constructors
METHODS: dict[tuple[type, str], Implementation] = {}  # C methods by type and name
_ARITY: dict[Implementation, _Arity] = {}


def adder(*places: tuple[dict[Any, Implementation], object]) -> Callable[[F], F]:
    """Register the function below under keys of tables; a key used twice is an error."""

    def register(fn: F) -> F:
        for table, key in places:
            if key in table:
                raise ValueError(f"{key!r} is registered twice")
            table[key] = fn
        return fn

    return register


def _of_callable(obj: object) -> dict[object, Implementation]:
    return FUNCTIONS if isinstance(obj, types.FunctionType) else BUILTINS


def builtin(*objs: object) -> Callable[[F], F]:
    """Register ``fn(tx, *args, **kwargs)`` for builtin callables or Python functions."""
    return adder(*[(_of_callable(obj), obj) for obj in objs])


Replaceable = types.FunctionType | types.BuiltinFunctionType | types.MethodDescriptorType


def substitute(original: object, fn: types.FunctionType) -> None:
    """Let traced code call ``fn`` where the program calls ``original``."""
    try:
        theirs, own = inspect.signature(original), inspect.signature(fn)  # type: ignore[arg-type]
    except ValueError:
        pass  # functions in C often have none
    else:
        if [(p.name, p.kind) for p in theirs.parameters.values()] != [
            (p.name, p.kind) for p in own.parameters.values()
        ]:
            raise TypeError(f"{fn.__name__}{own} has other parameters than {theirs}")

    _of_callable(original)[original] = traced(fn)
    _BY_NAME.clear()


def closure(code: types.CodeType) -> Callable[[Closure], Closure]:
    """Register ``fn(tx, cell, args, kwargs)`` for calls of functions with this code, where
    ``cell(name)`` is the content of a cell."""

    def register(fn: Closure) -> Closure:
        CLOSURES[id(code)] = fn
        return fn

    return register


def constructor(*classes: type) -> Callable[[F], F]:
    """Register ``fn(tx, *args, **kwargs)`` for calls of classes."""
    return adder(*[(CLASSES, cls) for cls in classes])


def method(cls: type, *names: str) -> Callable[[F], F]:
    """Register ``fn(tx, self, *args, **kwargs)`` for methods of a builtin type."""
    return adder(*[(METHODS, (cls, name)) for name in names])


def traced(replacement: object) -> Implementation:
    """An implementation that traces ``replacement``, a Python function of the same behaviour."""

    def implementation(tx: Trace, /, *args: Value, **kwargs: Value) -> Value:
        return tx.builder.wrap_new(replacement).call(tx, args, kwargs)

    return implementation


def traced_method(cls: type, name: str, replacement: Callable[..., object]) -> None:
    """Trace ``replacement`` where the program calls a C method of a builtin type."""

    def implementation(tx: Trace, self: Value, /, *args: Value) -> Value:
        return tx.builder.wrap_new(replacement).call(tx, [self, *args], {})

    method(cls, name)(implementation)


def find(obj: object) -> Implementation | None:
    """The implementation for a callable, or None. A second copy of a C module has functions of its
    own, which are found by module and name."""
    try:
        found = BUILTINS.get(obj) or FUNCTIONS.get(obj)
    except TypeError:
        return None  # not hashable
    if found is None and isinstance(obj, types.BuiltinFunctionType):
        if not _BY_NAME:
            for known, fn in BUILTINS.items():
                if isinstance(known, types.BuiltinFunctionType):
                    _BY_NAME[known.__module__, known.__qualname__] = fn
        return _BY_NAME.get((obj.__module__, obj.__qualname__))
    return found


_BY_NAME: dict[tuple[str | None, str], Implementation] = {}


def find_method(owner: type | None, receiver: Value, name: str) -> Implementation | None:
    """The implementation of a C method for a receiver; ``owner`` is the class that defines it."""
    for base in () if owner is None else owner.__mro__:
        found = METHODS.get((base, name))
        if found is not None and (base is not object or owner is object or name not in _COPYING):
            return found
    if owner is object or owner is type or issubclass(receiver.python_type(), type):
        return None
    for base in receiver.python_type().__mro__:
        found = METHODS.get((base, name))
        if found is not None and (base is not object or name not in _COPYING):
            return found
    return None


_COPYING = ("__reduce__", "__reduce_ex__", "__getstate__")  # a class's own are not like object's


def invoke(tx: Trace, fn: Implementation, obj: object, args: Args, kwargs: Kwargs) -> Value | None:
    """Call an implementation; arguments that do not fit raise what CPython raises."""
    if (error := misfit(tx, fn, args, kwargs)) is not None:
        raise wrong_arguments(tx, obj, args, kwargs, error)
    return fn(tx, *args, **kwargs)


def misfit(tx: Trace, fn: Implementation, args: Args, kwargs: Kwargs) -> TypeError | None:
    """What is wrong with the arguments for an implementation, if anything is."""
    if (arity := _ARITY.get(fn)) is None:
        arity = _ARITY[fn] = _arity(fn)
    if kwargs or not arity.least <= len(args) <= arity.most:
        try:
            arity.signature.bind(tx, *args, **kwargs)
        except TypeError as e:
            return e
    return None


class _Arity(NamedTuple):
    """How many positional arguments an implementation takes besides ``tx``."""

    signature: inspect.Signature
    least: int
    most: int


def _arity(fn: Implementation) -> _Arity:
    signature = inspect.signature(fn)
    least = most = -1  # ``tx`` does not count
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            most = sys.maxsize
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if parameter.default is parameter.empty:
                least = sys.maxsize  # always bind
        elif parameter.kind is not parameter.VAR_KEYWORD:
            most += 1
            least += parameter.default is parameter.empty
    return _Arity(signature, least, most)


_IN_C = (types.BuiltinFunctionType, type)
_MADE_ALONE = (range, slice, enumerate, object, super)  # making one does nothing else


def wrong_arguments(
    tx: Trace, obj: object, args: Args, kwargs: Kwargs, error: TypeError
) -> Exception:
    """The TypeError for arguments that an implementation does not take: CPython's own where the
    real callable also refuses them, else a break."""
    known = [tx.interp.try_concrete(a) for a in args]
    if isinstance(obj, types.MethodDescriptorType | types.WrapperDescriptorType) and args:
        if (refusal := _refused(tx, obj, args, kwargs)) is not None:
            return refusal
    if (
        callable(obj)
        and tx.interp.UNKNOWN not in known
        and (obj in _MADE_ALONE or not isinstance(obj, _IN_C) or is_pure(obj))
    ):
        try:
            inspect.signature(obj).bind(*args, **kwargs)
        except (TypeError, ValueError):
            try:
                obj(*known, **dict.fromkeys(kwargs))
            except TypeError as e:
                return tx.interp.host_error(e)
    if callable(obj):
        try:
            inspect.signature(obj).bind(*args, **kwargs)
        except TypeError as e:
            try:
                obj(*known, **dict.fromkeys(kwargs))  # it does not get to run
            except TypeError as own:
                return tx.interp.host_error(own)
            return tx.interp.host_error(e)
        except ValueError:
            return tx.interp.error(TypeError, str(error))
    return Unsupported("opaque-call", what=f"{getattr(obj, '__name__', obj)} with these arguments")


def _refused(
    tx: Trace,
    method: types.MethodDescriptorType | types.WrapperDescriptorType,
    args: Args,
    kwargs: Kwargs,
) -> Exception | None:
    """The TypeError with which a method of a builtin container refuses the arguments: it is asked
    over a container of its own."""
    if method.__objclass__ not in (list, dict, set, frozenset, tuple, collections.deque):
        return None
    if (found := tx.interp.known(args[1:], kwargs)) is None:
        return None
    try:
        method(method.__objclass__(), *found[0], **found[1])
    except TypeError as e:
        return tx.interp.host_error(e)
    except Exception:  # noqa: BLE001 - of an empty container
        return None
    return None


# --- purity ----------------------------------------------------------------------------------

_PURE_MODULES = {"math", "cmath", "_operator", "operator", "_struct", "unicodedata", "_bisect"}
_PURE_MODULES |= {"_sre", "_string", "binascii", "zlib", "_json"}
_PURE_BUILTINS = "abs ascii bin chr compile divmod format hash hex len max min oct ord pow repr"
_PURE_BUILTINS += " round sorted sum"
_PURE: set[object] = {
    *(getattr(builtins, name) for name in _PURE_BUILTINS.split()),
    str.maketrans, bytes.fromhex, float.fromhex, int.from_bytes, re.escape, os.fspath,
    inspect.cleandoc, string.capwords, codecs.encode, codecs.decode,
}  # fmt: skip
# Methods called on a class: constructors from text or numbers. Not ``datetime.now()``.
_PURE_OF_CLASSES = frozenset(
    "maketrans fromhex from_bytes fromisoformat fromordinal fromisocalendar combine strptime "
    "from_float from_decimal from_number mro __subclasscheck__ __instancecheck__ __or__ __ror__ "
    "__prepare__ __eq__ __ne__ __hash__ __repr__ __str__ __format__".split()
)
_IMPURE = frozenset(("insort", "insort_left", "insort_right", "pack_into"))
_IMPURE_OF_CLASSES = frozenset(("__new__", "__init__", "__setattr__", "__delattr__"))
IMMUTABLE = (
    re.Pattern, re.Match, pathlib.PurePath, datetime.date, datetime.time, datetime.timedelta,
    fractions.Fraction, Decimal, uuid.UUID, operator.attrgetter, operator.itemgetter,
    operator.methodcaller,
)  # fmt: skip


def is_pure(obj: object, cls: type | None = None) -> bool:
    """Whether a call depends only on its arguments (and the class ``cls``, for a method of a
    class) and has no effect."""
    if cls is not None:
        names = vars(type) if issubclass(cls, type) else vars(object)
        name = getattr(obj, "__name__", "")
        return name in _PURE_OF_CLASSES or (name in names and name not in _IMPURE_OF_CLASSES)
    if isinstance(obj, types.BuiltinFunctionType):
        owner = obj.__self__
        if isinstance(owner, types.ModuleType) and owner.__name__ in _PURE_MODULES:
            return obj.__name__ not in _IMPURE
        if isinstance(owner, type) and owner in (str, bytes, int, float, complex):
            return True
    try:
        return obj in _PURE or obj in vars(math).values() or obj in vars(cmath).values()
    except TypeError:
        return False
