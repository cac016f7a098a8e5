"""Calling: Python functions, classes, builtin callables and methods of builtin types."""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable, Sequence
from enum import EnumMeta
from typing import cast

from torchsmith_guards import AttrSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.code import decode
from torchsmith_tracer._src.frames.frame import Frame
from torchsmith_tracer._src.frames.library import is_library_module
from torchsmith_tracer._src.marks import is_allowed
from torchsmith_tracer._src.values import numpy_calls, numpy_scalars
from torchsmith_tracer._src.values.abstract.arguments import bind_arguments
from torchsmith_tracer._src.values.abstract.marked import call_marked
from torchsmith_tracer._src.values.abstract.part import Part
from torchsmith_tracer._src.values.base import Value, name_in_messages
from torchsmith_tracer._src.values.builtins import (  # noqa: F401 - they fill the tables
    cached_functions,
    combinatorics,
    constructors,
    functional,
    functions,
    library,
    loggers,
    make_class,
    methods_exceptions,
    methods_iterators,
    methods_objects,
    methods_sequences,
    methods_tables,
    printing,
    random_state,
    registry,
    twin_classes,
    twins_io,
    twins_itertools,
    weak,
)
from torchsmith_tracer._src.values.builtins.slots import call_slot
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.construction import construct, make_twin
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.functions import BuiltinValue, FunctionValue
from torchsmith_tracer._src.values.generators import GeneratorValue
from torchsmith_tracer._src.values.lookup import Found, bind, lookup
from torchsmith_tracer._src.values.namespaces import NamespaceValue
from torchsmith_tracer._src.values.opaque import OpaqueValue
from torchsmith_tracer._src.values.python_instances import (
    EnumValue,
    NewObjectValue,
    ObjectValue,
    users_method,
)
from torchsmith_tracer._src.values.tensor_objects import TENSOR_CLASSES, TensorPart
from torchsmith_tracer._src.values.torch_fn import call_torch
from torchsmith_tracer._src.values.twins import TwinValue, twin_of

_GENERATOR = 0x20
_ASYNC = 0x80 | 0x100 | 0x200
_BOUND = (types.BuiltinFunctionType, types.MethodWrapperType)
_IMMUTABLE = (int, float, complex, str, bytes, tuple, frozenset, range, slice, type(None), bool)


