"""The Python versions of what the standard library replaces by C where it can."""

from __future__ import annotations

import collections
import importlib.machinery
import importlib.util
import sys
import typing
from collections.abc import Callable, Collection
from typing import cast
from unittest import mock


def _without(accelerator: str, name: str) -> dict[str, object]:
    """The names of module ``name``, executed once more without its C part."""
    spec = cast("importlib.machinery.ModuleSpec", importlib.util.find_spec(name))
    loader = cast("importlib.machinery.SourceFileLoader", spec.loader)
    space: dict[str, object] = {"__name__": name}
    with mock.patch.dict(sys.modules, {accelerator: None}):
        exec(cast("object", loader.get_code(name)), space)  # type: ignore[arg-type]
    return space


PYTHON_FUNCTOOLS = _without("_functools", "functools")
PYTHON_BISECT = _without("_bisect", "bisect")
PYTHON_HEAPQ = _without("_heapq", "heapq")
PYTHON_OPERATOR = _without("_operator", "operator")
protocol_members = cast(
    "Callable[[type], Collection[str]]",
    getattr(typing, "get_protocol_members", None) or typing.__dict__["_get_protocol_attrs"],
)
PARTIALS_SHOW_MODULES = sys.version_info >= (3, 13)  # in the text of an object of a subclass


def _cleared_is_mutated() -> bool:
    """What an iterator says of an ``OrderedDict`` that was cleared."""
    table = collections.OrderedDict(a=1)
    it = iter(table)
    table.clear()
    try:
        next(it)
    except RuntimeError as e:
        return "mutated" in str(e)
    return False


CLEARED_IS_MUTATED = _cleared_is_mutated()


def _keeps_its_list() -> bool:
    """Whether ``reversed(list)`` that has ended is still one of that list (3.13)."""
    it = reversed([])  # type: ignore[var-annotated]
    next(it, None)
    return it.__reduce__()[0] is reversed


ENDED_KEEPS_ITS_LIST = _keeps_its_list()
