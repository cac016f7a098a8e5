"""Marks on callables: which must not be looked into, and which are compiled already.

The interpreter asks before it inlines: ``is_disabled(obj)`` -> break ``opaque-call``;
``original_of(obj)`` -> the user's function behind a compiled one, which is inlined instead.
"""

from __future__ import annotations

import types

import torch

ORIGINAL = "__torchsmith_original__"  # on what compile() returned: the user's callable
DISABLED = "__torchsmith_disabled__"  # on what disable() returned


def is_disabled(obj: object) -> bool:
    """True when the user said that ``obj`` must run eagerly (``disable`` here or in torch)."""
    marks = getattr(obj, "__dict__", None)
    if type(marks) is not dict:
        return False
    return DISABLED in marks or "_torchdynamo_disable" in marks


def original_of(obj: object) -> object | None:
    """The callable that ``obj`` was compiled from, or None when ``obj`` is not compiled."""
    if isinstance(obj, types.FunctionType):
        return obj.__dict__.get(ORIGINAL)
    if isinstance(obj, torch.nn.Module):
        return type(obj).__dict__.get(ORIGINAL)
    return None
