"""The functions of the ``builtins`` module."""

from __future__ import annotations

import _thread
import builtins
import operator
import types
import typing
import weakref
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torchsmith_guards import GuardKind, class_dict

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import VERSION, decode
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.frames.library import is_library, is_library_module
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import HasInstanceDict, PlainObject
from torchsmith_tracer._src.values.builtins.python_versions import protocol_members
from torchsmith_tracer._src.values.builtins.registry import builtin, method
from torchsmith_tracer._src.values.builtins.slots import attribute_name
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import (
    FALSE,
    NONE,
    ZERO,
    ConstantValue,
    bool_value,
    is_none,
    is_not_implemented,
)
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.functions import BoundMethodValue
from torchsmith_tracer._src.values.identity import IdentityValue
from torchsmith_tracer._src.values.iterators import CallableIterator
from torchsmith_tracer._src.values.lazy import realize
from torchsmith_tracer._src.values.lookup import NAMES, Found, disguises, in_python, lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.namespaces import DictNamespace, NamespaceValue, PyModuleValue
from torchsmith_tracer._src.values.python_instances import EnumValue, ObjectValue
from torchsmith_tracer._src.values.symnum import SymNumValue
from torchsmith_tracer._src.values.tensor import TensorValue
from torchsmith_tracer._src.values.torch_classes import number_builtin

builtin(len)(lambda tx, obj, /: obj.length(tx))


@builtin(iter)
def _iter(tx: Trace, obj: Value, sentinel: Value | None = None, /) -> Value:
    if sentinel is not None:
        if not tx.interp.truth(_callable(tx, obj)):
            return tx.interp.fold(iter, None, None)  # raises what CPython does
        return CallableIterator(obj, sentinel)
    return obj.iter(tx)


def _or_default(
    tx: Trace, read: Callable[[Trace], Value], error: type, default: Value | None
) -> Value:
    """What ``read`` gives, or a default, if there is one, where it raises ``error``."""
    try:
        return read(tx)
    except ObservedException as e:
        if default is not None and tx.interp.exception_matches(e.exc, error):
            return default
        raise


@builtin(next)
def _next(tx: Trace, it: Value, default: Value | None = None, /) -> Value:
    return _or_default(tx, it.next, StopIteration, default)


@builtin(callable)
def _callable(tx: Trace, obj: Value, /) -> Value:
    return bool_value(lookup(tx, obj.python_type(), "__call__") is not None)


builtin(id)(lambda tx, obj, /: IdentityValue(obj))


@builtin(_thread.get_ident)
def _get_ident(tx: Trace) -> Value:
    """A fact, but not where ``reprlib.recursive_repr`` compares it with numbers of its own."""
    code = tx.frames[-1].info.code
    own = is_library(code) and code.co_name == "wrapper"
    return IdentityValue(NONE) if own else tx.world.query(_thread.get_ident)


@builtin(hash)
def _hash(tx: Trace, obj: Value, /) -> Value:
    if isinstance(obj, TensorValue):
        found = lookup(tx, obj.cls, "__hash__")
        if found is not None and found.owner is torch.Tensor:
            return IdentityValue(obj)
    return tx.interp.shown_hash(obj, tx.interp.hash_of(obj))


builtin(repr)(lambda tx, obj, /: tx.interp.repr_of(obj))
builtin(ascii)(lambda tx, obj, /: tx.interp.convert(obj, "ascii"))
builtin(format)(lambda tx, obj, spec=None, /: tx.interp.format(obj, spec))


# --- numbers -----------------------------------------------------------------------------------


def _special(tx: Trace, obj: Value, name: str, message: str, *args: Value) -> Value | None:
    """A dunder method of an instance; None for other values, which fold or ask their hook."""
    if isinstance(obj, EnumValue):
        return obj.call_special(tx, name, *args)
    if not isinstance(obj, ObjectValue):
        return None
    if (result := tx.interp.call_special(obj, name, *args)) is None:
        raise tx.interp.error(TypeError, message.format(obj.cls.__name__))
    return result


@builtin(abs)
def _abs(tx: Trace, obj: Value, /) -> Value | None:
    found = _special(tx, obj, "__abs__", "bad operand type for abs(): {!r}")
    if found is None and isinstance(obj, ConstantValue):
        return tx.interp.fold(abs, obj.value)
    if found is None and _has(tx, obj, "__abs__"):
        return tx.interp.call(obj.getattr(tx, "__abs__"), [])
    return found


