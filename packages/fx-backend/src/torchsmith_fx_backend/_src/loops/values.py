"""What the loop builder may ask about the graph it lowers; implemented by the scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import fx

from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.registry import Coords, Rule
from torchsmith_fx_backend._src.loops.sizes import Info

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.loops.body import Body


class GraphValues(Protocol):
    """Facts about the values of one graph."""

    def info(self, node: fx.Node) -> Info:
        """Layout of a tensor node."""

    def is_tensor(self, node: fx.Node) -> bool:
        """Whether the node's value is one tensor."""

    def rule(self, node: fx.Node) -> Rule | None:
        """The lowering that applies, or None for inputs, constants and extern calls."""

    def body(self, node: fx.Node) -> Body:
        """What a view, or a node that has a lowering, computes."""

    def space(self, node: fx.Node, rule: Rule) -> Coords:
        """The index space in which ``rule`` walks ``node``."""

    def base(self, node: fx.Node) -> fx.Node:
        """The tensor that a view shows, or a reduction's input."""

    def inlined(self, node: fx.Node) -> bool:
        """Whether the node is recomputed in every nest that reads it."""

    def fusable(self, node: fx.Node) -> bool:
        """Whether a nest may use the value it computed instead of what is in memory."""

    def number(self, node: fx.Node) -> int:
        """The number that stands for the node in ``Load.arg``."""

    def output_shapes(self, node: fx.Node) -> tuple[Coords, ...]:
        """Shapes of all results of a node."""

    def scalar_index(self, node: fx.Node) -> Index | None:
        """The size expression of an integer node, if it has one."""

    def scalar_name(self, node: fx.Node) -> str:
        """The wrapper's local that holds a number computed by the graph."""
