"""Runtime helpers that generated checkers call, and the slow evaluation of source paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torchsmith_guards._src.sources import sources as src
from torchsmith_guards._src.sources.sources import Source, is_literal

_SCALARS = frozenset((int, str, bytes, type(None), type(Ellipsis)))


def same_constant(left: Any, right: Any) -> bool:
    """Same type and value, element by element; NaN equals NaN and -0.0 differs from 0.0."""
    if left is right:
        return True
    kind = type(left)
    if kind is not type(right):
        return False
    if kind in _SCALARS:
        return bool(left == right)
    if kind is float:
        if left != left:
            return bool(right != right)
        return bool(left == right and math.copysign(1.0, left) == math.copysign(1.0, right))
    if kind is complex:
        return same_constant(left.real, right.real) and same_constant(left.imag, right.imag)
    if issubclass(kind, tuple):
        return len(left) == len(right) and all(map(same_constant, left, right))
    if kind is slice:
        return same_constant(
            (left.start, left.stop, left.step), (right.start, right.stop, right.step)
        )
    if kind is frozenset:
        # Equal elements may differ in type (1 and True): compare with the types attached.
        return {(type(v), v) for v in left} == {(type(v), v) for v in right}
    if kind.__module__ == "numpy" and hasattr(kind, "tobytes"):
        return bool(left.tobytes() == right.tobytes())  # NaN and the sign of zero included
    return bool(left == right)


def same_keys(table: Iterable[object], keys: tuple[object, ...]) -> bool:
    """The same keys in the same order: constants by type and value, other objects by identity."""
    found = tuple(table)
    return len(found) == len(keys) and all(map(_same_key, found, keys))


def _same_key(left: object, right: object) -> bool:
    if left is right:
        return True
    return is_literal(right) and same_constant(left, right)


def fetch(source: Source, roots: Mapping[str, object]) -> Any:
    """The object at ``source``, step by step; what a checker does, without compiling it.

    Args:
        source: the path.
        roots: arguments and bound objects by name (``F``, ``G`` and ``M`` among them).

    Raises:
        Exception: whatever a step raises when the path is not there.
    """
    match source:
        case src.LocalSource():
            return roots[source.name]
        case src.FunctionSource():
            return roots["F"]
        case src.PinnedSource():
            return source.obj
        case src.ClassDictSource():
            return src.class_dict(source.cls)
        case src.NamespaceSource(None):
            return roots["G"]
        case src.NamespaceSource(module):
            spaces: Any = roots["M"]
            return spaces[module]
        case src.AnchorSource():
            return None
        case src.IndexedSource():
            return fetch(source.base, roots)[fetch(source.index, roots) + source.offset]
    assert isinstance(source, src.Step), "all roots are handled above"
    return source.take(fetch(source.base, roots))
