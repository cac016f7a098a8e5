"""Whether a kernel stays inside its buffers and divides by positive numbers only.

Static kernels are decided: by proof, and where that does not succeed by looking at every point.
For symbolic sizes an access is proved or *assumed*; ``check_assumptions`` decides the assumed ones
for given sizes, so that a launch under ``TORCHSMITH_VERIFY=1`` never leaves a buffer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import torch

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import ONE, ZERO, FloorDiv, Index, Mod
from torchsmith_fx_backend._src.loops.ir import (
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Op,
    Store,
    as_index,
)
from torchsmith_fx_backend._src.loops.proof import at_least

_MOST_POINTS = 1 << 22  # of a space that is looked at point by point


class IllegalKernelError(ValueError):
    """A kernel breaks a rule of the loop IR; the message holds the rule and the node's position."""


def check_accesses(kernel: Kernel, sizes: Sequence[Index | None]) -> list[int]:
    """Check every load and store against how far its buffer reaches.

    Args:
        kernel: a kernel that is legal otherwise.
        sizes: how many elements each argument reaches over; None where it is not known.

    Returns:
        Positions of the accesses that are assumed, because they depend on symbolic sizes.

    Raises:
        IllegalKernelError: an access is wrong at some point.
    """
    assumed: list[int] = []
    for position, node in enumerate(kernel.body):
        if isinstance(node, (Load, Store, IndexValue)) and not _safe(kernel, position, sizes):
            if _is_static(kernel, position, sizes):
                _look(kernel, position, sizes, {})
            else:
                assumed.append(position)
    return assumed


def check_assumptions(
    kernel: Kernel, sizes: Sequence[Index | None], values: Mapping[str, int]
) -> None:
    """Decide what ``check_accesses`` assumed, for these values of the symbols.

    Raises:
        IllegalKernelError: an access is wrong at some point.
    """
    known = [s if s is None or ix.symbols(s) <= values.keys() else None for s in sizes]
    for position in check_accesses(kernel, sizes):
        _look(kernel, position, known, values)


def _safe(kernel: Kernel, position: int, sizes: Sequence[Index | None]) -> bool:
    """Whether the access at ``position`` is proved."""
    node = kernel.body[position]
    assert isinstance(node, (Load, Store, IndexValue))
    known = tuple(_facts(kernel, node.mask)) if isinstance(node, Load) else ()
    ranges = kernel.ranges
    if not all(at_least(den, 1, ranges, known) for den in _divisors(node.index)):
        return False
    if isinstance(node, IndexValue):
        return True
    size = _reach(node, sizes)
    if size is None:
        return True
    last = ix.sub(ix.sub(size, ONE), node.index)
    return at_least(node.index, 0, ranges, known) and at_least(last, 0, ranges, known)


def _reach(access: Load | Store, sizes: Sequence[Index | None]) -> Index | None:
    """How many elements the buffer of an access reaches over, if it is known."""
    return sizes[access.arg] if access.arg < len(sizes) else None


def _divisors(x: Index) -> Iterator[Index]:
    match x:
        case ix.Add(parts) | ix.Mul(parts):
            for part in parts:
                yield from _divisors(part)
        case FloorDiv(num, den) | Mod(num, den):
            yield den
            yield from _divisors(num)
            yield from _divisors(den)


