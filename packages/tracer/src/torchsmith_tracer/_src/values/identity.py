"""What ``id()`` gives: a number that is only good for comparing and as a key."""

from __future__ import annotations

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.facts.world import is_single
from torchsmith_tracer._src.frames.library import is_library
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.constants import ConstantValue, bool_value


class IdentityValue(BuiltinObject):
    """``id(target)``. The number itself stays unknown: it differs between calls."""

    __slots__ = ("target",)
    cls = int

    def __init__(self, target: Value) -> None:
        self.source = None
        self.target = target

    def describe(self) -> str:
        return "a number from id()"

    def richcompare(self, tx: Trace, op: str, other: Value) -> Value | None:
        if op in ("eq", "ne") and isinstance(other, IdentityValue):
            return bool_value(tx.interp.is_same(self.target, other.target) == (op == "eq"))
        if op not in ("eq", "ne"):
            return self.known(tx).richcompare(tx, op, other)
        number = self._number(tx)
        return None if number is None else ConstantValue(number).richcompare(tx, op, other)

    def binary(self, tx: Trace, op: str, other: Value, *, reflected: bool = False) -> Value | None:
        other = other.known(tx) if isinstance(other, IdentityValue) else other
        return self.known(tx).binary(tx, op, other, reflected=reflected)

    def format(self, tx: Trace, spec: str) -> Value:
        return (
            tx.interp.fold(format, self.known(tx).value, spec) if spec else tx.interp.str_of(self)
        )

    def known(self, tx: Trace) -> ConstantValue:
        """The number, to compute with: not that of a tensor, which is another one at each call."""
        number = None if hasattr(self.target, "fake") else self._number(tx)
        if number is None:
            raise Unsupported("not-constant", what=self.describe())
        return ConstantValue(number)

    def hash_key(self, tx: Trace) -> object:
        number = self._number(tx)
        return ("id", tx.interp.identity_key(self.target)) if number is None else number

    def _number(self, tx: Trace) -> int | None:
        """The number itself, guarded, of an object that exists already."""
        obj = getattr(self.target, "real", None)
        obj = getattr(self.target, "obj", None) if obj is None else obj
        source = self.target.source
        if isinstance(self.target, ConstantValue) and not is_library(tx.frames[-1].info.code):
            obj = None if is_single(self.target.value) else self.target.value
        return None if obj is None or source is None else tx.world.identity(obj, source)

    def reconstruct(self, cg: Emitter) -> str:
        return cg.call(id, self.target)
