"""Weak references. Traced code holds the referent; what has to be known is whether it is alive.

Classes, functions and modules outlive the call. Another object is alive while a frame reaches it;
when none does, only CPython's reference counts know, and asking is a break.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable, Iterable

from torchsmith_guards import AttrSource

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.frames.frame import Frame, Handling
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor
from torchsmith_tracer._src.values.classes import ClassValue
from torchsmith_tracer._src.values.construction import make_twin
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.namespaces import NamespaceValue, PyModuleValue
from torchsmith_tracer._src.values.sets import SetValue
from torchsmith_tracer._src.values.twins import TwinValue, twin

_LASTING = (ClassValue, FunctionValue, PyModuleValue)
_MOST = 100_000  # values looked at


def _check(obj: object, callback: object) -> None:
    """Stands for its implementation below; raises TypeError for objects without weak references."""


def _alive(obj: object) -> object:
    """Stands for its implementation below; gives the object back."""
    return obj


@twin("weakref", "ReferenceType")
class Reference:
    """``weakref.ref``."""

    state = ("_target", "_callback")

    def __init__(self, obj, callback=None, /):  # type: ignore[no-untyped-def]
        _check(obj, callback)
        self._target = obj
        self._callback = callback

    def __call__(self):  # type: ignore[no-untyped-def]
        return _alive(self._target)

    def __hash__(self):  # type: ignore[no-untyped-def]
        return hash(_alive(self._target))

    def __eq__(self, other):  # type: ignore[no-untyped-def]
        if not isinstance(other, weakref.ReferenceType):
            return NotImplemented
        return self() == other()

    @property
    def __callback__(self):  # type: ignore[no-untyped-def]
        return self._callback

    @staticmethod
    def rebuild(cls, obj, callback):  # type: ignore[no-untyped-def]
        return cls(obj, callback)


@constructor(weakref.ref)
def _ref(tx: Trace, obj: Value, callback: Value | None = None, /) -> Value:
    known = tx.interp.weak_references
    if callback is None and obj in known:
        return known[obj]
    made = make_twin(tx, weakref.ref, [obj] if callback is None else [obj, callback], {})
    if callback is None:
        known[obj] = made
        tx.journal.record(lambda: known.pop(obj))
    return made


@constructor(weakref.finalize)
def _finalize(tx: Trace, *args: Value, **kwargs: Value) -> Value:
    own = bool(args) and _watch(tx, args[0])
    raise Unsupported("opaque-call", what="weakref.finalize", native=own)


@builtin(_check)
def _check_value(tx: Trace, obj: Value, callback: Value) -> Value:
    if not obj.python_type().__weakrefoffset__:
        raise tx.interp.error(
            TypeError, f"cannot create weak reference to {obj.type_name!r} object"
        )
    own = _watch(tx, obj)
    if not isinstance(obj, _LASTING) and not tx.interp.is_none(callback):
        raise Unsupported("opaque-call", what="weakref.ref with a callback", native=own)
    return tx.interp.none


def _watch(tx: Trace, obj: Value) -> bool:
    """Note that the end of an object shows; whether it is one that traced code has made."""
    own = not isinstance(obj, _LASTING) and obj.source is None
    if own:
        tx.interp.watched.add(obj)
    return own


@builtin(_alive)
def _alive_value(tx: Trace, obj: Value) -> Value:
    if not isinstance(obj, _LASTING) and not (_stays(tx, obj) or reached(tx, obj)):
        raise Unsupported("opaque-call", what="a weak reference that may be dead")
    return obj


def _stays(tx: Trace, target: Value) -> bool:
    """Whether ``target`` is an attribute of an object from before, and none of its name was changed
    in such an object."""
    source = target.source
    if not isinstance(source, AttrSource):
        return False
    changed = (stores for v, stores in tx.journal.attrs.items() if v.source is not None)
    return not any(source.attr in stores for stores in changed)


def reached(tx: Trace, target: Value) -> bool:
    """Whether the frames reach ``target`` other than through weak references."""
    return id(target) in reachable(tx, tx.frames, _leads_on, _MOST)


def _leads_on(obj: object) -> bool:
    lasting = isinstance(obj, NamespaceValue | PyModuleValue | ClassValue)
    return not lasting and not (isinstance(obj, TwinValue) and obj.cls is Reference)


def reachable(
    tx: Trace,
    roots: Iterable[object],
    leads_on: Callable[[object], bool] = lambda obj: True,
    most: float = math.inf,
) -> set[int]:
    """Identities of the values that values and frames lead to, of so many at the most."""
    seen: set[int] = set()
    work = list(roots)
    while work and len(seen) < most:
        obj = work.pop()
        if isinstance(obj, Frame):
            work += (obj.locals, obj.cells, obj.stack)
        elif id(obj) not in seen and isinstance(obj, Value | Handling | list | tuple | dict):
            seen.add(id(obj))
            if leads_on(obj):
                if isinstance(obj, SetValue) and not obj.growing:
                    work += obj.items  # and not what it has held before
                else:
                    work += gc.get_referents(obj)
                if isinstance(obj, Value):
                    work += tx.journal.attrs.get(obj, {}).values()
    return seen
