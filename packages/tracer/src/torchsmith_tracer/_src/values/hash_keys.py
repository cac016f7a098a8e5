"""Keys of the hash tables that stand for those of traced dicts and sets."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue

PLAIN = (int, str, float, bool, type(None), complex, bytes, type(Ellipsis), type(NotImplemented))


class _Comparisons(threading.local):
    known = False


COMPARISONS = _Comparisons()


@contextmanager
def comparing_none() -> Iterator[None]:
    """What is in a table is found again, or put into another one: no ``__eq__`` is to be called for
    that. Equal are only keys that were found to be."""
    before, COMPARISONS.known = COMPARISONS.known, True
    try:
        yield
    finally:
        COMPARISONS.known = before


class IdentityKey:
    """Hash-table key of an object that hashes by identity."""

    __slots__ = ("obj",)

    def __init__(self, obj: object) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return object.__hash__(self.obj)  # as the program sees it, of an object that exists

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.obj is other.obj


class UserKey:
    """Hash-table key of an instance whose class defines ``__hash__``: the host table calls the
    traced ``__hash__`` and ``__eq__`` as the real table would."""

    __slots__ = ("__weakref__", "equal", "hash", "tx", "value")

    def __init__(self, tx: Trace, value: Value) -> None:
        self.tx = tx
        self.value = value
        tx.interp.keys += 1
        try:
            self.hash = tx.interp.hash_of(value)
        finally:
            tx.interp.keys -= 1
        self.equal: Callable[[], UserKey | None] = lambda: None  # what it was found equal to

    def __hash__(self) -> int:
        return self.hash

    def __eq__(self, other: object) -> bool:
        if COMPARISONS.known:
            return self is other
        if isinstance(other, UserKey):
            same = self.tx.interp.equal(self.value, other.value)
            if same:  # weakly: no key is to keep its object alive after the trace
                self.equal, other.equal = weakref.ref(other), weakref.ref(self)
            return same
        if isinstance(other, PLAIN):
            return self.tx.interp.equal(self.value, ConstantValue(other))
        return NotImplemented


def held_key(hkey: object) -> object:
    """The key of the table that ``hkey`` was found equal to, or itself."""
    return (hkey.equal() or hkey) if isinstance(hkey, UserKey) else hkey
