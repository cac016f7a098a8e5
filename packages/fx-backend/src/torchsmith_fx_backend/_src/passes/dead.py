"""Dead code: nodes whose value nothing uses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from torchsmith_fx_backend._src.passes.base import is_pure


@dataclass(frozen=True)
class DeadCode:
    """Drops unused nodes without effects. Random draws stay, since later draws depend on them."""

    name: str = "dead-code"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        changed = False
        for node in reversed(graph.nodes):
            if not node.users and is_pure(node):
                graph.erase_node(node)
                changed = True
        return changed
