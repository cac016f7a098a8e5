"""What one call saved, divided among the results that need it.

Eager autograd lets go of what is saved node by node, so results that share no node that saves can
be differentiated one after the other, and a write is an error for those results alone that need
what was written. A compiled graph is one node to autograd. Where its results differ in what they
need, what it saves lies in parts, one for each set of results that need it.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from torchsmith_fx_backend._src.aot.tangents import as_saved
from torchsmith_fx_backend._src.capture.torch_private import apply_of, check_version, keeps_graph

# What eager says of a graph that was let go of in a backward pass.
SPENT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been freed). Saved intermediate values of the graph are freed when you call "
    ".backward() or autograd.grad(). Specify retain_graph=True if you need to backward through the "
    "graph a second time or if you need to access saved tensors after calling backward."
)


Pick = Callable[[Sequence[Any]], Sequence[Any]]


@functools.cache
def items(places: tuple[int, ...]) -> Pick:
    """Reads the values at ``places``, without a loop in Python."""
    start = places[0] if places else 0
    end = start + len(places)
    if places == tuple(range(start, end)):
        return operator.itemgetter(slice(start, end))
    return operator.itemgetter(*places)


class _Saved(torch.autograd.Function):
    """Saves tensors as autograd does: with versions and histories, and without a cycle when one of
    them gets a history later. The anchor makes that happen where none requires a gradient."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(*tensors)
        return torch.empty_like(anchor)


_ANCHOR = torch.empty(0, requires_grad=True)
_apply = apply_of(_Saved)


def save(tensors: Iterable[torch.Tensor]) -> Any:
    """A result whose ``grad_fn.saved_tensors`` are ``tensors``; it lets go of them with its own
    end. Grad mode has to be on."""
    return _apply(_ANCHOR, *tensors)


def tensors_of(node: Any) -> Sequence[torch.Tensor]:
    """The tensors of one of ``Held.nodes``; those written meanwhile are an error."""
    if not isinstance(node, list):
        return node.grad_fn.saved_tensors  # type: ignore[no-any-return]
    for tensor, version in node:
        check_version(tensor, version)
    return [tensor for tensor, _ in node]


@dataclass(frozen=True, slots=True)
class Division:
    """Who needs what is saved.

    Attributes:
        saves: for each differentiable result, the nodes of eager's that save something for it.
        parts: sets of results, with the positions of what they need in common.
    """

    saves: Mapping[int, frozenset[int]]
    parts: tuple[tuple[frozenset[int], tuple[int, ...]], ...]

    @staticmethod
    def of(
        saves: Mapping[int, frozenset[int]], needed_by: Sequence[frozenset[int]]
    ) -> Division | None:
        """A division of as many tensors as ``needed_by`` has; None where all results need all, and
        none of them can be differentiated after another."""
        pairs = itertools.combinations(saves.values(), 2)
        apart = any((one or other) and one.isdisjoint(other) for one, other in pairs)
        parts = {users: [] for users in needed_by}  # type: dict[frozenset[int], list[int]]
        if not apart and len(parts) < 2:
            return None
        for position, users in enumerate(needed_by):
            parts[users].append(position)
        return Division(saves, tuple((users, tuple(places)) for users, places in parts.items()))

    def among(self, results: Collection[int]) -> Division:
        """That of these results alone."""
        saves = {i: nodes for i, nodes in self.saves.items() if i in results}
        parts = [(users.intersection(results), places) for users, places in self.parts]
        return Division(saves, tuple(part for part in parts if part[0]))

    def hold(self, tensors: Sequence[torch.Tensor], hooked: bool) -> Held:
        """Save the tensors of one call; ``hooked``: there are hooks on what autograd saves."""
        # Aliases of those that may get a history later.
        held = [t if t.requires_grad else t.detach() for t in tensors]
        plain = [not hooked and t.is_leaf and not t.is_inference() for t in tensors]
        with torch.enable_grad():
            nodes = [
                [(held[i], held[i]._version) for i in places]
                if all(plain[i] for i in places)
                else save(held[i] for i in places)
                for _, places in self.parts
            ]
        return Held(self, len(tensors), nodes)


@dataclass(frozen=True, slots=True)
class Part:
    """Results that have neither inputs nor what eager saves in common with others: a node of
    autograd's of their own, so that a backward pass reaches what eager's would.

    Attributes:
        results: their positions among the outputs.
        inputs: positions of the inputs that they have gradients for, as the node is given them.
        tangents: for each differentiable result of the graph its place among these, if it has one.
        gradients: for each input its place among all that have gradients.
        division: of what is saved for them; None where all of them need all of it.
        own: takes the results from all outputs.
        given: takes the inputs from all.
        found: takes the gradients of those from all.
    """

    results: tuple[int, ...]
    inputs: tuple[int, ...]
    tangents: tuple[int | None, ...]
    gradients: tuple[int, ...]
    division: Division | None
    own: Pick
    given: Pick
    found: Pick


def independent(
    saves: Mapping[int, frozenset[int]], reached: Mapping[int, frozenset[int]]
) -> list[set[int]]:
    """Results in sets that share neither nodes of eager's that save nor inputs."""
    found: list[tuple[set[int], set[int], set[int]]] = []
    for position, nodes in saves.items():
        own = ({position}, set(nodes), set(reached[position]))
        rest = []
        for each in found:
            if own[1].isdisjoint(each[1]) and own[2].isdisjoint(each[2]) and own[2] and each[2]:
                rest.append(each)
            else:
                own = (own[0] | each[0], own[1] | each[1], own[2] | each[2])
        found = [*rest, own]
    return [results for results, _, _ in found]


@dataclass(slots=True)
class Held:
    """The saved tensors of one call.

    Attributes:
        division: who needs them.
        count: how many there are.
        nodes: by part what ``save`` gave, or tensors that need no node of autograd's, with their
            versions; None for a part that nothing needs any more.
        spent: the nodes of eager's that would have let go of theirs.
    """

    division: Division
    count: int
    nodes: list[Any]
    spent: set[int] = field(default_factory=set)

    def take(self, results: Sequence[int], kept: bool) -> list[Any]:
        """What these results need, None in the places of other tensors; let go of unless ``kept``.

        Raises:
            RuntimeError: it was let go of before, or written meanwhile.
        """
        division = self.division
        wanted = {node for i in results for node in division.saves[i]}
        if not self.spent.isdisjoint(wanted):
            raise RuntimeError(SPENT)
        found: list[Any] = [None] * self.count
        for (users, places), node in zip(division.parts, self.nodes):
            if node is not None and not users.isdisjoint(results):
                for place, tensor in zip(places, tensors_of(node)):
                    found[place] = tensor
        if not kept:
            self.spent |= wanted
            living = [i for i, nodes in division.saves.items() if self.spent.isdisjoint(nodes)]
            for number, (users, _) in enumerate(division.parts):
                if users.isdisjoint(living):
                    self.nodes[number] = None
        return found

    @property
    def empty(self) -> bool:
        """Whether all was let go of."""
        return all(node is None for node in self.nodes)


def saved_by(ctx: Any, results: Sequence[int]) -> Any:
    """The tensors that a node of autograd's saved for these results, with others in between.

    Raises:
        RuntimeError: eager's, where they were let go of or written.
    """
    held, laid = ctx.call.held, ctx.call.laid
    found = ctx.saved_tensors if held is None else held.take(results, keeps_graph())
    return found if laid is None else list(map(as_saved, found, laid))
