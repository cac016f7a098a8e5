"""Compiling must not be seen: modes, hooks, generators and warnings of the user's are left alone.

Tracing runs operators on fake tensors, and backends do as they like. What the user has made active
for the program's own operators (saved-tensor hooks, a profiler, autocast's cache) must not see
any of that, no draw of a random number may be used up, and no warning is given for an
operator that only the graph really runs.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import torch
from torchsmith_guards import without_saving_hooks

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.facts.silence import SILENCE, SILENT


def watching_mode() -> str | None:
    """Name of an active mode of the user's that sees single operators, or None. Under such a mode
    programs run eagerly: it is to see exactly the operators of the program. So does a transform of
    ``torch.func`` around the compiled function, a level of forward differentiation, or a trace."""
    found = private.active_modes()
    if found:
        return type(found[-1]).__name__
    traced = "torch.jit.trace" if private.is_tracing() else None
    return traced or private.functorch_transform() or private.forward_differentiation()


@contextmanager
def unseen() -> Iterator[None]:
    """Around one compile, the backend's part included."""
    with ExitStack() as stack:
        stack.callback(_random_state())
        stack.enter_context(without_saving_hooks())
        if private.profiler_enabled():
            private.enable_record_function(False)
            stack.callback(private.enable_record_function, True)
        yield


@contextmanager
def unwarned() -> Iterator[None]:
    """No warnings: what is computed inside is computed again, and then warns, when the program
    runs. The filter is put in place by hand, since ``warnings.catch_warnings`` makes Python forget
    which warnings were shown already; torch's once-only warnings are not used up."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    filters = warnings.filters
    filters.insert(0, SILENT)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        filters.remove(SILENT)  # type: ignore[attr-defined]
        SILENCE.kept.clear()
        torch.set_warn_always(always)


def _random_state() -> Callable[[], None]:
    """A function that gives the random number generators the states that they have now."""
    states: list[tuple[Callable[..., object], object]] = [
        (random.setstate, random.getstate()),
        (torch.set_rng_state, torch.get_rng_state()),
    ]
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        with suppress(Exception):  # numpy asks functions that the program may have replaced
            states.append((numpy.set_state, numpy.get_state()))
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append((torch.cuda.set_rng_state, torch.cuda.get_rng_state()))

    def restore() -> None:
        for put, state in states:
            put(state)

    return restore
