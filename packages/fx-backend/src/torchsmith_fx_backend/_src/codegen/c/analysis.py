"""Facts about a kernel that the schedules share: what depends on what, what it costs, how it walks.

Everything here is computed once per kernel, by linear walks over the SSA list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from torchsmith_fx_backend._src.codegen.c.scalars import COST, HALF
from torchsmith_fx_backend._src.loops.index import ONE, ZERO, Const, Index, coefficient, product
from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Literal, Load, ReduceOp, Store
from torchsmith_fx_backend._src.loops.verify import axes_of, full_values, reduce_levels, uses

ARG_REDUCTIONS = frozenset({ReduceOp.ARGMAX, ReduceOp.ARGMIN})

# Entering and leaving a parallel region costs some microseconds, which a thread needs for about
# this much work (in adds); below it, parallel is slower.
PARALLEL_WORK = 600_000
_NEAR, _FAR = 8, 64  # steps, in elements
_LANES = 8  # float32 values of a vector, roughly
_LINE, _LINES = 16, 512  # float32 values of a cache line, lines of the innermost cache


@dataclass(frozen=True, slots=True)
class Facts:
    """One kernel and its facts, indexed by SSA position.

    Attributes:
        kernel: the kernel.
        full: the value (or store) differs along a reduction axis.
        level: number of reductions that must have finished before; the pass of a full value.
        axes: iteration axes that the value depends on.
        users: positions that read the value.
    """

    kernel: Kernel
    full: tuple[bool, ...]
    level: tuple[int, ...]
    axes: tuple[frozenset[int], ...]
    users: tuple[tuple[int, ...], ...]

    @property
    def outer_axes(self) -> range:
        """The axes before the reduction."""
        return range(self.kernel.reduce_from)

    @property
    def reduce_axes(self) -> range:
        """The reduction axes."""
        return range(self.kernel.reduce_from, len(self.kernel.ranges))

    def operands(self, position: int) -> tuple[int, ...]:
        """SSA positions that node ``position`` reads."""
        return uses(self.kernel.body[position])

    def closure(self, roots: Iterable[int], stop: Iterable[int] = ()) -> list[int]:
        """``roots`` and all that they are computed from, in order, not looking behind ``stop``."""
        stops = set(stop)
        seen: set[int] = set()
        stack = list(roots)
        while stack:
            position = stack.pop()
            if position in seen:
                continue
            seen.add(position)
            if position not in stops:
                stack.extend(self.operands(position))
        return sorted(seen)

    def cost(self, position: int) -> int:
        """Rough time of one evaluation of the node, in adds."""
        node = self.kernel.body[position]
        match node:
            case Literal():
                return 0
            case Load(_, index, dtype):
                plain = len(self.kernel.ranges) == 0 or coefficient(
                    index, len(self.kernel.ranges) - 1
                ) in (ZERO, ONE)
                return (4 if dtype in HALF else 3) + (0 if plain else 4)
            case Store():
                return 3
            case Compute(op, _, dtype):
                cost = COST.get(op, 1)
                return cost * 2 if dtype is torch.float64 and cost > 8 else cost
            case _:
                return 1

    def work(self) -> int:
        """Rough time of one point of the iteration space, in adds."""
        return sum(self.cost(position) for position in range(len(self.kernel.body)))

    def points(self) -> Index:
        """The number of points of the iteration space."""
        return product(self.kernel.ranges)

    def best_lane(self, axes: Sequence[int], positions: Iterable[int]) -> int:
        """Of ``axes``, the one along which the nodes at ``positions`` are walked best.

        That is the one along which accesses run through memory best. The last axis wins ties.
        Short axes pay for the vector lanes that they leave empty, in accesses and in arithmetic.
        """
        best = axes[-1]
        best_cost = None
        chosen = list(positions)
        computing = sum(self.cost(p) for p in chosen if isinstance(self.kernel.body[p], Compute))
        for axis in reversed(axes):
            cost = sum(self.access_cost(position, axis) for position in chosen)
            cost += computing / _LANES
            size = self.kernel.ranges[axis]
            if isinstance(size, Const) and size.value < 16:
                cost *= 1 + 8 / max(size.value, 1)
            if best_cost is None or cost < best_cost:
                best, best_cost = axis, cost
        return best

    def access_cost(self, position: int, axis: int) -> float:
        """Rough time of the access at ``position`` in a walk along ``axis``; 0 for other nodes."""
        node = self.kernel.body[position]
        if not isinstance(node, (Load, Store)):
            return 0.0
        step = coefficient(node.index, axis)
        if step == ONE:
            return 1.0
        if step == ZERO:
            return 0.25
        size = self.kernel.ranges[axis]
        if isinstance(node, Load) and isinstance(step, Const) and 0 < step.value <= _NEAR:
            return 1.0 + step.value / 2  # neighbours share cache lines
        # A scattered store touches a cache line to write it back: dearer than a scattered load.
        # Lines that the cache has lost when the neighbours' turn comes are fetched once for each.
        cost = 8.0 if isinstance(node, Store) else 6.0
        short = isinstance(size, Const) and size.value <= _LINES
        lost = isinstance(step, Const) and abs(step.value) >= _LINE and not short
        return cost * 2.0 if lost else cost

    def interleaves(self, axis: int, unrolled: bool = False) -> bool:
        """Whether several loads, or one ``unrolled``, step far through one memory along ``axis``.
        gcc takes it for a table of columns, and spends seconds to minutes on vectors of them."""
        seen: set[tuple[int, int]] = set()
        for node in self.kernel.body:
            if not isinstance(node, Load):
                continue
            step = coefficient(node.index, axis)
            if not isinstance(step, Const) or abs(step.value) < _FAR:
                continue
            where = (node.arg, step.value)
            if where in seen or unrolled:
                return True
            seen.add(where)
        return False

    def strides(self, axis: int) -> dict[int, Index | None]:
        """Step along ``axis`` of each access (by position), None where it is not affine."""
        return {
            position: coefficient(node.index, axis)
            for position, node in enumerate(self.kernel.body)
            if isinstance(node, (Load, Store))
        }


def analyse(kernel: Kernel) -> Facts:
    """All facts about ``kernel``."""
    axes: list[set[int]] = []
    users: list[list[int]] = [[] for _ in kernel.body]
    for position, node in enumerate(kernel.body):
        for operand in uses(node):
            users[operand].append(position)
        axes.append(axes_of(node, axes, kernel.reduce_from, len(kernel.ranges)))
    return Facts(
        kernel,
        tuple(full_values(kernel)),
        tuple(reduce_levels(kernel.body)),
        tuple(map(frozenset, axes)),
        tuple(tuple(u) for u in users),
    )


def static(size: Index) -> int | None:
    """The value of ``size`` if it is known at compile time."""
    return size.value if isinstance(size, Const) else None