def _has(tx: Trace, obj: Value, name: str) -> bool:
    """Whether the class of a value without a hook for builtin functions has a method."""
    return lookup(tx, obj.python_type(), name) is not None and not hasattr(obj, "call_builtin")


@builtin(round)
def _round(tx: Trace, number: Value, ndigits: Value = NONE) -> Value | None:
    args = [] if tx.interp.is_none(ndigits) else [ndigits]
    message = "type {} doesn't define __round__ method"
    found = _special(tx, number, "__round__", message, *args)
    is_constant = isinstance(number, ConstantValue)
    if found is None and not is_constant and _has(tx, number, "__round__"):
        return tx.interp.call(number.getattr(tx, "__round__"), args)
    return found


def _digits(fn: Callable[[int], str]) -> None:
    builtin(fn)(lambda tx, obj, /: tx.interp.fold(fn, tx.interp.index(obj)))


for _fn in (hex, oct, bin):
    _digits(_fn)


@builtin(divmod)
def _divmod(tx: Trace, a: Value, b: Value, /) -> Value | None:
    if isinstance(a, ConstantValue) and isinstance(b, ConstantValue):
        return tx.interp.fold(divmod, a.value, b.value)
    if not all(issubclass(v.python_type(), int | float) for v in (a, b)):
        return tx.interp.binary("divmod", a, b)
    # Symbolic numbers: the two parts are computed in the graph.
    return TupleValue([tx.interp.binary("floordiv", a, b), tx.interp.binary("mod", a, b)])


@builtin(pow)
def _pow(tx: Trace, base: Value, exp: Value, mod: Value = NONE) -> Value | None:
    if tx.interp.is_none(mod):
        return tx.interp.binary("pow", base, exp)
    is_object = isinstance(base, ObjectValue)
    result = tx.interp.call_special(base, "__pow__", exp, mod) if is_object else None
    return None if result is None or is_not_implemented(result) else result


@builtin(sum)
def _sum(tx: Trace, iterable: Value, /, start: Value = ZERO) -> Value:
    if issubclass(start.python_type(), str | bytes):
        text = issubclass(start.python_type(), str)
        kind, join = ("strings", "''.join(seq)") if text else ("bytes", "b''.join(seq)")
        raise tx.interp.error(TypeError, f"sum() can't sum {kind} [use {join} instead]")
    total = start
    numbers: list[Any] = [start.value] if isinstance(start, ConstantValue) else []
    for item in tx.interp.each(iterable):
        if numbers and type(item) is ConstantValue and isinstance(item.value, int | float):
            numbers.append(item.value)  # the host adds them, with its rounding
            continue
        if numbers:
            total = tx.interp.fold(sum, numbers[1:], numbers[0])
            numbers = []
        total = tx.interp.binary("add", total, item)
    return tx.interp.fold(sum, numbers[1:], numbers[0]) if numbers else total


def _extreme(fn: Callable[..., object], op: str) -> None:
    name = fn.__name__

    @builtin(fn)
    def call(tx: Trace, *args: Value, key: Value = NONE, default: Value | None = None) -> Value:
        if not args:
            raise tx.interp.error(TypeError, f"{name} expected at least 1 argument, got 0")
        if len(args) == 1:
            items = tx.interp.each(args[0])
        elif default is None:
            items = iter(args)
        else:
            text = f"Cannot specify a default for {name}() with multiple positional arguments"
            raise tx.interp.error(TypeError, text)
        best: Value | None = None
        best_key: Value | None = None
        for item in items:
            item_key = item if tx.interp.is_none(key) else tx.interp.call(key, [item])
            if best is None or best_key is None:
                best, best_key = item, item_key
                continue
            chosen = None
            if tx.interp.is_none(key) and any(isinstance(v, SymNumValue) for v in (best, item)):
                chosen = number_builtin(tx, fn, [best, item], {})
            if chosen is not None:
                best = best_key = chosen
            elif tx.interp.truth(tx.interp.compare(op, item_key, best_key)):
                best, best_key = item, item_key
        if (best := best or default) is not None:
            return best
        why = "arg is an empty sequence" if VERSION < (3, 12) else "iterable argument is empty"
        raise tx.interp.error(ValueError, f"{name}() {why}")


