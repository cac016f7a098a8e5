"""Locks that exist already, ``with self._lock:``.

Traced code only counts: the compiled body is run while all locks that the trace takes are held
(``regions/holding.py``), so that what it reads and its effects are behind them. A lock that is
taken before the trace or still held at its end is left to native code.
"""

from __future__ import annotations

import _thread
import contextvars
import weakref
from collections.abc import Callable

from torchsmith_guards import Source

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import NONE, TRUE
from torchsmith_tracer._src.values.context_variables import ContextVariable
from torchsmith_tracer._src.values.opaque import ReferenceValue
from torchsmith_tracer._src.values.python_instances import ObjectValue

_REENTRANT = _thread.RLock


class LockValue(ObjectValue):
    """An existing lock; ``held`` counts how often traced code has taken it and not released it."""

    __slots__ = ("held",)

    def __init__(self, obj: object, source: Source) -> None:
        super().__init__(obj, source)
        self.held = 0

    def take(self, tx: Trace) -> Value:
        """``acquire``, which succeeds whatever its arguments are: nobody else has the lock."""
        if not tx.journal.takes_locks or (self.held and self.cls is not _REENTRANT):
            raise Unsupported("opaque-call", what=f"a method of {self.describe()}")
        tx.journal.take(self)
        tx.journal.assign(self, "held", self.held + 1)
        return TRUE

    def give_back(self, tx: Trace) -> Value:
        """``release``."""
        if not self.held:
            raise Unsupported("opaque-call", what=f"release() of {self.describe()}")
        tx.journal.assign(self, "held", self.held - 1)
        return NONE


#: Values of C objects that are more than passed around, by class.
OBJECTS: dict[type, Callable[[object, Source], Value]] = {
    weakref.ReferenceType: ReferenceValue,
    _thread.LockType: LockValue,
    _REENTRANT: LockValue,
    contextvars.ContextVar: ContextVariable,
}
for _cls in (_thread.LockType, _REENTRANT):

    @method(_cls, "acquire", "__enter__", "acquire_lock")
    def _acquire(tx: Trace, self: Value, *args: Value, **kwargs: Value) -> Value | None:
        return self.take(tx) if isinstance(self, LockValue) else None

    @method(_cls, "release", "__exit__", "release_lock")
    def _release(tx: Trace, self: Value, *args: Value) -> Value | None:
        return self.give_back(tx) if isinstance(self, LockValue) else None

    @method(_cls, "locked", "_is_owned")
    def _locked(tx: Trace, self: Value) -> Value | None:
        return TRUE if isinstance(self, LockValue) and self.held else None
