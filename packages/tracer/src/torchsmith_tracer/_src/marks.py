"""Marks on callables: which must not be looked into, and which are compiled already.

The interpreter asks before it inlines: ``is_disabled(obj)`` -> break ``opaque-call``;
``original_of(obj)`` -> the user's function behind a compiled one, which is inlined instead.

``functools.wraps`` copies a function's ``__dict__`` to its wrapper, so a function's mark counts
only together with ``OWNER``, a weak reference to the function that was marked.
"""

from __future__ import annotations

import types
import weakref

import torch
from torch.nn.modules.lazy import LazyModuleMixin

ORIGINAL = "__torchsmith_original__"  # on what compile() returned: the user's callable
DISABLED = "__torchsmith_disabled__"  # on what disable() returned
OWNER = "__torchsmith_owner__"


def mark(fn: types.FunctionType, name: str, value: object) -> None:
    """Mark ``fn`` itself; marks that it has from a function that it wraps are dropped."""
    for other in (ORIGINAL, DISABLED):
        fn.__dict__.pop(other, None)
    fn.__dict__[name] = value
    fn.__dict__[OWNER] = weakref.ref(fn)


def is_disabled(obj: object) -> bool:
    """True when the user said that ``obj`` must run eagerly (``disable`` here or in torch), and
    for lazy modules that their first call is going to make."""
    if isinstance(obj, LazyModuleMixin) and obj.has_uninitialized_params():  # type: ignore[misc]
        return True
    marks = getattr(obj, "__dict__", None)
    if type(marks) is not dict:
        return False
    if DISABLED in marks and (OWNER not in marks or _owns(obj, marks)):
        return True
    return "_torchdynamo_disable" in marks


def original_of(obj: object) -> object | None:
    """The callable that ``obj`` was compiled from, or None when ``obj`` is not compiled."""
    if isinstance(obj, types.FunctionType):
        marks = obj.__dict__
        return marks.get(ORIGINAL) if ORIGINAL in marks and _owns(obj, marks) else None
    if isinstance(obj, torch.nn.Module):
        return type(obj).__dict__.get(ORIGINAL)
    return None


def _owns(obj: object, marks: dict[str, object]) -> bool:
    owner = marks.get(OWNER)
    # A bound method shows the dict of its function.
    return isinstance(owner, weakref.ref) and owner() is getattr(obj, "__func__", obj)
