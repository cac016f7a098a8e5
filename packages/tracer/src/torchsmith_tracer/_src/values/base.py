"""``Value``: what the interpreter computes with. One method per CPython slot.

A value stands for one Python object of the traced program. It knows its ``Source`` (how to fetch
that object again when the compiled code runs) or has none because the object is born in the traced
code. Values dispatch on CPython's slots; a type that does not implement a slot inherits the
default here, which is a graph break that names the slot and the type.

``tx`` is the ``Trace``: everything that one compilation shares (graph, guards, journal, builder,
stack of frames). Slots return values, raise ``Unsupported`` (graph break) or ``ObservedException``
(the traced program raised).
"""

from __future__ import annotations

from collections.abc import Sequence
from types import BuiltinMethodType
from typing import Any, Generic, TypeVar

import torch
from torch import fx
from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace


def name_in_messages(cls: type) -> str:
    """What C calls a class in messages: one of C mostly with its module."""
    base: Any = list if issubclass(cls, int) else int
    try:
        base.__new__(cls)  # nothing else shows the name
    except TypeError as e:
        return str(e).partition("(")[2].partition("):")[0]
    return cls.__name__


class Value:
    """Base of all symbolic values. Identity is Python identity: one traced object, one Value."""

    __slots__ = ("__weakref__", "source")
    cls: type  # that of the object, where all values of a kind have one or each keeps its own
    computes = False  # a constant whose operators are not Python's own, whatever the other operand

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    # --- facts -----------------------------------------------------------------------------
    def python_type(self) -> type:
        """The type of the object that this value stands for (``type(obj)``)."""
        return self.cls

    @property
    def type_name(self) -> str:
        """What the type is called, for messages."""
        return name_in_messages(self.python_type())

    def is_constant(self) -> bool:
        """True when ``as_constant`` gives the object itself without a guard being missing."""
        return False

    def as_constant(self) -> object:
        """The Python object, for values fully known while tracing."""
        raise Unsupported("not-constant", what=self.describe())

    def base_value(self) -> Value:
        """For an instance of a user subclass of a builtin type (``class D(dict)``): the value of
        the builtin part; else the value itself."""
        return self

    def as_proxy(self) -> fx.Node | object:
        """What to put into an fx node's arguments: a node, a constant, or a nest of these."""
        raise Unsupported("not-a-graph-argument", what=self.describe())

    def describe(self) -> str:
        """Short text in the user's terms, for messages: ``list of 3``, ``function foo``."""
        return f"object of type {self.type_name}"

    # --- tp_call, attributes ---------------------------------------------------------------
    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        raise self._no(tx, "call")

    def call_target(
        self, tx: Trace, args: Args, kwargs: Kwargs
    ) -> tuple[Value, Args, Kwargs] | None:
        """Another callable and its arguments to which calling this value comes down entirely (a
        bound method's function, a hook-less module's ``forward``), or None. Call instructions
        follow it, so that a break below can resume in every frame."""
        return None

    def getattr(self, tx: Trace, name: str) -> Value:
        raise self._no(tx, f"attribute {name!r} of")

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        raise self._no(tx, f"setting attribute {name!r} of")

    def delattr(self, tx: Trace, name: str) -> None:
        raise self._no(tx, f"deleting attribute {name!r} of")

    # --- mapping and sequence slots --------------------------------------------------------
    def as_index(self, tx: Trace, device: torch.device) -> Value:
        """What to index a tensor on ``device`` by in the graph, where that is not the value."""
        return self

    def getitem(self, tx: Trace, key: Value) -> Value:
        raise self._no(tx, "subscript of")

    def setitem(self, tx: Trace, key: Value, value: Value) -> None:
        raise self._no(tx, "item assignment on")

    def delitem(self, tx: Trace, key: Value) -> None:
        raise self._no(tx, "item deletion on")

    def length(self, tx: Trace) -> Value:
        raise self._no(tx, "len() of")

    def contains(self, tx: Trace, item: Value) -> Value:
        raise self._no(tx, "`in` on")

    # --- iteration -------------------------------------------------------------------------
    def iter(self, tx: Trace) -> Value:
        raise self._no(tx, "iteration over")

    def next(self, tx: Trace) -> Value:
        """The next item; raises ``ObservedException`` of StopIteration at the end."""
        raise self._no(tx, "next() on")

    # --- numbers, comparison, conversion ---------------------------------------------------
    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        """``op`` is the operator module's name (``add``, ``iadd``, ``matmul`` ...). Returns None
        for NotImplemented; the caller then tries the other operand."""
        return None

    def unary(self, tx: Trace, op: str) -> Value:
        """``op``: ``neg``, ``pos``, ``invert``."""
        raise self._no(tx, f"unary {op} on")

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        """``op``: ``lt le eq ne gt ge``. None for NotImplemented."""
        return None

    def bool(self, tx: Trace) -> bool:
        """Truth value, known while tracing; a data-dependent one raises ``Unsupported``."""
        kind = self.python_type()
        if hasattr(kind, "__bool__") or hasattr(kind, "__len__"):
            raise self._no(tx, "truth value of")
        return True

    def hash_key(self, tx: Trace) -> object:
        """A hashable stand-in such that equal keys are equal traced objects (for dict and set)."""
        own: object = self.python_type().__hash__
        if own is not object.__hash__:
            raise self._no(tx, "hash of")
        return tx.interp.identity_key(self)

    # --- generated code --------------------------------------------------------------------
    def reconstruct(self, cg: Emitter) -> str:
        """The expression that makes the object, for values that are not loaded by a source."""
        raise Unsupported("cannot-rebuild", what=self.describe())

    def reconstruct_fill(self, cg: Emitter) -> None:
        """Second phase for containers and objects that may hold themselves: fill the object that
        ``reconstruct`` made (``cg.expr(self)``)."""

    # --- context managers ------------------------------------------------------------------
    # ``__enter__``/``__exit__`` are looked up by ``getattr`` and called; no own slots.

    def no_attribute(self, tx: Trace, name: str) -> ObservedException:
        """The error of reading an attribute that is not there."""
        message = f"{self.titled()} has no attribute {name!r}"
        return tx.interp.error(AttributeError, message, name=name, obj=self)

    def titled(self) -> str:
        """How messages about attributes call the object."""
        return f"{self.type_name!r} object"

    def _no(self, tx: Trace, slot: str) -> Unsupported:
        return Unsupported("unsupported-slot", what=f"{slot} {self.describe()}")


