"""Runtime helpers that generated checkers call, and the slow evaluation of source paths."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, assert_never

from torchsmith_guards._src.sources import sources as src
from torchsmith_guards._src.sources.sources import Source

_SCALARS = (int, str, bytes, type(None), type(Ellipsis))


def next_nth(items: Iterable[object], n: int) -> object:
    """The ``n``-th element of an iterable; raises ``IndexError`` past its end."""
    for item in islice(items, n, None):
        return item
    raise IndexError(n)


def remaining(iterator: Any) -> tuple[object, ...]:
    """What a tuple or list iterator still yields, without advancing it."""
    state = iterator.__reduce__()
    items = state[1][0] if state[1] else ()
    start = state[2] if len(state) > 2 else 0
    return tuple(items[start:])


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
    return bool(left == right)


def same_keys(table: Iterable[object], keys: tuple[object, ...]) -> bool:
    """The same keys in the same order: constants by type and value, other objects by identity."""
    found = tuple(table)
    return len(found) == len(keys) and all(map(_same_key, found, keys))


def _same_key(left: object, right: object) -> bool:
    if left is right:
        return True
    return is_literal(right) and same_constant(left, right)


def has_key(table: Mapping[Any, object], key: Any) -> bool:
    """``key in table``, for keys whose type matters as well."""
    return key in table


def is_literal(value: object) -> bool:
    """True for constants that print as Python literals and read back the same."""
    if type(value) is tuple:
        return all(is_literal(v) for v in value)
    if type(value) in (float, complex):
        return value == value and "inf" not in repr(value) and "nan" not in repr(value)
    return type(value) is bool or type(value) in _SCALARS


def fetch(source: Source, roots: Mapping[str, object]) -> Any:
    """The object at ``source``, step by step; what a checker does, without compiling it.

    Args:
        source: the path.
        roots: arguments and bound objects by name (``F``, ``G`` and ``M`` among them).

    Raises:
        Exception: whatever a step raises when the path is not there.
    """
    match source:
        case src.LocalSource() | src.ConstantSource() | src.SyntheticSource():
            return roots[source.name]
        case src.FunctionSource():
            return roots["F"]
        case src.NamespaceSource():
            return _namespace(source.module, roots)
        case src.GlobalSource():
            return _namespace(source.module, roots)[source.name]
        case src.CellSource():
            function: Any = roots["F"]
            return function.__closure__[source.index].cell_contents
        case src.GlobalStateSource() | src.ShapeEnvSource():
            return None
    base = source.base
    assert base is not None, "only roots have no base, and all of them are handled above"
    return step(source, fetch(base, roots))


def step(source: Source, base: Any) -> Any:
    """The object at ``source``, given the object at ``source.base``."""
    match source:
        case src.AttrSource():
            return getattr(base, source.attr)
        case src.ItemSource():
            return base[source.key]
        case src.DictKeySource():
            return next_nth(base, source.n)
        case src.IteratorItemSource():
            return remaining(base)[source.n]
        case src.TypeSource():
            return type(base)
        case src.CallSource():
            return base()
        case src.DefaultsSource():
            if isinstance(source.which, int):
                return base.__defaults__[source.which]
            return base.__kwdefaults__[source.which]
        case src.ClosureSource():
            return base.__closure__[source.index].cell_contents
        case src.GradSource():
            return base.grad
        case src.TensorPropertySource():
            return _tensor_property(source, base)
        case _:
            raise TypeError(f"unknown source {type(source).__name__}")


def _tensor_property(source: src.TensorPropertySource, tensor: Any) -> int:
    match source.prop:
        case "size":
            return int(tensor.size(source.dim))
        case "stride":
            return int(tensor.stride(source.dim))
        case "storage_offset":
            return int(tensor.storage_offset())
        case _ as never:
            assert_never(never)


def _namespace(module: str | None, roots: Mapping[str, object]) -> dict[str, object]:
    space: Any = roots["G"] if module is None else roots["M"]
    return space if module is None else space[module]  # type: ignore[no-any-return]