_extreme(min, "lt")
_extreme(max, "gt")


# --- iterables ---------------------------------------------------------------------------------


def _has_item(tx: Trace, iterable: Value, truth: bool) -> bool:
    """Whether an item has this truth value; no item after it is asked for."""
    return any(tx.interp.truth(item) == truth for item in tx.interp.each(iterable))


builtin(any)(lambda tx, iterable, /: ConstantValue(_has_item(tx, iterable, True)))
builtin(all)(lambda tx, iterable, /: ConstantValue(not _has_item(tx, iterable, False)))


@dataclass(slots=True, eq=False)
class _SortKey:
    """Lets the host's sort compare values with the traced ``<``."""

    tx: Trace
    value: Value

    def __lt__(self, other: _SortKey) -> bool:
        return self.tx.interp.truth(self.tx.interp.compare("lt", self.value, other.value))


def sort(tx: Trace, items: list[Value], key: Value, reverse: Value) -> list[Value]:
    """``sorted(items, key=key, reverse=reverse)``."""
    down = tx.interp.truth(reverse)
    keys = items if tx.interp.is_none(key) else [tx.interp.call(key, [v]) for v in items]
    known = all(type(k) is ConstantValue for k in keys)
    hosts: list[Any] = [cast(Any, k).value if known else _SortKey(tx, k) for k in keys]
    order = tx.interp.hosted(sorted, range(len(items)), key=hosts.__getitem__, reverse=down)
    return [items[i] for i in order]


@builtin(sorted)
def _sorted(tx: Trace, iterable: Value, /, *, key: Value = NONE, reverse: Value = FALSE) -> Value:
    items = tx.interp.unpack(iterable)
    return ListValue(sort(tx, items, key, reverse))


# --- attributes and types ----------------------------------------------------------------------


@builtin(getattr)
def _getattr(tx: Trace, obj: Value, name: Value, default: Value | None = None, /) -> Value:
    text = attribute_name(tx, name)
    return _or_default(tx, lambda tx: obj.getattr(tx, text), AttributeError, default)


@builtin(hasattr)
def _hasattr(tx: Trace, obj: Value, name: Value, /) -> Value:
    missing = ConstantValue(None)
    return ConstantValue(_getattr(tx, obj, name, missing) is not missing)


@builtin(setattr)
def _setattr(tx: Trace, obj: Value, name: Value, value: Value, /) -> Value:
    obj.setattr(tx, attribute_name(tx, name), value)
    return NONE


@builtin(delattr)
def _delattr(tx: Trace, obj: Value, name: Value, /) -> Value:
    obj.delattr(tx, attribute_name(tx, name))
    return NONE


_UNIONS = (types.UnionType, type(typing.Union[int, str]))  # noqa: UP007 - the typing form


def flatten_classes(tx: Trace, classes: Value) -> list[Value]:
    """The classes of ``isinstance``'s second argument: tuples and unions taken apart."""
    if isinstance(classes, TupleValue):
        out: list[Value] = []
        for item in classes.unpack(tx):
            out += flatten_classes(tx, item)
        return out
    known = getattr(classes, "obj", None)
    if not isinstance(classes, ClassValue) and isinstance(known, _UNIONS):
        if classes.source is not None:
            tx.builder.guard(classes.source, GuardKind.CONSTANT, known, "classes of isinstance")
        args = typing.get_args(known)
        return [tx.interp.const(type(None) if a is None else a) for a in args]
    return [classes]


