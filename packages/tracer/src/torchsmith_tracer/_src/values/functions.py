"""Functions, cells, bound methods and builtin callables."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchsmith_guards import AttrSource, ClosureSource, ItemSource, PinnedSource, ResultSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.frames.code import names_in
from torchsmith_tracer._src.frames.library import is_library
from torchsmith_tracer._src.values.base import Args, Kwargs, RealObject, Value
from torchsmith_tracer._src.values.builtin_object import (
    BuiltinObject,
    HasInstanceDict,
    method_of_type,
)
from torchsmith_tracer._src.values.constants import COMPARE, ConstantValue, bool_value

if TYPE_CHECKING:
    from torchsmith_guards import Source

    from torchsmith_tracer._src.emitter import Emitter
    from torchsmith_tracer._src.trace import Trace
    from torchsmith_tracer._src.values.namespaces import NamespaceValue


def _is_empty(cell: types.CellType) -> bool:
    return cell == types.CellType()  # contents are not compared with none


class CellValue(Value):
    """A closure cell. ``contents`` is None while empty or not yet read.

    Args:
        contents: what the cell holds, for cells born while tracing.
        obj: the real cell, if it exists already.
        source: where the cell object itself is (not its contents).
        contents_source: where its contents are; default ``source.cell_contents``.
    """

    __slots__ = ("_unread", "contents", "contents_source", "obj")
    cls = types.CellType

    def __init__(
        self,
        contents: Value | None = None,
        obj: types.CellType | None = None,
        source: Source | None = None,
        contents_source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.contents = contents
        self.obj = obj
        self.contents_source = contents_source
        if contents_source is None and source is not None:
            self.contents_source = AttrSource(source, "cell_contents")
        self._unread = obj is not None and contents is None

    def describe(self) -> str:
        return "a closure cell"

    def load(self, tx: Trace) -> Value | None:
        """The contents, or None when the cell is empty."""
        if self._unread:
            assert self.obj is not None
            assert self.contents_source is not None, "a real cell has a source"
            if _is_empty(self.obj):
                place = self.source or PinnedSource(self.obj)
                tx.builder.wrap(True, ResultSource(place, _is_empty))
                return None
            # Not kept: a rollback removes the guards that wrapping has installed, and the
            # builder has its own memory.
            return tx.builder.wrap(self.obj.cell_contents, self.contents_source)
        return self.contents

    def store(self, tx: Trace, value: Value | None) -> None:
        """Set (None: empty) the contents."""
        old, unread = self.contents, self._unread

        def undo() -> None:
            self.contents, self._unread = old, unread

        if self.source is None and self.obj is None:
            tx.journal.record(undo)
            if tx.journal.watch is not None:
                tx.journal.watch.append(self)
        else:
            tx.journal.mutate(self, undo)
        self.contents, self._unread = value, False

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "cell_contents":
            if (value := self.load(tx)) is None:
                raise tx.interp.error(ValueError, "Cell is empty")
            return value
        return super().getattr(tx, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        if name != "cell_contents":
            super().setattr(tx, name, value)
        self.store(tx, value)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if not isinstance(other, CellValue):
            return None
        mine, theirs = self.load(tx), other.load(tx)
        if mine is None or theirs is None:  # an empty one is less
            return bool_value(COMPARE[op](mine is not None, theirs is not None))
        return tx.interp.compare(op, mine, theirs)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(types.CellType) if self.obj is None else cg.bound(self.obj, "cell")

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.obj is None and self.contents is not None:
            cg.set_attr(self, "cell_contents", self.contents)


class FunctionValue(HasInstanceDict, Value):
    """A Python function, existing (``fn``) or made by traced code (``fn`` None).

    Attributes:
        fn: the real function or None.
        code: its code object.
        globals: the namespace it reads.
        closure: its cells, one for each of ``code.co_freevars``.
        defaults: positional defaults, last parameters first filled as in CPython; None: none.
        kwdefaults: keyword-only defaults by name.
    """

    __slots__ = tuple(
        "_defaults _kwdefaults annotations closure code fn globals name qualname".split()
    )
    cls = types.FunctionType

    def __init__(
        self,
        code: types.CodeType,
        globals: NamespaceValue,
        closure: Sequence[CellValue] = (),
        defaults: Sequence[Value] | None = None,
        kwdefaults: dict[str, Value] | None = None,
        fn: types.FunctionType | None = None,
        source: Source | None = None,
    ) -> None:
        super().__init__(source)
        self.fn = fn
        self.code = code
        self.globals = globals
        self.closure = tuple(closure)
        self._defaults = tuple(defaults) if defaults else None
        self._kwdefaults = kwdefaults
        self.annotations: Value | None = None
        self.name = code.co_name if fn is None else fn.__name__
        self.qualname = code.co_qualname if fn is None else fn.__qualname__

    def reads(self) -> set[str]:
        """The globals that it reads, unless it is a library's."""
        return set() if is_library(self.code) else names_in(self.code, "LOAD_GLOBAL", "LOAD_NAME")

    @classmethod
    def existing(cls, tx: Trace, fn: types.FunctionType, source: Source) -> FunctionValue:
        """The value of a real function; its cells are shared with other functions of the trace.
        The caller has installed the guard on the code object."""
        cells = tuple(
            tx.interp.cell(cell, PinnedSource(cell))
            if isinstance(source, PinnedSource)
            else tx.interp.cell(
                cell, ItemSource(AttrSource(source, "__closure__"), i), ClosureSource(source, i)
            )
            for i, cell in enumerate(fn.__closure__ or ())
        )
        return cls(fn.__code__, tx.interp.namespace(fn.__globals__), cells, fn=fn, source=source)

    def describe(self) -> str:
        return f"function {self.qualname}"

    def default(self, tx: Trace, i: int) -> Value | None:
        """The default of positional parameter number ``i``, or None."""
        if self.fn is None:
            table = self._defaults
            offset = self.code.co_argcount - len(table or ())
            return table[i - offset] if table is not None and i >= offset else None
        return tx.world.default(self.fn, self.source, i - self.code.co_argcount)

    def kwdefault(self, tx: Trace, name: str) -> Value | None:
        """The default of a keyword-only parameter, or None."""
        if self.fn is None:
            return None if self._kwdefaults is None else self._kwdefaults.get(name)
        return tx.world.default(self.fn, self.source, name)

    def set_defaults(self, defaults: tuple[Value, ...]) -> None:
        """Positional defaults of a function that is being made."""
        self._defaults = defaults or None

    def set_kwdefaults(self, kwdefaults: dict[str, Value]) -> None:
        """Keyword-only defaults of a function that is being made."""
        self._kwdefaults = kwdefaults

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return tx.interp.call_python(self, args, kwargs, resumable=False)

    def getattr(self, tx: Trace, name: str) -> Value:
        stored = tx.journal.load_attr(self, name)
        if stored is not None and stored is not DELETED:
            return stored  # type: ignore[return-value]
        if name == "__call__":
            return self
        if stored is None:
            if (found := self._attribute(tx, name)) is not None:
                return found
        raise self.no_attribute(tx, name)

    def _attribute(self, tx: Trace, name: str) -> Value | None:
        const = tx.interp.const
        if name in ("__name__", "__qualname__") and self.fn is None:
            return ConstantValue(self.name if name == "__name__" else self.qualname)
        if name == "__code__":
            return ConstantValue(self.code)
        if name == "__globals__":
            return self.globals
        if name == "__closure__":
            return tx.interp.tuple(self.closure) if self.closure else const(None)
        if name == "__class__":
            return const(types.FunctionType)
        if name == "__dict__":
            return tx.interp.instance_dict(self)
        method = method_of_type(tx, self, name)
        if method is not None and (self.fn is None or name not in self.fn.__dict__):
            self.guard_missing(tx, name)
            return method
        if self.fn is not None:
            assert self.source is not None
            return tx.world.attribute(self.fn, self.source, name)
        if name == "__defaults__":
            return tx.interp.tuple(self._defaults) if self._defaults else const(None)
        if name == "__kwdefaults__":
            table = self._kwdefaults
            return tx.interp.dict(table) if table else const(None)
        if name == "__annotations__":
            if self.annotations is None:
                self.annotations = tx.interp.dict({})
            return self.annotations
        if name == "__doc__":
            consts = self.code.co_consts
            return const(consts[0] if consts and isinstance(consts[0], str) else None)
        if name == "__module__":
            return const(self.globals.obj.get("__name__"))
        if name == "__type_params__":
            return tx.interp.tuple(())
        if hasattr(types.FunctionType, name):
            raise Unsupported("opaque-attribute", what=f"{name} of {self.describe()}")
        return None

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        needs = _PER_FUNCTION.get(name, value.python_type())
        if name in _FIXED or needs not in (None, value.python_type()):
            super().setattr(tx, name, value)  # natively: it may be refused
        if name == "__defaults__" and self.fn is None:
            tx.journal.assign(self, "_defaults", tuple(tx.interp.unpack(value)))
            return
        if name in ("__name__", "__qualname__"):
            tx.journal.assign(self, name.strip("_"), tx.interp.concrete(value))
        tx.journal.store_attr(self, name, value)
        if name in ("__defaults__", "__kwdefaults__"):
            raise Unsupported("unsupported-slot", what=f"setting {name} of {self.describe()}")

    def delattr(self, tx: Trace, name: str) -> None:
        if name in _FIXED or name in _PER_FUNCTION:
            super().delattr(tx, name)  # natively: it may be refused, or leave a default
        self.getattr(tx, name)
        tx.journal.store_attr(self, name, DELETED)

    # --- ``__dict__`` ------------------------------------------------------------------------
    @property
    def obj(self) -> types.FunctionType | None:
        """The real function, if any."""
        return self.fn

    real = obj

    def instance_names(self, tx: Trace) -> list[str]:
        own = tx.world.instance_names(self.fn, self.source)
        return [n for n in super().instance_names(tx) if n in own or n not in _PER_FUNCTION]

    def hash_key(self, tx: Trace) -> object:
        return self.fn if self.fn is not None else tx.interp.identity_key(self)

    def reconstruct(self, cg: Emitter) -> str:
        if self.fn is not None:
            return cg.bound(self.fn, self.name)
        code, name = cg.const(self.code, "code"), cg.const(self.name)
        defaults = cg.tuple_of(self._defaults) if self._defaults else "None"
        closure = cg.tuple_of(self.closure) if self.closure else "None"
        return cg.call(types.FunctionType, code, self.globals, name, defaults, closure)

    def reconstruct_fill(self, cg: Emitter) -> None:
        if self.fn is not None:
            return
        if self._kwdefaults:
            pairs = [(cg.const(name), default) for name, default in self._kwdefaults.items()]
            cg.set_attr(self, "__kwdefaults__", cg.dict_of(pairs))
        if self.annotations is not None:
            cg.set_attr(self, "__annotations__", self.annotations)
        if self.qualname != self.name:
            cg.set_attr(self, "__qualname__", cg.const(self.qualname))


