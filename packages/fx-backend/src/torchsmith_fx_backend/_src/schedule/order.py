"""The order of units: another one where that holds fewer bytes at once.

Units come as the program has them. Two walks move some: back to front, what makes more than it
keeps alive is put right before its first reader (the values of attention after its scores); front
to back, what frees more than it makes runs as soon as it can (a convolution that shrinks what a
residual block began with). Neither moves anything past a unit with effects, and effects keep their
order. What comes out is taken where simulated memory is lower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import may_fail
from torchsmith_fx_backend._src.schedule.externs import PURE
from torchsmith_fx_backend._src.schedule.facts import COPY, Facts, has_effect
from torchsmith_fx_backend._src.schedule.fuse import Unit

_CONVOLUTION = torch.ops.aten.convolution.default


@dataclass(slots=True, eq=False)
class Use:
    """What one unit does to memory. Memories are numbered, and those that end up with the caller
    or belong to him are left out of ``reads``.

    Attributes:
        makes: bytes of each memory that starts here.
        reads: memories that must be there, those it makes included, with their bytes.
        over: memories that may be written over when this is their last use: made -> read.
    """

    unit: Unit
    makes: dict[int, int]
    reads: dict[int, int]
    over: dict[int, list[int]]
    scratch: int = 0
    before: set[int] = field(default_factory=set)  # positions of units that must come first
    after: list[int] = field(default_factory=list)


def lower_peak(facts: Facts, uses: list[Use]) -> list[Unit] | None:
    """The units in an order that holds fewer bytes at once; None where none was found.

    Args:
        facts: the graph.
        uses: of all units in execution order; ``before`` has who makes what is read.
    """
    _link(facts, uses)
    order = list(range(len(uses)))
    most = _peak(uses, order)
    if most <= max(map(_alone, uses), default=0):
        return None
    late = _late(uses, order)
    best = min((late, _early(uses, order), _early(uses, late)), key=lambda o: _peak(uses, o))
    if _peak(uses, best) >= most or not _legal(uses, best):
        return None
    return [uses[position].unit for position in best]


def _link(facts: Facts, uses: list[Use]) -> None:
    """Complete ``uses`` by what they do not know of each other."""
    _keep_effects(facts, uses)
    for position, use in enumerate(uses):
        use.scratch = _scratch(facts, use.unit.node)
        for first in sorted(use.before):
            uses[first].after.append(position)


def _keep_effects(facts: Facts, uses: list[Use]) -> None:
    """Let effects follow each other, and nothing pass what writes or gives sizes."""
    inputs = [facts.try_info(n) for n in facts.nodes if n.op in ("placeholder", "get_attr")]
    known = {s for info in inputs if info is not None for s in _symbols(info.shape, info.stride)}
    known |= {s for n in facts.nodes if n.op == "placeholder" for s in _of_number(facts, n)}
    effect, wall = -1, -1
    for position, use in enumerate(uses):
        node, nest = use.unit.node, use.unit.nest
        if use.unit.mutates or (node is not None and _is_wall(facts, node, known)):
            use.before.update(range(max(wall, 0), position))
            effect = wall = position
            continue
        if wall >= 0:
            use.before.add(wall)
        if has_effect(node) if node is not None else nest is not None and may_fail(nest.nodes):
            if effect >= 0:
                use.before.add(effect)
            effect = position


def _is_wall(facts: Facts, node: fx.Node, known: set[str]) -> bool:
    if node.target is COPY or facts.written(node):
        return True
    if not isinstance(node.target, torch._ops.OpOverload) and node.target not in PURE:
        return True
    for value in [node] if facts.is_tensor(node) else facts.taken(node):
        info = facts.try_info(value)
        if info is None or not _symbols(info.shape, info.stride) <= known:
            return True
    return not isinstance(node.meta.get("val"), torch.Tensor | tuple | list)


def _of_number(facts: Facts, node: fx.Node) -> set[str]:
    index = None if facts.is_tensor(node) else facts.scalar_index(node)
    return set() if index is None else ix.symbols(index)


def _symbols(*sizes: Sequence[ix.Index]) -> set[str]:
    return {symbol for part in sizes for size in part for symbol in ix.symbols(size)}


def _scratch(facts: Facts, node: fx.Node | None) -> int:
    """Bytes that a library holds during a call: in half precision it copies images that are not
    channels-last, and the result."""
    if node is None or node.target is not _CONVOLUTION:
        return 0
    source = node.args[0]
    assert isinstance(source, fx.Node)
    image, result = facts.try_info(source), facts.try_info(node)
    if image is None or result is None or image.device.type == "cpu" or image.dtype.itemsize != 2:
        return 0
    last = len(image.stride) == 4 and image.stride[1] == ix.ONE
    return 0 if last else image.bytes() + result.bytes()


def _alone(use: Use) -> int:
    """Bytes that a unit needs in any order."""
    saved = sum(use.makes[made] for made in use.over)
    return sum(use.reads.values()) + use.scratch - saved


def _peak(uses: list[Use], order: Sequence[int]) -> int:
    left = Counter(memory for use in uses for memory in use.reads)
    made = {memory for use in uses for memory in use.makes}
    given = {memory: size for use in uses for memory, size in use.reads.items()}
    now = most = sum(size for memory, size in given.items() if memory not in made)
    for position in order:
        use = uses[position]
        left.subtract(use.reads.keys())
        dying = {memory for memory in use.reads if not left[memory]}
        shared = _taken(use, dying)
        now += sum(use.makes.values()) - shared
        most = max(most, now + use.scratch)
        now -= sum(use.reads[memory] for memory in dying) - shared
    return most


def _early(uses: list[Use], order: Sequence[int]) -> list[int]:
    """``order``, with what frees more than it makes as soon as it can run."""
    left = Counter(memory for use in uses for memory in use.reads)
    rest = Counter[int]()  # the sum of the positions of those who have yet to read a memory
    for position, use in enumerate(uses):
        for memory in use.reads:
            rest[memory] += position

    def reach(position: int) -> list[int]:
        use = uses[position]
        for memory in use.reads:
            left[memory] -= 1
            rest[memory] -= position
        return [*use.after, *(rest[memory] for memory in use.reads if left[memory] == 1)]

    def growth(position: int) -> int | None:
        use = uses[position]
        dying = {memory for memory in use.reads if left[memory] == 1}
        made, freed = sum(use.makes.values()), sum(use.reads[memory] for memory in dying)
        if use.makes and made >= freed:
            return None
        return made - _taken(use, dying)

    return _walk(order, [len(use.before) for use in uses], [u.after for u in uses], reach, growth)


def _late(uses: list[Use], order: Sequence[int]) -> list[int]:
    """``order``, with what makes more than it keeps alive right before its first reader."""
    alive: set[int] = set()

    def reach(position: int) -> list[int]:
        alive.update(uses[position].reads)
        alive.difference_update(uses[position].makes)
        return sorted(uses[position].before)

    def growth(position: int) -> int | None:
        use = uses[position]
        fresh = {memory for memory in use.reads if memory not in alive} - use.makes.keys()
        begun = sum(use.reads[memory] for memory in fresh)
        return None if begun > sum(use.makes.values()) else begun - _taken(use, fresh)

    backwards = order[::-1]
    before = [sorted(use.before) for use in uses]
    return _walk(backwards, [len(use.after) for use in uses], before, reach, growth)[::-1]


def _taken(use: Use, dying: set[int]) -> int:
    """Bytes of what a unit makes in the place of memories that nothing else reads."""
    free, total = set(dying), 0
    for made, sources in use.over.items():
        taken = next((memory for memory in sources if memory in free), None)
        if taken is not None:
            free.remove(taken)
            total += use.makes[made]
    return total


def _walk(
    order: Sequence[int],
    waits: list[int],
    frees: Sequence[Sequence[int]],
    reach: Callable[[int], list[int]],
    growth: Callable[[int], int | None],
) -> list[int]:
    """``order``, but after each position those it leads to come at once where that pays.

    Args:
        order: positions, each behind all that it waits for.
        waits: how many others each waits for.
        frees: who waits for each.
        reach: does a step, and says whom to look at next.
        growth: bytes that one which waits for nothing adds at first, the least comes first; None
            where it shall not come at once.
    """
    rank = {position: number for number, position in enumerate(order)}
    done: list[int] = []
    seen = [False] * len(waits)
    for start in order:
        heap = [] if seen[start] else [(0, rank[start])]
        while heap:
            position = order[heappop(heap)[1]]
            if seen[position] or (position != start and growth(position) is None):
                continue
            seen[position] = True
            done.append(position)
            for other in frees[position]:
                waits[other] -= 1
            for other in reach(position):
                grows = growth(other) if not seen[other] and not waits[other] else None
                if grows is not None:
                    heappush(heap, (grows, rank[other]))
    return done


def _legal(uses: list[Use], order: Sequence[int]) -> bool:
    """Whether each unit comes behind all that it depends on."""
    there = sum(1 << use.unit.bit for use in uses)
    done = 0
    for position in order:
        unit = uses[position].unit
        if unit.deps & there & ~done:
            return False
        done |= 1 << unit.bit
    return True
