"""Cuts a kernel with reductions into passes over its reduction axes.

Pass ``n`` computes every ``Reduce`` that has ``n`` others before it, and the stores of full values
that need them. A full value that several passes need is computed again in each, unless that is
dear (an exponential, say): then the first pass keeps it in a row buffer.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_fx_backend._src.codegen.c.analysis import Facts
from torchsmith_fx_backend._src.loops.ir import Literal, Reduce, Store

DEAR = 10  # recomputing costs more, in adds, than a write and a read of a cached buffer


@dataclass(frozen=True, slots=True)
class Pass:
    """One walk over the reduction axes.

    Attributes:
        needed: SSA positions evaluated at each point, in order (outer values among them are
            invariant), stores included.
        reduces: the reductions that this pass finishes.
        kept: full values that it writes to row buffers.
        fetched: full values that it reads from row buffers instead of computing them.
    """

    needed: tuple[int, ...]
    reduces: tuple[int, ...]
    kept: tuple[int, ...]
    fetched: frozenset[int]


def plan_passes(facts: Facts, *, buffers: bool) -> list[Pass]:
    """The passes of a kernel, in order; ``buffers`` allows row buffers."""
    kernel = facts.kernel
    roots: dict[int, list[int]] = {}
    for position, node in enumerate(kernel.body):
        if isinstance(node, Reduce):
            roots.setdefault(facts.level[node.value], []).append(position)
    stores = [p for p, n in enumerate(kernel.body) if isinstance(n, Store) and facts.full[p]]
    for position in stores:
        roots.setdefault(facts.level[position], []).append(position)
    levels = sorted(roots)
    points = {level: _points(facts, roots[level]) for level in levels}
    kept: dict[int, int] = {}  # value -> level whose pass writes it
    needed: dict[int, list[int]] = {}
    for number, level in enumerate(levels):
        closure = _inside(facts, points[level], kept, level)
        if buffers:
            for position in reversed(closure):
                earlier = next(
                    (e for e in levels[:number] if position in needed[e] and position not in kept),
                    None,
                )
                if earlier is None or not _is_frontier(facts, position, closure, level):
                    continue
                if _recompute_cost(facts, position, kept) >= DEAR:
                    kept[position] = earlier
            closure = _inside(facts, points[level], kept, level)
        needed[level] = closure
    return [
        Pass(
            needed=tuple(needed[level] + [p for p in roots[level] if p in stores]),
            reduces=tuple(p for p in roots[level] if p not in stores),
            kept=tuple(p for p, at in kept.items() if at == level),
            fetched=frozenset(p for p in needed[level] if kept.get(p, level) < level),
        )
        for level in levels
    ]


def _points(facts: Facts, roots: list[int]) -> list[int]:
    """The values that reductions and stores consume."""
    values = []
    for position in roots:
        node = facts.kernel.body[position]
        if isinstance(node, (Reduce, Store)):
            values.append(node.value)
    return values


def _inside(facts: Facts, roots: list[int], kept: dict[int, int], level: int) -> list[int]:
    """What a pass evaluates: the closure of its roots up to outer values and kept ones."""
    body = facts.kernel.body
    stop = {p for p in range(len(body)) if not facts.full[p]}
    stop |= {p for p, at in kept.items() if at < level}
    return [p for p in facts.closure(roots, stop) if not isinstance(body[p], Reduce)]


def _is_frontier(facts: Facts, position: int, closure: list[int], level: int) -> bool:
    """A full value from before this level that something of this level consumes directly."""
    if not facts.full[position] or facts.level[position] >= level:
        return False
    users = [u for u in facts.users[position] if u in closure or _is_root(facts, u)]
    return any(facts.level[u] >= level or _is_root(facts, u) for u in users)


def _is_root(facts: Facts, position: int) -> bool:
    return isinstance(facts.kernel.body[position], (Reduce, Store))


def _recompute_cost(facts: Facts, position: int, kept: dict[int, int]) -> int:
    stop = {p for p in range(len(facts.kernel.body)) if not facts.full[p]} | set(kept)
    return sum(
        facts.cost(p)
        for p in facts.closure([position], stop - {position})
        if p not in stop and not isinstance(facts.kernel.body[p], Literal)
    )