_FIXED = ("__code__", "__globals__", "__closure__", "__builtins__", "__class__", "__dict__")
# What the type keeps itself, and what it takes there.
_PER_FUNCTION = dict[str, type | None](__name__=str, __qualname__=str, __doc__=None)
_PER_FUNCTION |= {"__module__": None, "__annotations__": dict, "__defaults__": tuple}
_PER_FUNCTION |= {"__kwdefaults__": dict, "__type_params__": tuple}


class BoundMethodValue(BuiltinObject):
    """A bound method: ``func`` called with ``self_value`` first."""

    __slots__ = ("func", "self_value")
    cls = types.MethodType

    def __init__(self, func: Value, self_value: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.func = func
        self.self_value = self_value

    def describe(self) -> str:
        return f"method {getattr(self.func, 'qualname', '?')}"

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return self.func.call(tx, [self.self_value, *args], kwargs)

    def call_target(self, tx: Trace, args: Args, kwargs: Kwargs) -> tuple[Value, Args, Kwargs]:
        return self.func, [self.self_value, *args], kwargs

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__self__":
            return self.self_value
        if name == "__func__":
            return self.func
        if name == "__call__":
            return self
        if name == "__class__":
            return tx.interp.const(types.MethodType)
        return method_of_type(tx, self, name) or self.func.getattr(tx, name)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op not in ("eq", "ne") or not isinstance(other, BoundMethodValue):
            return None
        same = tx.interp.is_same(self.self_value, other.self_value)
        same = same and tx.interp.is_same(self.func, other.func)
        return ConstantValue(same == (op == "eq"))

    def hash_key(self, tx: Trace) -> object:
        return ("method", tx.interp.identity_key(self.self_value), self.func.hash_key(tx))

    def reconstruct(self, cg: Emitter) -> str:
        played = getattr(self.self_value.base_value(), "played", None)
        original = played(self.func) if played is not None else None
        if original is None:
            return cg.call(types.MethodType, self.func, self.self_value)
        return cg.call(original.__get__, self.self_value)


class BuiltinMethodValue(BuiltinObject):
    """A method or slot of a builtin type bound to a value: ``[].append``, ``x.__len__``.

    ``descriptor`` is the type's attribute (method descriptor, slot wrapper, ...) or None when the
    method is known by its name only.
    """

    __slots__ = ("descriptor", "name", "owner", "self_value")

    def __init__(
        self, self_value: Value, name: str, owner: type | None = None, descriptor: object = None
    ) -> None:
        super().__init__(None)
        self.self_value = self_value
        self.name = name
        self.descriptor = descriptor
        self.owner = owner

    def python_type(self) -> type:
        if isinstance(self.descriptor, types.WrapperDescriptorType):
            return types.MethodWrapperType
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"method {self.name!r} of {self.self_value.describe()}"

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return tx.interp.call_builtin_method(
            self.self_value, self.name, self.owner, self.descriptor, args, kwargs
        )

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__self__":
            return self.self_value
        if name in ("__name__", "__qualname__"):
            if name == "__name__":
                return ConstantValue(self.name)
            this = getattr(self.self_value, "obj", None)
            owner = this if isinstance(this, type) else self.self_value.python_type()
            return ConstantValue(f"{owner.__qualname__}.{self.name}")
        if name == "__call__":
            return self
        if name == "__doc__":
            return ConstantValue(getattr(self.descriptor, "__doc__", None))
        return super().getattr(tx, name)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op not in ("eq", "ne") or not isinstance(other, BuiltinMethodValue):
            return None
        same = self.name == other.name and tx.interp.is_same(self.self_value, other.self_value)
        return ConstantValue(same == (op == "eq"))

    def hash_key(self, tx: Trace) -> object:
        return ("builtin method", tx.interp.identity_key(self.self_value), self.name)

    def reconstruct(self, cg: Emitter) -> str:
        cls = self.self_value.python_type()
        found = next(
            (b.__dict__[self.name] for b in cls.__mro__ if self.name in b.__dict__), self.descriptor
        )
        if self.descriptor is not None and found is not self.descriptor:
            # ``super().name``: plain access would find the override.
            return cg.call_of(f"{cg.bound(self.descriptor, 'method')}.__get__", [self.self_value])
        return cg.attr(self.self_value, self.name)


class BuiltinValue(RealObject):
    """A callable implemented in C or replaced as a whole: ``len``, ``math.sqrt``, ``dict.get``.

    What a call does is found by identity in ``values.builtins.registry``.
    """

    __slots__ = ()

    def describe(self) -> str:
        module = getattr(self.obj, "__module__", None)
        name = getattr(self.obj, "__qualname__", None) or repr(self.obj)
        if "pybind11_" in name:
            name = self.obj.__name__
        return f"{module}.{name}" if module not in (None, "builtins") else str(name)

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        return tx.interp.call_builtin(self, args, kwargs)

    def getattr(self, tx: Trace, name: str) -> Value:
        return self if name == "__call__" else tx.interp.fold(getattr, self.obj, name)

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        wrapper = op in ("eq", "ne") and isinstance(self.obj, types.MethodWrapperType)
        if wrapper and isinstance(other, BuiltinValue):
            return ConstantValue((self.obj == other.obj) is (op == "eq"))
        return super().richcompare(tx, op, other)

    def hash_key(self, tx: Trace) -> object:
        return self.obj

    def reconstruct(self, cg: Emitter) -> str:
        return cg.bound(self.obj, getattr(self.obj, "__name__", "fn"))
