"""Marks on the sizes of a tensor: what the user says of them before the first compile.

They are kept where ``torch._dynamo.mark_dynamic`` and its relatives keep theirs, so that either
set of functions counts in both compilers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass

import torch

_DYNAMIC, _MAYBE = "_dynamo_dynamic_indices", "_dynamo_weak_dynamic_indices"
_STATIC, _UNBACKED = "_dynamo_static_indices", "_dynamo_unbacked_indices"
_STRICT = "_dynamo_strict_unbacked_indices"
_RANGES, _BOUNDS = "_dynamo_dynamic_range", "_dynamo_unbacked_bounds"
Dims = int | Iterable[int]


@dataclass(frozen=True, slots=True)
class DimRange:
    """Sizes that a dimension may have."""

    dim: int
    min: int | None
    max: int | None


def mark_dynamic(
    tensor: torch.Tensor, dim: Dims, *, min: int | None = None, max: int | None = None
) -> None:
    """The size in ``dim`` is a symbol from the first compile on; a program that needs one value of
    it, and a size out of ``min .. max``, raises ``ConstraintViolationError``."""
    for number in _mark(tensor, _DYNAMIC, dim):
        tensor.__dict__.setdefault(_RANGES, set()).add(DimRange(number, min, max))


def maybe_mark_dynamic(tensor: torch.Tensor, dim: Dims) -> None:
    """Like ``mark_dynamic``, but a program that needs one value of the size gets it."""
    _mark(tensor, _MAYBE, dim)


def mark_static(tensor: torch.Tensor, dim: Dims | None = None) -> None:
    """The size in ``dim`` (None: in all) is a constant, however often it changes."""
    _mark(tensor, _STATIC, range(tensor.dim()) if dim is None else dim)


def mark_unbacked(tensor: torch.Tensor, dim: Dims) -> None:
    """Nothing is taken for granted of the size in ``dim``, not even that it is neither 0 nor 1: a
    branch on it breaks the graph."""
    _mark(tensor, _UNBACKED, dim)


def dynamic(tensor: torch.Tensor) -> set[int]:
    """Dimensions that must be symbols."""
    return _marks(tensor, _DYNAMIC)


def unbacked(tensor: torch.Tensor) -> set[int]:
    """Dimensions of which nothing is known."""
    return _marks(tensor, _UNBACKED) | _marks(tensor, _STRICT)


def applied(tensor: torch.Tensor, dims: Iterable[int]) -> frozenset[int]:
    """The dimensions that are to be symbols, when ``dims`` are that have no marks."""
    shape = tensor.shape
    wanted = (set(dims) - _marks(tensor, _STATIC)) | dynamic(tensor) | _marks(tensor, _MAYBE)
    free = unbacked(tensor)
    return frozenset(d for d in wanted | free if d < len(shape) and (shape[d] > 1 or d in free))


def ranges(tensor: torch.Tensor) -> list[DimRange]:
    """The ranges that were given with marks."""
    found = [DimRange(r.dim, r.min, r.max) for r in getattr(tensor, _RANGES, None) or ()]
    bounds: dict[int, tuple[int, int]] = getattr(tensor, _BOUNDS, None) or {}
    found += [DimRange(dim, *pair) for dim, pair in bounds.items()]
    largest = sys.maxsize - 1  # which stands for no limit
    limits = [DimRange(r.dim, r.min, None if (r.max or 0) >= largest else r.max) for r in found]
    return sorted(limits, key=lambda r: r.dim)


def _marks(tensor: torch.Tensor, attribute: str) -> set[int]:
    return set(getattr(tensor, attribute, None) or ())


def _mark(tensor: torch.Tensor, attribute: str, dim: Dims) -> list[int]:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"sizes of tensors are marked, not of {type(tensor).__name__}")
    dims = [dim] if isinstance(dim, int) else list(dim)
    wrong = [d for d in dims if not 0 <= d < tensor.dim()]
    if wrong:
        raise IndexError(f"dimension {wrong[0]} of a tensor with {tensor.dim()} dimensions")
    tensor.__dict__.setdefault(attribute, set()).update(dims)
    tensor.__dict__["_has_dynamo_dim_marking"] = True
    return dims