def is_instance(tx: Trace, obj: Value, cls: Value) -> bool:
    """``isinstance(obj, cls)`` for one class."""
    if not isinstance(cls, ClassValue):
        if isinstance(cls, ObjectValue) and tx.interp.special_method(cls, "__instancecheck__"):
            return _ask(tx, cls, "__instancecheck__", obj)
        known = tx.interp.try_concrete(cls)
        if isinstance(known, type):
            return tx.world.is_subclass(obj.python_type(), known)
        text = "isinstance() arg 2 must be a type, a tuple of types, or a union"
        raise tx.interp.error(TypeError, text)
    kind = obj.python_type()
    if kind is cls.obj:
        return True
    found = lookup(tx, type(cls.obj), "__instancecheck__")
    custom = getattr(obj, "isinstance_hook", None)
    if custom is not None and found is not None and found.owner is not type:
        if (verdict := custom(tx, cls.obj)) is not None:
            return bool(verdict)
    if _is_users(found):
        return _ask(tx, cls, "__instancecheck__", obj)
    _check_unchanged(tx, cls)
    members = sorted(protocol_members(cls.obj)) if _is_protocol(cls.obj) else []
    # Then no hook for subclasses is asked.
    plain = found is None or found.owner is type or _lists_data(tx, cls, members)
    if _is_subclass(tx, kind, cls.obj, plain=plain):
        return True
    if members and _follows(tx, obj, cls, members):
        return True
    if isinstance(obj, ObjectValue) and disguises(kind):
        shown = obj.getattr(tx, "__class__")
        return isinstance(shown, ClassValue) and _is_subclass(tx, shown.obj, cls.obj, plain=plain)
    if kind in weakref.ProxyTypes:
        raise Unsupported("opaque-call", what="isinstance() of a weak proxy")
    return False


def _is_users(found: Found | None) -> bool:
    """Whether a check of classes is in Python, and not one of those whose answers are known."""
    if not in_python(found) or found.owner in (ABCMeta, type(typing.Protocol)):
        return False
    module = found.owner.__module__
    return not (module.partition(".")[0] == "torch" and is_library_module(module))


_ASKED = {"__subclasshook__", "_is_protocol", "_is_runtime_protocol"}


def _check_unchanged(tx: Trace, cls: ClassValue) -> None:
    """What the library asks the class for is as the program has made it."""
    if not tx.journal.stores(cls).keys().isdisjoint(_ASKED):
        raise Unsupported("opaque-call", what=f"a check of {cls.describe()}, which was changed,")


def _ask(tx: Trace, cls: Value, name: str, about: Value) -> bool:
    answer = tx.interp.call_special(cls, name, about)
    assert answer is not None
    return tx.interp.truth(answer)


def _is_subclass(tx: Trace, kind: type, cls: type, *, plain: bool) -> bool:
    return cls in tx.world.mro(kind) if plain else tx.world.is_subclass(kind, cls)


def _is_protocol(cls: type) -> bool:
    flags = class_dict(cls)
    return bool(flags.get("_is_protocol")) and bool(flags.get("_is_runtime_protocol"))


def _lists_data(tx: Trace, protocol: ClassValue, members: list[str]) -> bool:
    """Whether a protocol lists more than methods."""
    found = (lookup(tx, protocol.obj, name) for name in members)
    return not all(listed is not None and callable(listed.attr) for listed in found)


def _follows(tx: Trace, obj: Value, protocol: ClassValue, members: list[str]) -> bool:
    """Whether ``obj`` has what a protocol lists, whoever gave it to the object; where the protocol
    has a method, None does not count."""
    for name in members:
        if not tx.interp.truth(_hasattr(tx, obj, ConstantValue(name))):
            return False
        listed = lookup(tx, protocol.obj, name)
        if listed and callable(listed.attr) and is_none(obj.getattr(tx, name)):
            return False
    return True


@builtin(isinstance)
def _isinstance(tx: Trace, obj: Value, classes: Value, /) -> Value:
    return bool_value(any(is_instance(tx, obj, c) for c in flatten_classes(tx, classes)))


@builtin(issubclass)
def _issubclass(tx: Trace, cls: Value, classes: Value, /) -> Value:
    if not isinstance(cls, ClassValue):
        raise tx.interp.error(TypeError, "issubclass() arg 1 must be a class")
    for other in flatten_classes(tx, classes):
        if not isinstance(other, ClassValue):
            text = "issubclass() arg 2 must be a class, a tuple of classes, or a union"
            raise tx.interp.error(TypeError, text)
        if _is_users(lookup(tx, type(other.obj), "__subclasscheck__")):
            holds = _ask(tx, other, "__subclasscheck__", cls)
        else:
            _check_unchanged(tx, other)
            holds = tx.world.is_subclass(cls.obj, other.obj)
        if holds:
            return ConstantValue(True)
    return ConstantValue(False)


