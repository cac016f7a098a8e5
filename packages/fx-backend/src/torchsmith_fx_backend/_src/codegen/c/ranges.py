"""Rewrites a kernel's iteration space so that its index expressions become plain strides.

Three rewrites, each keeping row-major order: an axis that is divided or taken modulo is split in
two, axes of extent one disappear, and neighbouring axes that every access walks as one are merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torchsmith_fx_backend._src.loops.index import (
    ONE,
    ZERO,
    Add,
    Const,
    FloorDiv,
    Index,
    Mod,
    Mul,
    Var,
    coefficient,
    floordiv,
    mul,
    substitute,
    var,
)
from torchsmith_fx_backend._src.loops.index import add as add_index
from torchsmith_fx_backend._src.loops.ir import IndexValue, Kernel, Load, Node, Store

_MAX_AXES = 10


def simplify_ranges(kernel: Kernel) -> Kernel:
    """The same kernel over axes along which as many indices as possible are affine."""
    kernel = _drop_ones(kernel)
    while len(kernel.ranges) < _MAX_AXES:
        split = _split_once(kernel)
        if split is None:
            break
        kernel = _drop_ones(split)
    axis = 0
    while axis + 1 < len(kernel.ranges):
        merged = _merge(kernel, axis)
        if merged is None:
            axis += 1
        else:
            kernel = merged
    return kernel


def indices(kernel: Kernel) -> Iterator[Index]:
    """Every index expression of the body, with repetitions."""
    for node in kernel.body:
        if isinstance(node, (Load, Store, IndexValue)):
            yield node.index


def map_indices(kernel: Kernel, change: Callable[[Index], Index]) -> tuple[Node, ...]:
    """The body with ``change`` applied to every index expression."""
    memo: dict[Index, Index] = {}

    def changed(index: Index) -> Index:
        result = memo.get(index)
        if result is None:
            result = memo[index] = change(index)
        return result

    body: list[Node] = []
    for node in kernel.body:
        if isinstance(node, (Load, Store, IndexValue)):
            node = replace(node, index=changed(node.index))
        body.append(node)
    return tuple(body)


def _rebuild(
    kernel: Kernel, ranges: list[Index], reduce_from: int, mapping: Mapping[int, Index]
) -> Kernel:
    body = map_indices(kernel, lambda index: substitute(index, mapping, ranges))
    return replace(kernel, ranges=tuple(ranges), reduce_from=reduce_from, body=body)


def _drop_ones(kernel: Kernel) -> Kernel:
    keep = [axis for axis, size in enumerate(kernel.ranges) if size != ONE]
    outer = sum(axis < kernel.reduce_from for axis in keep)
    if outer == len(keep) and kernel.reduce_from < len(kernel.ranges):
        keep.append(len(kernel.ranges) - 1)  # a reduction keeps one axis to reduce over
    if len(keep) == len(kernel.ranges):
        return kernel
    mapping: dict[int, Index] = dict.fromkeys(range(len(kernel.ranges)), ZERO)
    mapping.update({old: var(new) for new, old in enumerate(keep)})
    return _rebuild(kernel, [kernel.ranges[axis] for axis in keep], outer, mapping)


def _quotients(index: Index) -> Iterator[FloorDiv | Mod]:
    match index:
        case Add(parts) | Mul(parts):
            for part in parts:
                yield from _quotients(part)
        case FloorDiv(num, den) | Mod(num, den):
            yield index
            yield from _quotients(num)
            yield from _quotients(den)


def _split_once(kernel: Kernel) -> Kernel | None:
    seen: set[Index] = set()
    for index in indices(kernel):
        if index in seen:
            continue
        seen.add(index)
        for node in _quotients(index):
            for term in node.num.terms if isinstance(node.num, Add) else (node.num,):
                found = _inner_extent(term, node.den, kernel.ranges)
                if found is not None:
                    return _split_axis(kernel, *found)
    return None


def _inner_extent(term: Index, den: Index, ranges: tuple[Index, ...]) -> tuple[int, Index] | None:
    """``(axis, extent)``: with an inner axis of that extent split off, ``den`` divides evenly."""
    scale: Index = ONE
    if isinstance(term, Mul) and isinstance(term.factors[0], Const) and len(term.factors) == 2:
        scale, term = term.factors
    if not isinstance(term, Var):
        return None
    extent = ranges[term.axis]
    inner = floordiv(den, scale)
    if isinstance(den, Const) and isinstance(scale, Const):
        if scale.value <= 0 or den.value % scale.value or den.value <= scale.value:
            return None
    elif scale != ONE:
        return None
    outer = floordiv(extent, inner)
    if mul(outer, inner) != extent or outer == ONE or inner == ONE:
        return None
    return term.axis, inner


def _split_axis(kernel: Kernel, axis: int, inner: Index) -> Kernel:
    ranges = list(kernel.ranges)
    ranges[axis : axis + 1] = [floordiv(kernel.ranges[axis], inner), inner]
    mapping: dict[int, Index] = {
        old: var(old if old < axis else old + 1) for old in range(len(kernel.ranges))
    }
    mapping[axis] = add_index(mul(var(axis), inner), var(axis + 1))
    reduce_from = kernel.reduce_from + (axis < kernel.reduce_from)
    return _rebuild(kernel, ranges, reduce_from, mapping)


def _merge(kernel: Kernel, axis: int) -> Kernel | None:
    """Axes ``axis`` and ``axis + 1`` as one, when every index advances through both evenly."""
    if axis + 1 == kernel.reduce_from:
        return None
    extent = kernel.ranges[axis + 1]
    for index in set(indices(kernel)):
        slow, fast = coefficient(index, axis), coefficient(index, axis + 1)
        if slow is None or fast is None or slow != mul(fast, extent):
            return None
    ranges = list(kernel.ranges)
    ranges[axis : axis + 2] = [mul(kernel.ranges[axis], extent)]
    mapping: dict[int, Index] = {
        old: var(old if old <= axis else old - 1) for old in range(len(kernel.ranges))
    }
    mapping[axis], mapping[axis + 1] = ZERO, var(axis)
    reduce_from = kernel.reduce_from - (axis < kernel.reduce_from)
    return _rebuild(kernel, ranges, reduce_from, mapping)