def _facts(kernel: Kernel, mask: int | None) -> Iterator[Index]:
    """Expressions that are not negative where ``mask`` is true."""
    if mask is None:
        return
    node = kernel.body[mask]
    if isinstance(node, Literal) and not node.value:
        yield ix.const(-1)  # never true
    if not isinstance(node, Compute):
        return
    if node.op is Op.AND:
        yield from _facts(kernel, node.args[0])
        yield from _facts(kernel, node.args[1])
        return
    op: Op = node.op
    if op is Op.NOT:
        inner = kernel.body[node.args[0]]
        opposite = {Op.LT: Op.GE, Op.GE: Op.LT, Op.GT: Op.LE, Op.LE: Op.GT}
        if not isinstance(inner, Compute) or inner.op not in opposite:
            return
        node, op = inner, opposite[inner.op]
    if len(node.args) != 2:
        return
    left, right = (as_index(kernel.body[argument]) for argument in node.args)
    if left is None or right is None:
        return
    if op in (Op.GE, Op.EQ):
        yield ix.sub(left, right)
    if op in (Op.LE, Op.EQ):
        yield ix.sub(right, left)
    if op is Op.GT:
        yield ix.sub(ix.sub(left, right), ONE)
    if op is Op.LT:
        yield ix.sub(ix.sub(right, left), ONE)


# ------------------------------------------------------------------------------ point by point


def _is_static(kernel: Kernel, position: int, sizes: Sequence[Index | None]) -> bool:
    node = kernel.body[position]
    assert isinstance(node, (Load, Store, IndexValue))
    involved = [*kernel.ranges, *_involved(kernel, position)]
    if not isinstance(node, IndexValue):
        involved.append(_reach(node, sizes) or ZERO)
    return not any(ix.symbols(x) for x in involved)


def _involved(kernel: Kernel, position: int) -> Iterator[Index]:
    node = kernel.body[position]
    if isinstance(node, (Load, Store, IndexValue)):
        yield node.index
    if isinstance(node, Load) and node.mask is not None:
        yield from _facts(kernel, node.mask)


def _look(
    kernel: Kernel, position: int, sizes: Sequence[Index | None], values: Mapping[str, int]
) -> None:
    """Evaluate the access at every point that its mask lets through."""
    node = kernel.body[position]
    assert isinstance(node, (Load, Store, IndexValue))

    def fail(what: str) -> IllegalKernelError:
        return IllegalKernelError(
            f"{what} at %{position}: {node!r} over {kernel.ranges}, {dict(values)}"
        )

    def number(x: Index) -> int:
        return int(ix.evaluate(x, (), values))

    # A loaded position may be any: it runs along an axis of its own.
    found = dict.fromkeys(leaf for x in _involved(kernel, position) for leaf in ix.loaded(x))
    rank = len(kernel.ranges)
    extents = [*kernel.ranges, *(leaf.extent for leaf in found)]
    free = {leaf.value: ix.var(rank + i) for i, leaf in enumerate(found)}

    def freed(x: Index) -> Index:
        return ix.substitute(x, {}, extents, free) if free else x

    shape = [number(extent) for extent in extents]
    moving = sorted(set().union(*(ix.variables(freed(x)) for x in _involved(kernel, position))))
    points = math.prod(shape[axis] for axis in moving)
    if 0 in shape or points == 0:
        return
    if points > _MOST_POINTS:
        raise fail("nothing is proved, and there are too many points to look at")
    grid: dict[int, torch.Tensor] = {}
    for place, axis in enumerate(moving):
        spread = [-1 if i == place else 1 for i in range(len(moving))]
        grid[axis] = torch.arange(shape[axis]).reshape(spread)

    def at(x: Index) -> torch.Tensor:
        return torch.as_tensor(ix.evaluate(freed(x), grid, values)).expand(
            [shape[a] for a in moving]
        )

    keep = torch.ones([shape[a] for a in moving], dtype=torch.bool)
    if isinstance(node, Load):
        for fact in _facts(kernel, node.mask):
            keep = keep & (at(fact) >= 0)
    if not bool(keep.any()):
        return
    for den in _divisors(node.index):
        if bool((at(den)[keep] <= 0).any()):
            raise fail("a divisor is not positive")
    if isinstance(node, IndexValue):
        return
    size = _reach(node, sizes)
    if size is not None:
        where = at(node.index)[keep]
        if bool((where < 0).any()) or bool((where >= number(size)).any()):
            low, high = int(where.min()), int(where.max())
            raise fail(f"reaches {low} to {high} in a buffer of {number(size)}")