@builtin(vars)
def _vars(tx: Trace, obj: Value | None = None, /) -> Value:
    if obj is None:
        return _locals(tx)
    missing = ConstantValue(None)
    found = _getattr(tx, obj, ConstantValue("__dict__"), missing)
    if found is missing:
        raise tx.interp.error(TypeError, "vars() argument must have __dict__ attribute")
    return found


@method(type, "__dir__")
def _type_dir(tx: Trace, cls: Value, /) -> Value:
    return tx.interp.const(list(_listed(tx, cast("ClassValue", cls).obj)))


def _listed(tx: Trace, cls: type) -> dict[str, None]:
    """The names in a class and its bases, in order."""
    tx.world.mro(cls)
    own = tx.journal.names(tx.interp.class_value(cls), tx.world.class_names(cls))
    names = {name: None for name in own if name not in NAMES}
    for base in cls.__bases__:
        names |= _listed(tx, base)
    return names


@builtin(dir)
def _dir(tx: Trace, obj: Value | None = None, /) -> Value:
    if obj is None:
        return tx.interp.const(sorted(_visible(tx)))
    method = tx.interp.special_method(obj, "__dir__") if isinstance(obj, PlainObject) else None
    if isinstance(method, BoundMethodValue):
        found = tx.interp.unpack(tx.interp.call(method, []))
        return ListValue(sort(tx, found, NONE, FALSE))
    if isinstance(obj, HasInstanceDict):
        own = obj.instance_names(tx)
        return tx.interp.const(sorted({*own, *_listed(tx, obj.python_type())}))
    if isinstance(obj, ClassValue):
        return tx.interp.const(sorted(_listed(tx, obj.obj)))
    if isinstance(obj, PyModuleValue):
        assert obj.source is not None
        return tx.world.query(dir, obj.obj)
    return tx.interp.fold(lambda: dir(obj.python_type()))


def _visible(tx: Trace) -> dict[str, Value]:
    frame = tx.frames[-1]
    out = {k: realize(tx, v) for k, v in frame.locals.items() if not k.startswith(".")}
    for name, cell in frame.cells.items():
        value = cell.load(tx)
        if value is not None and name not in out:
            out[name] = value
    return out


@builtin(locals)
def _locals(tx: Trace) -> Value:
    frame = tx.frames[-1]
    if frame.names is not None:
        return frame.names
    order = {name: i for i, name in enumerate(frame.info.code.co_varnames)}
    items = sorted(_visible(tx).items(), key=lambda kv: order.get(kv[0], len(order)))
    return tx.interp.dict(dict(items))


builtin(globals)(lambda tx: tx.frames[-1].globals)


@builtin(eval)
def _eval(tx: Trace, source: Value, globals: Value = NONE, locals: Value = NONE, /) -> Value:
    text = tx.interp.concrete(source)
    caller = tx.frames[-1]
    if isinstance(text, str):
        text = tx.interp.hosted(compile, text.lstrip(), "<string>", "eval")
    if not isinstance(text, types.CodeType):
        kind = type(text).__name__
        raise tx.interp.error(
            TypeError, f"eval() arg 1 must be a string, bytes or code object, not {kind}"
        )
    space, own = caller.globals, globals
    if isinstance(globals, NamespaceValue):
        space = globals
    elif isinstance(base := globals.base_value(), DictValue):
        space, own = DictNamespace(tx, base), base
    elif tx.interp.is_none(globals):
        own = _locals(tx)
    else:
        raise tx.interp.error(TypeError, f"eval() globals must be a dict, not {globals.type_name}")
    frame = Frame(decode(text), space)
    frame.names = own if tx.interp.is_none(locals) else locals
    return tx.loop.run(frame)


@builtin(builtins.__import__)
def _import(
    tx: Trace,
    name: Value,
    globals: Value | None = None,
    locals: Value | None = None,
    fromlist: Value | None = None,
    level: Value | None = None,
) -> Value:
    names = () if fromlist is None else tx.interp.concrete(fromlist)
    depth = 0 if level is None else tx.interp.concrete(level)
    space = tx.frames[-1].globals
    return tx.interp.import_module(str(tx.interp.concrete(name)), space, names, depth)


@builtin(operator.index)
def _index(tx: Trace, obj: Value, /) -> Value:
    if not isinstance(obj, ObjectValue | ConstantValue) and issubclass(obj.python_type(), int):
        return obj
    return ConstantValue(tx.interp.index(obj))
