"""Compiled bodies of functions that take locks.

The locks are taken before what the body relies on is checked, and given back after its last effect.
They are not waited for: while another thread has one, and where the body would hold two that the
program holds one after the other, the function runs natively, so that no program deadlocks that
would not. When a graph fails, the locks are given back before the function runs natively.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torchsmith_guards import Checker, Source, fetch

from torchsmith_tracer._src.compilation import Compilation
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.locks import LockValue

Body = Callable[..., object]
_thread = threading.local()


def locks_of(trace: Compilation) -> list[Source]:
    """Where the locks are that traced code has taken, in order."""
    return [lock.source for lock in trace.journal.locks if lock.source is not None]


def are_held(locks: Iterable[Value]) -> bool:
    """Whether traced code has not given all of them back."""
    return any(isinstance(lock, LockValue) and lock.held for lock in locks)


def holding(body: Body, checker: Checker, native: Body, locks: Sequence[Source]) -> Body:
    """``body``, run with the locks at ``locks`` held, or ``native`` where that cannot be.

    Args:
        body: a compiled body.
        checker: its guards, which are asked again once the locks are held.
        native: the function itself, with the parameters of a body.
        locks: where the locks are.
    """
    names, check = checker.params, checker.check

    def run(*args: object) -> object:
        taken: list[Any] = []
        outer = getattr(_thread, "taken", None)
        try:
            roots = {**checker.bind, **dict(zip(names, args, strict=True))}
            if _take(locks, roots, taken) and check(*args):
                _thread.taken = taken
                return body(*args)
        finally:
            _thread.taken = outer
            give_back(taken)
        return native(*args)

    return run


def _take(locks: Sequence[Source], roots: dict[str, object], taken: list[Any]) -> bool:
    for source in locks:
        try:
            lock = fetch(source, roots)
        except Exception:  # noqa: BLE001 - gone: the check would find that, too
            return False
        if not lock.acquire(False):
            return False
        taken.append(lock)
    return True


def give_back(taken: list[Any] | None) -> None:
    """Release locks, the last one first."""
    while taken:
        taken.pop().release()


def without_locks(failed: Body) -> Body:
    """``failed``, which runs a function natively, called when its body's locks are given back."""

    def run(*args: object) -> object:
        give_back(getattr(_thread, "taken", None))
        return failed(*args)

    return run
