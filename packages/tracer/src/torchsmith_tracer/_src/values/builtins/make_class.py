"""``class`` statements and three-argument ``type()`` inside traced code.

The class becomes a stand-in: a real class with the same name, bases and slots, whose attributes
are values in the journal. Instances, lookups, ``super`` and ``isinstance`` work on it; only
handing the class out of the compiled code is a break.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import builtins
import sys
import types
from collections.abc import Callable, Sequence

from torchsmith_guards import CallSource, GuardKind, PinnedSource

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.frames.code import decode
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.frames.library import is_library_module
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin, method
from torchsmith_tracer._src.values.classes import (
    STAND_INS,
    ClassValue,
    DescriptorValue,
    bare_class,
    is_left_out,
)
from torchsmith_tracer._src.values.constants import FALSE, NONE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.functions import CellValue, FunctionValue
from torchsmith_tracer._src.values.lookup import C_DATA, lookup, lookup_in
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import ObjectValue

_METACLASSES = (type, abc.ABCMeta)


@builtin(builtins.__build_class__)
def _build_class(tx: Trace, body: Value, name: Value, /, *bases: Value, **kwargs: Value) -> Value:
    if not isinstance(body, FunctionValue):
        raise Unsupported("opaque-call", what="__build_class__ without a function")
    text = str(tx.interp.concrete(name))
    meta, own_kwargs = _own_metaclass(tx, bases, kwargs)
    namespace: Value = DictValue()
    prepared = None if meta is None else lookup(tx, meta.obj, "__prepare__")
    if meta is not None and prepared is not None and prepared.owner is not type:
        prepare = meta.getattr(tx, "__prepare__")
        namespace = tx.interp.call(prepare, [name, TupleValue(bases)], own_kwargs)
        if lookup(tx, namespace.python_type(), "__getitem__") is None:
            message = f"__prepare__() must return a mapping, not {namespace.type_name}"
            raise tx.interp.error(TypeError, f"{meta.obj.__name__}.{message}")
    frame = Frame(
        decode(body.code),
        body.globals,
        {},
        dict(zip(body.code.co_freevars, body.closure, strict=True)),
        fn=body,
    )
    frame.names = namespace
    cell = tx.loop.run(frame)
    cls: Value
    if meta is not None:
        cls = tx.interp.call(meta, [name, TupleValue(bases), namespace], own_kwargs)
    else:
        assert isinstance(namespace, DictValue)
        cls = make_class(tx, text, bases, namespace, kwargs)
    if isinstance(cell, CellValue) and isinstance(cls, ClassValue):
        if (found := cell.load(tx)) is None:
            message = f"__class__ not set defining {text!r} as {cls.obj!r}. "
            message += "Was __classcell__ propagated to type.__new__?"
            raise tx.interp.error(RuntimeError, message)
        if found is not cls:
            message = f"__class__ set to {found.as_constant()!r} defining {text!r} as {cls.obj!r}"
            raise tx.interp.error(TypeError, message)
    return cls


def _own_metaclass(
    tx: Trace, bases: Sequence[Value], kwargs: dict[str, Value]
) -> tuple[ClassValue | None, dict[str, Value]]:
    """The metaclass of a ``class`` statement where its Python code has to run, and the keywords
    without it."""
    found = {type(base.obj) for base in bases if isinstance(base, ClassValue)}
    rest = dict(kwargs)
    given = rest.pop("metaclass", None)
    if isinstance(given, ClassValue):
        found.add(given.obj)
    if found.issubset(_METACLASSES):
        return None, rest
    meta = next((m for m in found if all(issubclass(m, other) for other in found)), None)
    if meta is None or not _traceable(tx, meta):
        return None, rest  # ``_metaclass`` says why
    return tx.interp.class_value(meta), rest


def _traceable(tx: Trace, meta: type) -> bool:
    """Whether a stand-in can have the metaclass: what the tracer itself asks of classes must not
    run the program's code. Those of the standard library keep books in C or of their own."""
    own = [base for base in meta.__mro__ if base not in _METACLASSES and base is not object]
    return not any(
        is_library_module(base.__module__)
        or not _ASKED.isdisjoint(vars(base))
        or lookup_in(tx, (base,), "mro") is not None
        for base in own
    )


_ASKED = frozenset(
    "__eq__ __hash__ __getattribute__ __setattr__ __instancecheck__ __subclasscheck__ mro".split()
)