class Calls(Part):
    """What calling a value does."""

    def call(
        self, fn: Value, args: Sequence[Value], kwargs: dict[str, Value] | None = None
    ) -> Value:
        """``fn(*args, **kwargs)``."""
        return fn.call(self.tx, args, kwargs or {})

    def call_from(
        self, frame: Frame, fn: Value, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """A call instruction of ``frame``: Python functions, also behind bound methods, modules
        and ``__call__``, are entered so that a break inside can resume in every frame."""
        resumable = frame.resumable
        while not isinstance(fn, FunctionValue):
            if (target := fn.call_target(self.tx, args, kwargs)) is None:
                return fn.call(self.tx, args, kwargs)
            fn, args, kwargs = target
        resumable = resumable and not fn.globals.own
        return self.call_python(fn, args, kwargs, resumable=resumable, directly=True)

    def call_python(
        self,
        fn: FunctionValue,
        args: Sequence[Value],
        kwargs: dict[str, Value],
        *,
        resumable: bool,
        directly: bool = False,
    ) -> Value:
        """Inline a Python function."""
        if (real := fn.fn) is not None:
            if (handler := registry.FUNCTIONS.get(real)) is not None:
                result = registry.invoke(self.tx, handler, real, args, kwargs)
                if result is not None:
                    return result
            if (made := registry.CLOSURES.get(id(fn.code))) is not None:
                return made(self.tx, self._cell_of(fn), args, kwargs)
            if real.__dict__ or weakref.getweakrefcount(real):
                if (marked := call_marked(self.tx, fn, real, args, kwargs)) is not None:
                    return marked
        code = fn.code
        variables = bind_arguments(self.tx, fn, args, kwargs)
        cells = dict(zip(code.co_freevars, fn.closure, strict=True)) if fn.closure else {}
        flags = code.co_flags
        if flags & (_GENERATOR | _ASYNC):
            frame = Frame(decode(code), fn.globals, variables, cells, fn=fn)
            generator = GeneratorValue(frame, fn, (list(args), dict(kwargs)))
            stores = self.tx.journal.attrs.get(fn, {})
            named = ((name, stores.get(name)) for name in ("__name__", "__qualname__"))
            generator.names = {name: value for name, value in named if isinstance(value, Value)}
            return generator
        frame = Frame(decode(code), fn.globals, variables, cells, fn=fn, resumable=resumable)
        frame.entered_directly = directly
        return self.tx.loop.run(frame)

    def _cell_of(self, fn: FunctionValue) -> Callable[[str], Value]:
        """The content of a function's cell, by the name of its variable."""
        cells = dict(zip(fn.code.co_freevars, fn.closure, strict=True))
        return lambda name: cells[name].getattr(self.tx, "cell_contents")

    def call_class(self, cls: ClassValue, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        """``type.__call__``, metaclass overrides and builtin classes included."""
        if (handler := registry.CLASSES.get(cls.obj)) is not None:
            result = registry.invoke(self.tx, handler, cls.obj, args, kwargs)
            if result is not None:
                return result
        if numpy_scalars.is_number_type(cls.obj):
            if (known := self.interp.known(args, kwargs)) is None:
                raise Unsupported("opaque-call", what=cls.describe())
            return numpy_scalars.compute(self.tx, cls.obj, *known[0], **known[1])
        meta = type(cls.obj)
        if twin_of(cls.obj) is not None:
            return make_twin(self.tx, cls.obj, args, kwargs)
        if meta is not type:
            found = lookup(self.tx, meta, "__call__")
            if found is not None and found.owner is not type:
                return self._call_metaclass(cls, found, args, kwargs)
        return construct(self.tx, cls, args, kwargs)

    def _call_metaclass(
        self, cls: ClassValue, found: Found, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        if is_library_module(found.owner.__module__) and cls.recipe is None:
            known = self.interp.known(args, kwargs)
            if found.owner.__module__ == "enum" and known is not None:
                if len(known[0]) != 1 or known[1]:
                    return self.interp.fold(cls.obj, *known[0], **known[1])
                if users_method(self.tx, cls.obj, "__new__", "_missing_") is None:
                    try:
                        return self.interp.fold(cls.obj, *known[0])
                    finally:  # flags make members while they are looked up
                        self.tx.world.enum_value(cast("EnumMeta", cls.obj), known[0][0])
        method = self.interp.special_method(cls, "__call__")
        assert method is not None
        return method.call(self.tx, args, kwargs)

    def instantiate(self, cls: ClassValue, storage: Value | None = None) -> NewObjectValue:
        """A bare new instance."""
        return NewObjectValue(self.tx.journal, cls.obj, cls, storage)

    def call_builtin(
        self, fn: BuiltinValue, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> Value:
        """A callable implemented in C (or replaced as a whole)."""
        obj = fn.obj
        tx = self.tx
        if (handler := registry.find(obj)) is not None:
            if (result := registry.invoke(tx, handler, obj, args, kwargs)) is not None:
                return result
        for arg in args:
            hook = getattr(arg, "call_builtin", None)
            answer: Value | None = None if hook is None else hook(tx, obj, args, kwargs)
            if answer is not None:
                return answer
        if isinstance(obj, types.MethodDescriptorType | types.WrapperDescriptorType):
            return self._call_descriptor(obj, args, kwargs)
        owner = getattr(obj, "__self__", None)
        if type(owner).__module__ == "pybind11_builtins":
            owner = None  # a record of the function itself
        if isinstance(obj, _BOUND) and not isinstance(owner, types.ModuleType | type(None)):
            receiver, kind = (
                self._owner(fn, owner),
                owner if isinstance(owner, type) else type(owner),
            )
            if receiver is not None:
                return self.call_builtin_method(receiver, obj.__name__, kind, obj, args, kwargs)
        if is_allowed(obj):
            assert callable(obj)
            return tx.graph.call_function(obj, args, kwargs)
        numeric = numpy_scalars.is_function(obj)
        if numeric or registry.is_pure(obj):
            if (known := self.interp.known(args, kwargs)) is not None:
                assert callable(obj)
                if numeric:
                    with contextlib.suppress(numpy_scalars.MakesArray):
                        return numpy_scalars.compute(tx, obj, *known[0], **known[1])
                    return numpy_calls.call(tx, obj, args, kwargs)
                result = self.interp.fold(obj, *known[0], **known[1])
                # An object with a state of its own would be shared by all calls.
                if result.source is None:
                    return result
        if numpy_calls.name_of(obj) is not None:
            return numpy_calls.call(tx, obj, args, kwargs)
        raise Unsupported("opaque-call", what=fn.describe())

    def _owner(self, fn: BuiltinValue, owner: object) -> Value | None:
        """The object that a method in C is bound to; None where its content is not known."""
        if isinstance(owner, type):  # dict.fromkeys, object.__new__ ...
            return self.interp.class_value(owner)
        if fn.source is not None:
            value = self.tx.builder.wrap(owner, AttrSource(fn.source, "__self__"))
            return None if isinstance(value, OpaqueValue) else value
        return self.tx.builder.wrap_new(owner) if isinstance(owner, _IMMUTABLE) else None

    def _call_descriptor(
        self,
        obj: types.MethodDescriptorType | types.WrapperDescriptorType,
        args: Sequence[Value],
        kwargs: dict[str, Value],
    ) -> Value:
        """``dict.get(d, k)``: an unbound method of a builtin type."""
        owner, name = obj.__objclass__, obj.__name__
        if not args:
            message = f"unbound method {owner.__name__}.{name}() needs an argument"
            raise self.interp.error(TypeError, message)
        receiver = args[0]
        if not issubclass(receiver.python_type(), owner):
            kind, given = name_in_messages(owner), receiver.type_name
            message = f"descriptor {name!r} requires a {kind!r} object but received a {given!r}"
            if isinstance(obj, types.MethodDescriptorType):
                applied = f"doesn't apply to a {given!r} object"
                message = f"descriptor {name!r} for {kind!r} objects {applied}"
            raise self.interp.error(TypeError, message)
        return self.call_builtin_method(receiver, name, owner, obj, args[1:], kwargs)

    def call_builtin_method(
        self,
        receiver: Value,
        name: str,
        owner: type | None,
        descriptor: object,
        args: Sequence[Value],
        kwargs: dict[str, Value],
    ) -> Value:
        """A C-level method: the registered one, else the slot of that name, else folded."""
        tx = self.tx
        if isinstance(receiver, TensorPart) and owner in TENSOR_CLASSES:
            return call_torch(tx, descriptor, [receiver, *args], kwargs)
        base = receiver.base_value()
        if isinstance(base, TwinValue):
            played = lookup(tx, base.cls, name)
            if played is not None and played.owner is not object:
                method = bind(tx, played, receiver, self.interp.type_of(receiver), name)
                return method.call(tx, args, kwargs)
        handler = registry.find_method(owner, base, name)
        if handler is not None and not isinstance(base, NamespaceValue):  # whose table is not known
            result = registry.invoke(tx, handler, descriptor, [receiver, *args], kwargs)
            if result is not None:
                return result
        general = owner is object or owner is type
        # A C class that has no model here: its slots would lead back to this method.
        opaque = base is receiver and isinstance(receiver, ObjectValue) and not general
        texts = name in ("__repr__", "__str__") and not args
        if texts and isinstance(base, EnumValue) and owner is not None and not general:
            # Not what the member's class says.
            return self.interp.fold(getattr(owner, name), base.value)
        if not opaque and not kwargs:
            result = call_slot(tx, name, receiver if general else base, list(args))
            if result is not None:
                if result is base is not receiver and isinstance(base, TupleValue):
                    return base.like(base.items)
                return receiver if result is base else result
        real = self._foldable(base)
        if isinstance(base, ClassValue) and registry.is_pure(descriptor, base.obj):
            real = base.as_constant()
        if real is not self.interp.UNKNOWN:
            if (known := self.interp.known(args, kwargs)) is not None:
                return self.interp.fold(getattr(real, name), *known[0], **known[1])
        what = f"method {name!r} of {receiver.describe()}"
        raise Unsupported("opaque-call", what=what)

    def _foldable(self, value: Value) -> object:
        """The host object when its methods have no effect on it."""
        if isinstance(value, ConstantValue):
            return value.value
        if isinstance(value, ObjectValue):
            if isinstance(value.obj, registry.IMMUTABLE):
                return value.obj
            return self.interp.UNKNOWN
        if issubclass(value.python_type(), _IMMUTABLE):
            return self.interp.try_concrete(value)
        return self.interp.UNKNOWN
