"""The table of lowerings: operator overload -> rule. A rule is data plus one small function.

Five kinds of rule:

* pointwise: the scalar value at one point of the node's own index space;
* view: where an element of the view lies in its base, and back;
* reduction: a value per outer point (or per point) made by reducing some dimensions of an input;
* creation: pointwise without tensor operands;
* scatter: writes into its first operand at positions that are values, where points may meet.

An operator without a rule is not an error; the scheduler calls it through aten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.index import Index, Ranges

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.loops.body import Point, Value, Written
    from torchsmith_fx_backend._src.loops.values import GraphValues

Coords = tuple[Index, ...]


def in_threads(value: torch.Tensor) -> bool:
    """Whether each point is computed by a thread of its own."""
    return value.device.type != "cpu"


def argument(node: fx.Node, position: int, name: str | None = None, default: Any = None) -> Any:
    """An argument of a node, by position or keyword."""
    if position < len(node.args):
        return node.args[position]
    return node.kwargs.get(name, default) if name is not None else default


@dataclass(frozen=True, slots=True)
class Geometry:
    """A view node with the shapes of its base and of itself, and the extents of the axes that
    occur in the coordinates at hand."""

    node: fx.Node
    base: Coords
    shape: Coords
    axes: Ranges

    def arg(self, position: int, name: str, default: object = None) -> Any:
        """An argument of the node."""
        return argument(self.node, position, name, default)

    def dim(self, position: int, name: str = "dim", default: int = 0) -> int:
        """A dimension argument, made non-negative for the base's rank."""
        return int(self.arg(position, name, default)) % max(len(self.base), 1)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """``emit(point)`` gives the node's value at ``point.at``.

    Attributes:
        emit: the function.
        cost: rough number of simple operations; 10 for a transcendental function.
        moves: the node only moves elements (``cat``, ``pad``, ``roll``): operands are read at
            other places than the node's own coordinates.
        applies: whether the rule handles this very call (argument values included).
        push: for a node that only permutes elements: where an element of the first operand goes,
            as in ``View``.
        window: an element of an operand is read by several points.
    """

    emit: Callable[[Point], Value]
    cost: int = 1
    moves: bool = False
    creation: bool = False
    applies: Callable[[fx.Node], bool] | None = None
    push: Callable[[Geometry, Coords], Coords | None] | None = None
    window: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """``pull(geometry, at)`` gives coordinates in the base for coordinates in the view; ``push``
    the reverse, or None where the view does not show every element of the base once."""

    pull: Callable[[Geometry, Coords], Coords]
    push: Callable[[Geometry, Coords], Coords | None]
    applies: Callable[[fx.Node], bool] | None = None


@dataclass(frozen=True, slots=True)
class Reduction:
    """Reduces ``dims(node)`` of an operand; without any, a pointwise operator of several results.

    Attributes:
        dims: the reduced dimensions of the input, non-negative.
        emit: gives the results, one per output, at a point of the *input's* index space.
        walks: position of that operand; None for the index space of the first result.
        window: as for ``Pointwise``.
        full: per output, whether it has the input's shape (softmax) or the reduced one.
        several: the operator returns a tuple.
    """

    dims: Callable[[fx.Node], tuple[int, ...]]
    emit: Callable[[Point], Sequence[Value]]
    full: tuple[bool, ...] = (False,)
    several: bool = False
    walks: int | None = 0
    window: bool = False
    applies: Callable[[fx.Node], bool] | None = None
    cost: int = 4


@dataclass(frozen=True, slots=True)
class Scatter:
    """Writes elements of its first operand, which nothing else reads, at positions that others say.

    Attributes:
        space: the index space that is walked.
        emit: what is written at a point of it.
    """

    space: Callable[[GraphValues, fx.Node], Coords]
    emit: Callable[[Point], Written]
    applies: Callable[[fx.Node], bool] | None = None


Rule = Pointwise | View | Reduction | Scatter
LOWERINGS: dict[object, Rule] = {}


def register(op: object, rule: Rule) -> None:
    """Enter ``rule`` for ``op``; a second rule for the same operator raises ``ValueError``."""
    if op in LOWERINGS:
        raise ValueError(f"{op} has a lowering already")
    LOWERINGS[op] = rule


def lowering(
    *ops: object,
    cost: int = 1,
    moves: bool = False,
    creation: bool = False,
    applies: Callable[[fx.Node], bool] | None = None,
    push: Callable[[Geometry, Coords], Coords | None] | None = None,
    window: bool = False,
) -> Callable[[Callable[[Point], Value]], Callable[[Point], Value]]:
    """Register a pointwise lowering for ``ops``: ``@lowering(aten.add.Tensor)``."""

    def enter(emit: Callable[[Point], Value]) -> Callable[[Point], Value]:
        for op in ops:
            register(op, Pointwise(emit, cost, moves, creation, applies, push, window))
        return emit

    return enter


def rule_for(node: fx.Node) -> Rule | None:
    """The rule that handles ``node``, or None when aten must."""
    rule = LOWERINGS.get(node.target)
    if rule is not None and rule.applies is not None and not rule.applies(node):
        return None
    return rule