def make_class(
    tx: Trace, name: str, bases: Sequence[Value], namespace: DictValue, kwargs: dict[str, Value]
) -> ClassValue:
    """A new class from its name, bases, namespace and class keywords."""
    kwargs = dict(kwargs)
    given = kwargs.pop("metaclass", None)
    real_bases: list[type] = []
    for base in bases:
        if not isinstance(base, ClassValue):
            raise Unsupported("opaque-call", what=f"class {name} with base {base.describe()}")
        real_bases.append(base.obj)
    meta = _metaclass(tx, name, given, real_bases)
    entries = {str(tx.interp.concrete(k)): v for k, v in namespace.table.values()}
    for key in _KEPT_BY_TYPE & entries.keys():  # storing it is another thing
        raise Unsupported("opaque-call", what=f"class {name} with a {key} of its own")
    values = {key: namespace.get_str(tx, key) for key in entries}
    table: dict[str, Value] = {k: v for k, v in values.items() if v is not None}
    cell = table.pop("__classcell__", None)
    if "__module__" not in table and tx.frames:
        if (module := tx.frames[-1].globals.lookup(tx, "__name__")) is not None:
            table["__module__"] = module
    stand_in = _stand_in(tx, name, meta, real_bases, table)
    tx.world.born.add(stand_in)
    cls = tx.interp.class_value(stand_in)
    cls.recipe = (tx.interp.class_value(meta), tuple(bases), kwargs)
    tx.interp.patch_class(cls)
    for key, value in table.items():
        tx.journal.store_attr(cls, key, _implicit(key, value))
    if "__eq__" in table and "__hash__" not in table:
        tx.journal.store_attr(cls, "__hash__", NONE)
    if isinstance(cell, CellValue):
        cell.store(tx, cls)
    elif cell is not None:
        message = f"__classcell__ must be a nonlocal cell, not {cell.python_type()!r}"
        raise tx.interp.error(TypeError, message)
    for key, value in table.items():
        if isinstance(value, DescriptorValue):
            value.name = key
        elif not isinstance(value, FunctionValue | ConstantValue | ClassValue):
            _set_name(tx, value, cls, key)
    found = lookup_in(tx, stand_in.__mro__[1:], "__init_subclass__")
    if found is not None and found.owner is not object:
        parent = tx.interp.super(cls, cls)
        tx.interp.call(parent.getattr(tx, "__init_subclass__"), [], kwargs)
    elif kwargs:
        raise tx.interp.error(TypeError, f"{name}.__init_subclass__() takes no keyword arguments")
    return cls


_KEPT_BY_TYPE = {name for name, attr in vars(type).items() if isinstance(attr, C_DATA)}
_KEPT_BY_TYPE |= {"__class__"}
_KEPT_BY_TYPE -= {"__doc__", "__module__", "__qualname__", "__annotations__", "__type_params__"}


def _set_name(tx: Trace, value: Value, cls: ClassValue, key: str) -> None:
    try:
        tx.interp.call_special(value, "__set_name__", cls, ConstantValue(key))
    except ObservedException as e:
        text = f"Error calling __set_name__ on {value.type_name!r} instance {key!r}"
        text += f" in {cls.obj.__name__!r}"
        if sys.version_info >= (3, 12):
            tx.interp.call(e.exc.getattr(tx, "add_note"), [ConstantValue(text)])
            raise
        error = tx.interp.error(RuntimeError, text)
        for name in ("__cause__", "__context__"):
            error.exc.setattr(tx, name, e.exc)
        raise error from None


def _metaclass(tx: Trace, name: str, given: Value | None, bases: list[type]) -> type:
    candidates = [type(base) for base in bases]
    if given is not None:
        if not isinstance(given, ClassValue):
            raise Unsupported("opaque-call", what=f"class {name} with metaclass {given.describe()}")
        candidates.append(given.obj)
    meta: type = type
    for candidate in candidates:
        if type.__subclasscheck__(meta, candidate):
            meta = candidate
    if meta not in _METACLASSES and not _traceable(tx, meta):
        raise Unsupported("opaque-call", what=f"class {name} with metaclass {meta.__name__}")
    return meta


