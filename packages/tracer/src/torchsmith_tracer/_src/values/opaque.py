"""Objects that the tracer does not look into: every use is a graph break that names them."""

from __future__ import annotations

import operator
import types
import weakref

from torch import fx
from torchsmith_guards import CallSource, PinnedSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.marks import is_allowed, why_disabled
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, RealObject, Value
from torchsmith_tracer._src.values.constants import ConstantValue

TYPE_EXPRESSIONS = (types.UnionType, types.GenericAlias)  # ``int | None``, ``list[int]``
_ITERATORS = frozenset(
    (zip, enumerate, *map(type, (iter([]), reversed([]), iter(()), iter(range(0)))))
)
_BUILTIN = (list, dict, set, frozenset, tuple)  # which keep no ``__orig_class__``


class OpaqueValue(RealObject):
    """An existing object that can be passed around and compared by identity, nothing else."""

    __slots__ = ()
    obj: object

    def describe(self) -> str:
        is_proxy = type(self.obj) in weakref.ProxyTypes
        name = None if is_proxy else getattr(self.obj, "__qualname__", None)
        if isinstance(name, str):
            return name
        where = f" `{self.source.expr}`" if self.source is not None else ""
        return f"object{where} of type {type(self.obj).__qualname__}"

    def is_constant(self) -> bool:
        return isinstance(self.obj, TYPE_EXPRESSIONS) and isinstance(self.source, PinnedSource)

    def as_constant(self) -> object:
        return self.obj if self.is_constant() else super().as_constant()

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        if isinstance(self.obj, types.GenericAlias) and self.obj.__origin__ in _BUILTIN:
            return self.getattr(tx, "__origin__").call(tx, args, kwargs)
        if is_allowed(self.obj):
            assert callable(self.obj)
            return tx.graph.call_function(self.obj, args, kwargs)
        raise Unsupported("opaque-call", what=f"{self.describe()}{why_disabled(self.obj)}")

    def iter(self, tx: Trace) -> Value:
        return self if type(self.obj) in _ITERATORS else super().iter(tx)

    def getattr(self, tx: Trace, name: str) -> Value:
        if name == "__class__" and type(self.obj) not in weakref.ProxyTypes:
            return tx.interp.type_of(self)
        part = type(self.obj) is property and name in ("fget", "fset", "fdel")
        if (part or issubclass(type(self.obj), TYPE_EXPRESSIONS)) and self.source is not None:
            return tx.interp.hosted(tx.world.computed, self.obj, self.source, name)
        raise Unsupported("opaque-attribute", what=name, object=self.describe())

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        if op == "or_" and issubclass(type(self.obj), TYPE_EXPRESSIONS):
            known = other.obj if isinstance(other, OpaqueValue) else tx.interp.try_concrete(other)
            if known is not tx.interp.UNKNOWN:
                both = (known, self.obj) if reflected else (self.obj, known)
                return tx.interp.fold(operator.or_, *both)
        raise Unsupported("unsupported-slot", what=f"{op} on {self.describe()}")

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if issubclass(type(self.obj), TYPE_EXPRESSIONS) and op in ("eq", "ne"):
            if not isinstance(other, OpaqueValue) or type(other.obj) is not type(self.obj):
                return None
            return tx.interp.const((self.obj == other.obj) == (op == "eq"))
        if type(self.obj).__eq__ is object.__eq__ and op in ("eq", "ne"):
            return None  # by identity
        raise Unsupported("unsupported-slot", what=f"{op} on {self.describe()}")

    def reconstruct(self, cg: Emitter) -> str:
        return cg.bound(self.obj, type(self.obj).__name__)


class ReferenceValue(OpaqueValue):
    """An existing weak reference: what it refers to is asked anew at each call."""

    __slots__ = ()

    def call(self, tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        if args or kwargs or self.source is None:
            return super().call(tx, args, kwargs)
        assert isinstance(self.obj, weakref.ReferenceType)
        return tx.builder.wrap(self.obj(), CallSource(self.source))

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op not in ("eq", "ne") or not issubclass(other.python_type(), weakref.ReferenceType):
            return None
        mine, theirs = self.call(tx, (), {}), tx.interp.call(other, [])
        if tx.interp.is_none(mine) or tx.interp.is_none(theirs):
            return None  # the dead are compared by identity
        return tx.interp.compare(op, mine, theirs)

    def hash_key(self, tx: Trace) -> object:
        return tx.interp.user_key(self)

    def users_hash(self, tx: Trace) -> Value:
        """That of the referent, while it lives."""
        referent = self.call(tx, (), {})
        if tx.interp.is_none(referent):
            raise Unsupported("opaque-call", what="hash() of a dead weak reference")
        return ConstantValue(tx.interp.hash_of(referent))


class GraphObject(Value):
    """A function that an operator returned: it exists in the graph only."""

    __slots__ = ("node",)
    cls = types.FunctionType

    def __init__(self, node: fx.Node) -> None:
        super().__init__(None)
        self.node = node

    def as_proxy(self) -> fx.Node:
        return self.node
