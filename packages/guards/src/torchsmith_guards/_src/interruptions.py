"""Exceptions that say nothing of the code that they come up in."""

from __future__ import annotations

import inspect
import signal


def is_interruption(error: BaseException, *callees: object) -> bool:
    """Whether ``error``, which the caller has caught, is no ``Exception``, or comes from a handler
    of a signal, which Python calls wherever the main thread happens to be, or from ``callees``."""
    place = error.__traceback__ and error.__traceback__.tb_next
    if place is None or not isinstance(error, Exception):
        return not isinstance(error, Exception)
    callees = (*map(signal.getsignal, signal.valid_signals()), *callees)
    found = [inspect.unwrap(getattr(f, "__func__", f)) for f in callees if callable(f)]
    codes = [getattr(f, "__code__", None) or _code_of_call(f) for f in found]
    while place is not None and place.tb_frame.f_code not in codes:
        place = place.tb_next
    return place is not None


def _code_of_call(instance: object) -> object:
    return getattr(getattr(type(instance), "__call__", None), "__code__", None)  # noqa: B004
