"""Kernels whose points may meet: which of them write the same element, and in which order.

An axis is *owned* when points that differ in it never write the same element. Owned axes may be
walked by threads, lanes and programs; along the others points follow each other in row-major order,
so that what such a kernel gives does not depend on how it is run.
"""

from __future__ import annotations

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Kernel, Op, Store, StoreMode
from torchsmith_fx_backend._src.loops.proof import at_least
from torchsmith_fx_backend._src.loops.sizes import estimate

# What is there and what comes: for numbers, and for truths.
COMBINED = {
    StoreMode.ADD: (Op.ADD, Op.OR),
    StoreMode.MUL: (Op.MUL, Op.AND),
    StoreMode.MAX: (Op.MAXIMUM, Op.OR),
    StoreMode.MIN: (Op.MINIMUM, Op.AND),
}


def meeting_stores(kernel: Kernel) -> list[int]:
    """Positions of the stores at which points may meet, in an order that counts."""
    stores = enumerate(kernel.body)
    return [i for i, n in stores if isinstance(n, Store) and n.mode.ordered]


def owned_axes(kernel: Kernel) -> list[int]:
    """The axes that are owned with regard to every store, in order."""
    owned = {axis for axis, size in enumerate(kernel.ranges) if size != ix.ONE}
    for position in meeting_stores(kernel):
        node = kernel.body[position]
        assert isinstance(node, Store)
        owned &= _digits(node.index, kernel.ranges)
    return sorted(owned)


def _digits(x: Index, ranges: tuple[Index, ...]) -> set[int]:
    """The axes that are digits of ``x`` as a number of mixed radix, if it is one.

    Digits of equal numbers are equal, so two points that differ in an axis that is one write
    different elements. Loaded positions are digits, too.
    """
    leaves = ix.loaded(x)
    rank = len(ranges)
    extents = (*ranges, *(leaf.extent for leaf in leaves))
    plain = {leaf.value: ix.var(rank + number) for number, leaf in enumerate(leaves)}
    x = ix.substitute(x, {}, extents, plain) if plain else x
    axes = ix.variables(x)
    steps: list[tuple[Index, int]] = []
    for axis in axes:
        step = ix.coefficient(x, axis)
        if step is None or ix.has_var(step):
            return set()
        steps.append((step, axis))
    steps.sort(key=lambda found: estimate(found[0]))
    reach: Index = ix.ONE  # numbers of the digits so far are smaller
    for step, axis in steps:
        if not at_least(ix.sub(step, reach), 0, extents):
            return set()
        reach = ix.mul(step, extents[axis])
    return {axis for axis in axes if axis < rank}
