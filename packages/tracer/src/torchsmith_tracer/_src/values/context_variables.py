"""``contextvars.ContextVar``: what a variable has in the caller's context is read and guarded.

What traced code sets and does not reset is set after the graph, in order, so that its tokens are
there for native code. What it resets again was never set.
"""

from __future__ import annotations

import contextvars

from torchsmith_guards import GuardKind, ResultSource, Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.facts.world import ABSENT
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import NONE
from torchsmith_tracer._src.values.python_instances import ObjectValue


class ContextVariable(ObjectValue):
    """An existing variable; ``tokens`` are those of the pending calls of ``set``, in order."""

    __slots__ = ("tokens",)

    def __init__(self, obj: object, source: Source) -> None:
        super().__init__(obj, source)
        self.tokens: tuple[TokenValue, ...] = ()

    def get(self, tx: Trace, default: Value | None) -> Value:
        """``get``."""
        variable = self.obj
        assert isinstance(variable, contextvars.ContextVar) and self.source is not None
        if self.tokens:
            return self.tokens[-1].value
        there = tx.builder.wrap(_is_set(variable), ResultSource(self.source, _is_set))
        if tx.interp.truth(there):
            return tx.builder.wrap(_current(variable), ResultSource(self.source, _current))
        if default is not None:
            return default
        tx.builder.guard(self.source, GuardKind.ID, variable, "default of a context variable")
        own = contextvars.Context().run(_current, variable, own=True)
        if own is ABSENT:
            raise Unsupported("opaque-call", what="ContextVar.get of one that has no value")
        return tx.builder.wrap_new(own)

    def change(self, tx: Trace, tokens: tuple[TokenValue, ...]) -> None:
        """From now on ``tokens`` are pending."""
        old = self.tokens
        tx.journal.mutate(self, lambda: setattr(self, "tokens", old))
        self.tokens = tokens

    def write_back(self, cg: Emitter) -> None:
        for token in self.tokens:
            cg.expr(token)


class TokenValue(Value):
    """What ``set`` has returned; the call is made where the token is."""

    __slots__ = ("value", "variable")
    cls = contextvars.Token

    def __init__(self, variable: ContextVariable, value: Value) -> None:
        super().__init__(None)
        self.variable, self.value = variable, value

    def describe(self) -> str:
        return "a token of a context variable"

    def reconstruct(self, cg: Emitter) -> str:
        tokens = self.variable.tokens
        if self not in tokens:
            raise Unsupported("cannot-rebuild", what=f"{self.describe()} that was used")
        for before in tokens[: tokens.index(self)]:
            cg.expr(before)
        return cg.method(self.variable, "set", self.value)


def _is_set(variable: contextvars.ContextVar[object]) -> bool:
    return variable.get(ABSENT) is not ABSENT


def _current(variable: contextvars.ContextVar[object], *, own: bool = False) -> object:
    """The value in this context; ``own``: or the default of the variable; else ``ABSENT``."""
    try:
        return variable.get() if own else variable.get(ABSENT)
    except LookupError:
        return ABSENT


@method(contextvars.ContextVar, "get")
def _get(tx: Trace, self: Value, default: Value | None = None, /) -> Value | None:
    return self.get(tx, default) if isinstance(self, ContextVariable) else None


@method(contextvars.ContextVar, "set")
def _set(tx: Trace, self: Value, value: Value, /) -> Value | None:
    if not isinstance(self, ContextVariable):
        return None
    token = TokenValue(self, value)
    self.change(tx, (*self.tokens, token))
    return token


@method(contextvars.ContextVar, "reset")
def _reset(tx: Trace, self: Value, token: Value, /) -> Value | None:
    if not isinstance(self, ContextVariable) or token not in self.tokens:
        return None
    self.change(tx, self.tokens[: self.tokens.index(token)])
    return NONE
