"""Calls of functions that carry a mark: what the user has said of them counts, not their code."""

from __future__ import annotations

import types

from torchsmith_guards import GuardKind

from torchsmith_tracer._src import marks
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.lazy import realize


def call_marked(
    tx: Trace, fn: FunctionValue, real: types.FunctionType, args: Args, kwargs: Kwargs
) -> Value | None:
    """A call of ``fn``, which is ``real``, or None when no mark says anything.

    Raises:
        Unsupported: the function is to run eagerly.
    """
    if marks.is_disabled(real):
        raise Unsupported("opaque-call", what=f"{fn.describe()}{marks.why_disabled(real)}")
    if (original := marks.original_of(real)) is not None:
        return tx.builder.wrap_new(original).call(tx, args, kwargs)
    if marks.has_constant_result(real):
        return _constant_result(tx, fn, real, args, kwargs)
    if marks.is_allowed(real):
        return tx.graph.call_function(real, args, kwargs)
    return None


def _constant_result(
    tx: Trace, fn: FunctionValue, real: types.FunctionType, args: Args, kwargs: Kwargs
) -> Value:
    """Call ``real`` now, once, and take what it returns for what it will always return. What is
    not the same in each call cannot be its argument."""

    def host(value: Value) -> object:
        found = tx.interp.try_concrete(value)
        if found is not tx.interp.UNKNOWN:
            return found
        value = realize(tx, value)
        obj, source = getattr(value, "obj", None), value.source
        changed = value in tx.journal.mutated or tx.journal.attrs.get(value)
        if obj is None or source is None or changed:
            raise Unsupported("opaque-call", what=f"{fn.describe()} on {value.describe()}")
        tx.builder.guard(source, GuardKind.ID, obj, "argument of a constant result")
        return obj

    hosts, named = [host(a) for a in args], {k: host(v) for k, v in kwargs.items()}
    return tx.builder.wrap_new(tx.interp.hosted(real, *hosts, **named))
