"""``functools.partial`` and the getters of ``operator`` made by traced code."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchsmith_tracer._src.effects.journal import DELETED
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtin_object import BuiltinObject
from torchsmith_tracer._src.values.containers import TupleValue

if TYPE_CHECKING:
    from torchsmith_tracer._src.codegen.emitter import Emitter
    from torchsmith_tracer._src.trace import Trace


class PartialValue(BuiltinObject):
    """``functools.partial(func, *args, **keywords)``."""

    __slots__ = ("args", "func", "keywords")

    def __init__(self, func: Value, args: Sequence[Value], keywords: dict[str, Value]) -> None:
        self.source = None
        self.func = func
        self.args = list(args)
        self.keywords = keywords

    def python_type(self) -> type:
        return functools.partial

    def describe(self) -> str:
        return f"partial of {self.func.describe()}"

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        return self.func.call(tx, [*self.args, *args], {**self.keywords, **kwargs})

    def call_target(
        self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]
    ) -> tuple[Value, Sequence[Value], dict[str, Value]]:
        return self.func, [*self.args, *args], {**self.keywords, **kwargs}

    def getattr(self, tx: Trace, name: str) -> Value:
        stored = tx.journal.load_attr(self, name)
        if stored is not None and stored is not DELETED:
            return stored  # type: ignore[return-value]
        if name == "func":
            return self.func
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return tx.interp.dict(self.keywords)
        return super().getattr(tx, name)

    def setattr(self, tx: Trace, name: str, value: Value) -> None:
        tx.journal.store_attr(self, name, value)

    def hash_key(self, tx: Trace) -> object:
        return tx.interp.identity_key(self)

    def reconstruct(self, cg: Emitter) -> None:
        cg.load_callable(functools.partial, "partial")
        for value in (self.func, *self.args, *self.keywords.values()):
            cg.load(value)
        names = tuple(self.keywords)
        cg.call(1 + len(self.args) + len(names), names)


class GetterValue(BuiltinObject):
    """``operator.itemgetter``, ``attrgetter`` or ``methodcaller``."""

    __slots__ = ("args", "cls", "kwargs")

    def __init__(self, cls: type, args: Sequence[Value], kwargs: dict[str, Value]) -> None:
        self.source = None
        self.cls = cls
        self.args = list(args)
        self.kwargs = kwargs

    def python_type(self) -> type:
        return self.cls

    def call(self, tx: Trace, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) != 1 or kwargs:
            name = self.cls.__name__
            raise tx.interp.error(TypeError, f"{name} expected 1 argument, got {len(args)}")
        return get(tx, self.cls, args[0], self.args, self.kwargs)

    def reconstruct(self, cg: Emitter) -> None:
        cg.load_callable(self.cls, self.cls.__name__)
        for value in (*self.args, *self.kwargs.values()):
            cg.load(value)
        cg.call(len(self.args) + len(self.kwargs), tuple(self.kwargs))


def get(tx: Trace, cls: type, obj: Value, args: Sequence[Value], kwargs: dict[str, Value]) -> Value:
    """What a getter of class ``cls`` made with ``args`` gives for ``obj``."""
    if cls is operator.methodcaller:
        name = str(tx.interp.concrete(args[0]))
        return obj.getattr(tx, name).call(tx, args[1:], kwargs)
    results: list[Value] = []
    for key in args:
        if cls is operator.itemgetter:
            results.append(obj.getitem(tx, key))
            continue
        value = obj
        for part in str(tx.interp.concrete(key)).split("."):
            value = value.getattr(tx, part)
        results.append(value)
    return results[0] if len(results) == 1 else TupleValue(results)