Args = Sequence[Value]
Kwargs = dict[str, Value]
_V = TypeVar("_V", bound=Value)


class MethodOf(Value, Generic[_V]):
    """A method of ``owner``, bound, that is known by its name."""

    __slots__ = ("name", "owner")
    cls: type = BuiltinMethodType

    def __init__(self, owner: _V, name: str) -> None:
        super().__init__(None)
        self.owner = owner
        self.name = name

    def describe(self) -> str:
        return f"method {self.name} of a {self.owner.describe()}"

    def getattr(self, tx: Trace, name: str) -> Value:
        return self.owner if name == "__self__" else super().getattr(tx, name)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.attr(self.owner, self.name)


_slot_names: dict[type, tuple[str, ...]] = {}


def slot_names(kind: type[Value]) -> tuple[str, ...]:
    """What values of a class hold, in the order in which the class and its bases list it."""
    known = _slot_names.get(kind)
    if known is None:
        names = (n for base in kind.__mro__ for n in base.__dict__.get("__slots__", ()))
        known = _slot_names[kind] = tuple(dict.fromkeys(n for n in names if n != "__weakref__"))
    return known


class RealObject(Value):
    """A value that has the object itself, ``obj``."""

    __slots__ = ("obj",)

    def __init__(self, obj: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def python_type(self) -> type:
        return type(self.obj)
