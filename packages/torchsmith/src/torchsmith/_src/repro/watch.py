"""What is watched of the graphs of a thread: asked for here, done by ``watched.py``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

import torchsmith_tracer


@dataclass(frozen=True, slots=True)
class Watch:
    """What is asked of all compile calls of a thread.

    Attributes:
        folder: where failures are recorded; None: nowhere.
        verify: compare graphs, also where ``compile`` was not asked to.
        backend: used instead of each other one.
        fresh: compile anew for each call of a compiled function.
        errors: failures of the compiler are errors.
    """

    folder: str | None = None
    verify: bool = False
    backend: str | None = None
    fresh: bool = False
    errors: bool = False


_current: ContextVar[Watch | None] = ContextVar("torchsmith_watch", default=None)


def current() -> Watch:
    """What is asked for now: by ``watching``, or by the environment."""
    return _current.get() or Watch(folder=os.environ.get("TORCHSMITH_REPRO") or None)


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[None]:
    """Ask for ``watch`` within a ``with`` block."""
    token = _current.set(watch)
    try:
        yield
    finally:
        _current.reset(token)


def with_backend(watch: Watch, backend: str | Callable[..., Any], verify: bool) -> Any:
    """``backend``, watched if that is asked for."""
    chosen: Any = watch.backend or backend
    watch = replace(watch, verify=verify or watch.verify)
    if not (watch.folder or watch.verify or watch.errors):
        return chosen
    # Imported for those who ask: it takes longer than all of a warm first call's own modules.
    return importlib.import_module("torchsmith._src.repro.watched").Watched(chosen, watch)


def afresh(compiled: Any) -> Any:
    """``compiled`` without what it knows from earlier calls: no guard of an old version is asked
    whether that version fits."""
    if not hasattr(compiled, "__code__"):
        return compiled

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        torchsmith_tracer.reset()
        return compiled(*args, **kwargs)

    return call
