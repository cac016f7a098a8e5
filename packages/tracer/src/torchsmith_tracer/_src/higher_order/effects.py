"""Side effects of a body: which of them reach what was there before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import exists
from torchsmith_tracer._src.torch_private import set_grad_enabled
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.cached_functions import is_cache_hit
from torchsmith_tracer._src.values.builtins.weak import reachable


@contextmanager
def without_effects(tx: Trace, what: str, roots: Iterable[Value]) -> Iterator[None]:
    """Refuse changes, in the block, of anything that was there before it; what the block makes for
    itself may change. ``roots`` are the values that the block is given, besides the frames'.

    Raises:
        Unsupported: the block changed something; the caller's instruction then runs natively.
    """
    journal = tx.journal
    before, effects = journal.watch, len(journal.effects)
    watch: list[Value] = []
    journal.watch = watch
    try:
        yield
    finally:
        journal.watch = before
        if before is not None:
            before.extend(watch)
    calls = [e for e in journal.effects[effects:] if not is_cache_hit(e)]
    if calls:
        raise Unsupported("body-effect", what=what)
    if watch:
        known = reachable(tx, [*roots, *tx.frames])
        for value in watch:
            if exists(value) or id(value) in known:
                raise Unsupported("body-effect", what=what)


@contextmanager
def in_backward(what: str) -> Iterator[None]:
    """Around what runs in the backward pass, where an exception does not reach the code that is
    traced.

    Raises:
        Unsupported: the block raises.
    """
    try:
        yield
    except ObservedException as e:
        raise Unsupported("opaque-call", what=f"{what} where it raises {e.exc.type_name}") from e


@contextmanager
def in_body(what: str) -> Iterator[None]:
    """Around the tracing of a body, which an exception would leave open: a handler of the program's
    would go on inside it.

    Raises:
        Unsupported: the block raises; the caller's instruction then runs natively.
    """
    try:
        yield
    except ObservedException as e:
        raise Unsupported("op-failed", what=what, error=e.exc.type_name) from e


@contextmanager
def grad_mode(tx: Trace, enabled: bool) -> Iterator[None]:
    """Trace a body in the grad mode that it will be run in. Contexts that traced code entered
    inside are undone after the block, when a break rolls back, so the mode is set once more."""
    tx.graph.record(partial(set_grad_enabled, torch.is_grad_enabled()))
    with torch.set_grad_enabled(enabled):
        yield
