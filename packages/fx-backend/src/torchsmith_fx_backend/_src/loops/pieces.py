"""Cut a loop nest where its conditions and remainders change, so that inside a piece none is left.

``cat``, ``pad`` and ``roll`` read ``i < 3 ? a[i] : b[i - 3]`` or ``a[(i + 897) % 900]``. In the
pieces ``i < 3`` and ``i >= 3`` each point computes one side only, and the index is affine again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import torch

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.canonical import live, renumber
from torchsmith_fx_backend._src.loops.index import Const, FloorDiv, Index, Mod
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Node,
    Op,
    Position,
    Store,
    as_index,
)
from torchsmith_fx_backend._src.loops.nest import substitute_node
from torchsmith_fx_backend._src.loops.proof import at_least

_MOST_PIECES = 8  # along one axis, and of one kernel
_MOST_NODES = 400  # of all pieces together
MANY_PIECES = 32  # where each computes what no other does


def cuts(kernel: Kernel, axis: int) -> list[Index]:
    """Where conditions and quotients over ``axis`` alone change, both ends of its range included.

    Without such places, or with too many of them, only the ends.
    """
    extent = kernel.ranges[axis]
    found: list[Index]
    if type(extent) is Const:
        size = extent.value
        found = [ix.const(p) for p in sorted(set(_places(kernel, axis, size))) if 0 < p < size]
    else:
        turns = set(_symbolic_turns(kernel, axis))
        known = [p for p in turns if at_least(p, 1) and at_least(ix.sub(extent, p), 1)]
        found = sorted(known, key=lambda p: sum(at_least(ix.sub(p, q), 1) for q in known))
        if not all(at_least(ix.sub(b, a), 1) for a, b in pairwise(found)):
            found = []  # their order is not known
    return [ix.ZERO, *(found if len(found) < MANY_PIECES else ()), extent]


def _symbolic_turns(kernel: Kernel, axis: int) -> Iterator[Index]:
    """Where comparisons of ``axis`` itself with what is the same at all points change."""
    for node in kernel.body:
        if isinstance(node, Compute) and node.op in _CHANGES_AT:
            left, right = (as_index(kernel.body[a]) for a in node.args)
            if left is not None and right is not None:
                place = ix.sub(ix.var(axis), ix.sub(left, right))
                if not ix.has_var(place) and not ix.loaded(place):
                    yield from (ix.add(place, ix.const(value)) for value in _CHANGES_AT[node.op])


def piece(kernel: Kernel, axis: int, low: Index, high: Index) -> Kernel:
    """``kernel`` for ``low <= i < high`` of ``axis`` only, which runs from zero in the result."""
    ranges = list(kernel.ranges)
    ranges[axis] = ix.sub(high, low)
    shift = {axis: ix.add(ix.var(axis), low)}
    body = [substitute_node(node, shift, ranges) for node in kernel.body]
    return replace(kernel, ranges=tuple(ranges), body=tuple(live(_folded(body, ranges))))


def pieces(kernel: Kernel, axes: Iterable[int]) -> list[Kernel]:
    """``kernel`` cut along ``axes``; itself if there is nothing to cut."""
    whole = [kernel]
    for axis in axes:
        parts = [
            piece(k, axis, low, high) if len(found) > 2 else k
            for k in whole
            for found in [cuts(k, axis)]
            for low, high in pairwise(found)
        ]
        nodes, before = (sum(len(k.body) for k in kernels) for kernels in (parts, whole))
        few = len(parts) <= _MOST_PIECES and (nodes <= _MOST_NODES or len(parts) == len(whole))
        if few or (len(parts) <= MANY_PIECES and nodes <= 2 * before):
            whole = parts
    return whole


def _line(x: Index, axis: int) -> tuple[int, int] | None:
    """``(a, b)`` when ``x`` is ``a * i + b`` with numbers ``a != 0`` and ``b``."""
    slope = ix.coefficient(x, axis)
    if type(slope) is not Const or slope.value == 0:
        return None
    rest = ix.sub(x, ix.mul(slope, ix.var(axis)))
    return (slope.value, rest.value) if type(rest) is Const else None


def _places(kernel: Kernel, axis: int, size: int) -> Iterator[int]:
    for node in kernel.body:
        if isinstance(node, (Load, Store, IndexValue)):
            yield from _jumps(node.index, axis, size)
        if isinstance(node, Compute) and node.op in _CHANGES_AT:
            yield from _turns(kernel, node, axis)


def _jumps(x: Index, axis: int, size: int) -> Iterator[int]:
    """Where a quotient within ``x`` takes its next value, if it takes few."""
    match x:
        case ix.Add(parts) | ix.Mul(parts):
            for part in parts:
                yield from _jumps(part, axis, size)
        case FloorDiv(num, Const(den)) | Mod(num, Const(den)):
            yield from _jumps(num, axis, size)
            line = _line(num, axis)
            if line is None:
                return
            a, b = line
            first, last = sorted((b // den, (a * (size - 1) + b) // den))
            if last - first < _MOST_PIECES:
                yield from (_reaches(a, b, q * den) for q in range(first + 1, last + 1))


def _turns(kernel: Kernel, node: Compute, axis: int) -> Iterator[int]:
    """Where the comparison ``node`` of an index with a number changes."""
    left, right = (as_index(kernel.body[a]) for a in node.args)
    if left is None or right is None:
        return
    difference = ix.sub(left, right)
    slope = ix.coefficient(difference, axis)
    if type(slope) is not Const or slope.value == 0:
        return
    # Other axes may say where within one step (``3 * i + j < 33`` with ``j < 3``).
    rest = ix.sub(difference, ix.mul(slope, ix.var(axis)))
    low, high = ix.bounds(rest, kernel.ranges)
    if low is None or high is None:
        return
    for value in _CHANGES_AT[node.op]:
        place = _reaches(slope.value, low, value)
        if place == _reaches(slope.value, high, value):
            yield place


def _reaches(a: int, b: int, value: int) -> int:
    """The first ``i`` where ``a * i + b`` has come to ``value``, or has fallen below it."""
    return -((b - value) // a) if a > 0 else (b - value) // -a + 1


# values of left minus right from which on a comparison is another than just below
_CHANGES_AT = {
    **dict.fromkeys((Op.LT, Op.GE), (0,)),
    **dict.fromkeys((Op.LE, Op.GT), (1,)),
    **dict.fromkeys((Op.EQ, Op.NE), (0, 1)),
}
_HOLDS = {
    Op.LT: lambda low, high: True if high < 0 else False if low >= 0 else None,
    Op.LE: lambda low, high: True if high <= 0 else False if low > 0 else None,
    Op.GT: lambda low, high: True if low > 0 else False if high <= 0 else None,
    Op.GE: lambda low, high: True if low >= 0 else False if high < 0 else None,
    Op.EQ: lambda low, high: True if low == high == 0 else False if low > 0 or high < 0 else None,
    Op.NE: lambda low, high: False if low == high == 0 else True if low > 0 or high < 0 else None,
}  # by the bounds of left minus right


def _folded(body: list[Node], ranges: list[Index]) -> list[Node]:
    """``body`` without the conditions that hold, or do not hold, at every point."""
    out: list[Node] = []
    stands: list[int] = []  # the position whose value a value is
    for position, old in enumerate(body):
        node = renumber(old, stands)
        same = position
        match node:
            case Compute(Op.WHERE, (condition, then, other)):
                known = out[condition]
                if type(known) is Literal:
                    same = then if known.value else other
            case Compute(op, args) if op in _HOLDS:
                left, right = (as_index(out[a]) for a in args)
                if left is not None and right is not None:
                    holds = _HOLDS[op](*_bounds(ix.sub(left, right), ranges))
                    node = node if holds is None else Literal(holds, torch.bool)
            case Compute(op, args, torch.bool) if op in (Op.AND, Op.OR, Op.NOT):
                node, same = _logic(op, args, out, node, same)
            case Load(arg, index, dtype, int(mask)):
                known = out[mask]
                if type(known) is Literal:
                    zero = Literal(False if dtype is torch.bool else 0, dtype)
                    node = Load(arg, index, dtype) if known.value else zero
            case Position(mask=int(mask)):
                known = out[mask]
                if type(known) is Literal:
                    node = replace(node, mask=None) if known.value else Literal(0, torch.int64)
        out.append(node)
        stands.append(same)
    return out


def _bounds(x: Index, ranges: list[Index]) -> tuple[float, float]:
    """The bounds of ``x``; where they are not numbers, what is proved of its sign."""
    low, high = ix.bounds(x, ranges)
    if low is not None and high is not None:
        return low, high
    both = (x, ix.mul(ix.const(-1), x))
    low, less = (next((n for n in (1, 0) if at_least(y, n, tuple(ranges))), None) for y in both)
    return -math.inf if low is None else low, math.inf if less is None else -less


def _logic(
    op: Op, args: tuple[int, ...], out: list[Node], node: Node, same: int
) -> tuple[Node, int]:
    known = [bool(n.value) if type(n) is Literal else None for n in (out[a] for a in args)]
    if op is Op.NOT:
        return (node, same) if known[0] is None else (Literal(not known[0], torch.bool), same)
    decides = op is Op.OR  # true decides an or, false an and
    if decides in known:
        return Literal(decides, torch.bool), same
    for value, other in zip(known, reversed(args)):
        if value is not None:
            return node, other
    return node, same
