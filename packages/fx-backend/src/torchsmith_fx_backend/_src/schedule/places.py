"""Parts of a concatenation that kernels store where they belong in it, so that nothing is copied.

Where all that is concatenated is computed near by and read by nothing else, there is no kernel
that copies. What computes the parts may fail, as lookups do: each part is computed at all of its
points as before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.nest import Member
from torchsmith_fx_backend._src.loops.registry import Pointwise, Reduction, argument
from torchsmith_fx_backend._src.loops.sizes import estimate

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.schedule.facts import Facts

_NARROW = 16  # elements in a row; fewer are not worth a store of their own


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part lies: it starts at ``start`` along dimension ``dim`` of ``whole``."""

    whole: fx.Node
    dim: int
    start: Index

    def moved(self, member: Member) -> Member:
        """A computed part, at coordinates in the whole."""
        at = (*member.at[: self.dim], ix.add(member.at[self.dim], self.start))
        return replace(member, at=(*at, *member.at[self.dim + 1 :]))


def places(facts: Facts, whole: fx.Node, least: int = 1) -> dict[fx.Node, Place]:
    """Where the parts lie that ``whole`` concatenates; nothing where they stay apart: one is an
    input or read elsewhere, or fewer than ``least`` have to be stored in any case."""
    given, dim = argument(whole, 0, "tensors"), argument(whole, 1, "dim", 0)
    assert isinstance(given, (list, tuple)) and isinstance(dim, int)
    info = facts.info(whole)
    dim %= len(info.shape)
    found: dict[fx.Node, Place] = {}
    start: Index = ix.ZERO
    stored = 0
    for part in given:
        assert isinstance(part, fx.Node)
        own, rule = facts.info(part), facts.rule(part)
        lone = part not in found and facts.users(part) == [whole] and facts.same_era(part, whole)
        alike = own.dtype is info.dtype and len(own.shape) == len(info.shape)
        rows = [n for n, step in zip(own.shape, info.stride) if step == ix.ONE]
        if not lone or not alike or not info.dense() or any(estimate(n) < _NARROW for n in rows):
            return {}
        if not isinstance(rule, Pointwise | Reduction) or ix.ZERO in own.shape:
            return {}
        stored += _is_stored(facts, part)
        found[part] = Place(whole, dim, start)
        start = ix.add(start, own.shape[dim])
    return found if stored >= least else {}


def _is_stored(facts: Facts, part: fx.Node) -> bool:
    """Whether kernels store ``part`` in any case, or what it is computed of alone."""
    rule = facts.rule(part)
    if isinstance(rule, Reduction) or facts.body(part).may_fail:
        return True
    alone = (a for a in part.all_input_nodes if facts.users(a) == [part])
    own = isinstance(rule, Pointwise) and not rule.moves
    return own and any(isinstance(facts.rule(a), Reduction) for a in alone)