def _stand_in(tx: Trace, name: str, meta: type, bases: list[type], table: dict[str, Value]) -> type:
    """The real class: same layout, and every attribute present under its name."""
    namespace: dict[str, object] = {}
    for key, value in table.items():
        known = tx.interp.try_concrete(value)
        if known is not tx.interp.UNKNOWN and not isinstance(value, ClassValue):
            namespace[key] = known
        elif isinstance(value, FunctionValue):
            namespace[key] = _placeholder(tx, value, key)
        elif isinstance(value, DescriptorValue):
            parts = [v for v in value.parts.values() if isinstance(v, FunctionValue)]
            abstract = [v for v in parts if _is_abstract(tx, v)]
            namespace[key] = property(_placeholder(tx, abstract[0], key) if abstract else None)
        elif isinstance(value, ObjectValue) and issubclass(meta, abc.ABCMeta):
            args = (value, ConstantValue("__isabstractmethod__"), FALSE)
            marked = tx.interp.truth(tx.interp.call(tx.interp.const(getattr), args))
            namespace[key] = is_left_out if marked else object()
        elif key not in ("__init_subclass__", "__set_name__", "__class_getitem__"):
            namespace[key] = object()
    namespace.pop("__init_subclass__", None)
    namespace.pop("__new__", None)
    namespace.pop("__classcell__", None)
    if any(_hooks(base) for base in bases):
        # The bases' own hook is traced, not run here.
        bases = [_plain(base) for base in bases]
    if any(issubclass(base, type) for base in bases):  # the host must not call what it defines
        namespace = {k: v for k, v in namespace.items() if not isinstance(v, types.FunctionType)}
    made = tx.interp.hosted(bare_class, meta, name, tuple(bases), namespace)
    STAND_INS[id(made)] = made
    return made


def _hooks(base: type) -> bool:
    hook = getattr(base, "__init_subclass__", None)
    return isinstance(getattr(hook, "__func__", None), types.FunctionType)


def _plain(base: type) -> type:
    if _hooks(base):
        raise Unsupported("opaque-call", what=f"subclass of {base.__name__}, which has a hook")
    return base


def _is_abstract(tx: Trace, value: FunctionValue) -> bool:
    mark = value.instance_get(tx, "__isabstractmethod__")
    return mark is not None and tx.interp.truth(mark)


def _placeholder(tx: Trace, value: FunctionValue, name: str) -> Callable[..., object]:
    def stand_in(*args: object, **kwargs: object) -> object:
        raise Unsupported("opaque-call", what=f"method {name!r} of a class made while tracing")

    stand_in.__name__ = name
    if _is_abstract(tx, value):
        stand_in.__isabstractmethod__ = True  # type: ignore[attr-defined]
    if value.annotations is None:
        stand_in.__annotations__ = {}
    return stand_in


_IMPLICIT = {
    "__new__": staticmethod,
    "__init_subclass__": classmethod,
    "__class_getitem__": classmethod,
}


def _implicit(name: str, value: Value) -> Value:
    kind = _IMPLICIT.get(name)
    if kind is None or not isinstance(value, FunctionValue):
        return value
    return DescriptorValue(kind, {"__func__": value})


@method(type, "__new__")
def _type_new(tx: Trace, cls: Value, /, *args: Value, **kwargs: Value) -> Value:
    if len(args) != 4:
        raise Unsupported("opaque-call", what="type.__new__ with these arguments")
    namespace = args[3].base_value()
    if not isinstance(namespace, DictValue) or not isinstance(args[0], ClassValue):
        raise Unsupported("opaque-call", what="type.__new__ with these arguments")
    bases = tx.interp.unpack(args[2])
    name = str(tx.interp.concrete(args[1]))
    return make_class(tx, name, bases, namespace, {**kwargs, "metaclass": args[0]})


# --- abstract base classes -----------------------------------------------------------------------


@builtin(_abc._abc_register)
def _register(tx: Trace, cls: Value, other: Value, /) -> Value:
    """The classes are registered now, since what follows asks for it, and again by the compiled
    code, which may have classes of its own."""
    if not isinstance(cls, ClassValue) or not isinstance(other, ClassValue):
        raise tx.interp.error(TypeError, "Can only register classes")
    result = tx.interp.fold(_abc._abc_register, cls.obj, other.obj)
    tx.journal.call_later(_register_class, cls, other)
    return result


def _register_class(cls: abc.ABCMeta, other: type) -> None:
    cls.register(other)


@builtin(_abc._abc_init)
def _init(tx: Trace, cls: Value, /) -> Value | None:
    return NONE if isinstance(cls, ClassValue) and cls.recipe is not None else None


@builtin(_abc.get_cache_token)
def _cache_token(tx: Trace) -> Value:
    token = _abc.get_cache_token()
    changed = (isinstance(e, tuple) and e[0] is _register_class for e in tx.journal.effects)
    if not any(changed):  # else it is the program itself that changes it
        source = CallSource(PinnedSource(_abc.get_cache_token))
        why = "the classes registered with abstract ones"
        tx.builder.guard(source, GuardKind.CONSTANT, token, why)
    return ConstantValue(token)
