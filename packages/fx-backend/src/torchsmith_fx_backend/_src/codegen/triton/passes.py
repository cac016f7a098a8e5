"""How often a looped reduction walks its row, and what each walk computes.

A reduction that depends on another one (the sum of ``exp(x - max)``) must wait for it, so the nodes
of a kernel fall into levels: pass ``k`` runs the reductions that depend on ``k - 1`` others in a
chain. Full values are recomputed in every pass that needs them. The sum of a softmax is folded into
the pass of its maximum (the online form), which saves one walk.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Load, Op, Reduce, ReduceOp, Store
from torchsmith_fx_backend._src.loops.verify import full_values, uses


@dataclass(frozen=True, slots=True)
class Passes:
    """The passes of one kernel; pass numbers start at 1.

    Attributes:
        kernel: the kernel.
        levels: per body entry, how many passes must have run before it can be computed (for a
            reduction: the pass that runs it).
        full: per body entry, whether it varies along the reduction.
        count: number of passes, a last one that only stores included.
        store_pass: the pass of each full store.
        online: sum of a softmax -> (its maximum, the value under the exponential).
    """

    kernel: Kernel
    levels: tuple[int, ...]
    full: tuple[bool, ...]
    count: int
    store_pass: dict[int, int]
    online: dict[int, tuple[int, int]]

    @property
    def online_maxima(self) -> frozenset[int]:
        """Maxima whose running value is kept by an online sum."""
        return frozenset(best for best, _ in self.online.values())

    def reductions(self, level: int) -> list[tuple[int, Reduce]]:
        """Reductions that pass ``level`` runs, maxima before the online sums that need them."""
        return [
            (number, node)
            for number, node in enumerate(self.kernel.body)
            if isinstance(node, Reduce) and self.levels[number] == level
        ]

    def outer_nodes(self, level: int) -> list[int]:
        """Outer entries that become computable right after pass ``level``."""
        return [
            number
            for number, node in enumerate(self.kernel.body)
            if not self.full[number]
            and not isinstance(node, Reduce)
            and self.levels[number] == level
        ]

    def full_nodes(self, level: int) -> list[int]:
        """Full entries that pass ``level`` computes or stores, in order."""
        needed: set[int] = set()
        pending = [number for number, at in self.store_pass.items() if at == level]
        for number, node in self.reductions(level):
            pending.append(self.online[number][1] if number in self.online else node.value)
        while pending:
            number = pending.pop()
            if number in needed or not self.full[number]:
                continue
            needed.add(number)
            pending.extend(uses(self.kernel.body[number]))
        return sorted(needed)

    def loads_again(self, number: int, level: int) -> bool:
        """Whether a later pass repeats this load, so that it should stay in the cache."""
        if not isinstance(self.kernel.body[number], Load):
            return False
        return any(number in self.full_nodes(later) for later in range(level + 1, self.count + 1))


def plan_passes(kernel: Kernel, *, online: bool) -> Passes:
    """Assigns every entry of ``kernel`` to a pass.

    Args:
        kernel: a kernel with reduction axes.
        online: fold softmax sums into the pass of their maximum.
    """
    full = full_values(kernel)
    pairs: dict[int, tuple[int, int]] = {}
    levels: list[int] = []
    for number, node in enumerate(kernel.body):
        level = max((levels[operand] for operand in uses(node)), default=0)
        if isinstance(node, Reduce):
            pair = _online_pair(kernel, node) if online else None
            # One running maximum serves one sum; a second sum over it takes the ordinary way.
            if pair is not None and pair[0] not in {best for best, _ in pairs.values()}:
                pairs[number] = pair
                level = levels[pair[0]]
            else:
                level += 1
        levels.append(level)
    reduce_passes = max(
        (levels[n] for n, node in enumerate(kernel.body) if isinstance(node, Reduce)), default=0
    )
    stores = {
        number: levels[number] + 1
        for number, node in enumerate(kernel.body)
        if isinstance(node, Store) and full[number]
    }
    count = max([reduce_passes, *stores.values()])
    for number in stores:
        node = kernel.body[number]
        # A buffer that is also read must keep its old contents until the last walk.
        if isinstance(node, Store) and kernel.args[node.arg].read:
            stores[number] = count
    return Passes(kernel, tuple(levels), tuple(full), count, stores, pairs)


def _online_pair(kernel: Kernel, node: Reduce) -> tuple[int, int] | None:
    """(maximum, value) when ``node`` is ``sum(exp(value - maximum(value)))``."""
    power = kernel.body[node.value]
    if node.op is not ReduceOp.SUM or not isinstance(power, Compute) or power.op is not Op.EXP:
        return None
    match kernel.body[power.args[0]]:
        case Compute(Op.SUB, (value, best)):
            maximum = kernel.body[best]
            if isinstance(maximum, Reduce) and (maximum.op, maximum.value) == (ReduceOp.MAX, value):
                return best, value
    return None
