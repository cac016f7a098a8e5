"""Redundant casts: conversions that a shorter conversion, or none, replaces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import copied_back, escaping, same_layout
from torchsmith_fx_backend._src.passes.noop import can_share

aten = torch.ops.aten
CAST = aten._to_copy.default

# type -> types that hold all of its values
_WIDER: dict[torch.dtype, frozenset[torch.dtype]] = {
    torch.bool: frozenset(
        {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
        | {torch.float16, torch.bfloat16, torch.float32, torch.float64}
    ),
    torch.uint8: frozenset(
        {torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
    ),
    torch.int8: frozenset(
        {torch.int16, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64}
    ),
    torch.int16: frozenset({torch.int32, torch.int64, torch.float32, torch.float64}),
    torch.int32: frozenset({torch.int64, torch.float64}),
    torch.float16: frozenset({torch.float32, torch.float64}),
    torch.bfloat16: frozenset({torch.float32, torch.float64}),
    torch.float32: frozenset({torch.float64}),
}


@dataclass(frozen=True)
class RedundantCasts:
    """Shortens a lossless cast followed by another cast."""

    name: str = "redundant-casts"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        visible, written = escaping(graph), copied_back(graph)
        changed = False
        for node in list(graph.nodes):
            if not _is_plain_cast(node):
                continue
            first: Any = node.args[0]
            if not _is_plain_cast(first):
                continue
            origin: Any = first.args[0]
            kind, middle = origin.meta["val"].dtype, first.meta["val"].dtype
            if middle not in _WIDER.get(kind, ()):
                continue
            back = same_layout(origin.meta["val"], node.meta["val"])
            if back and can_share(node, origin, visible, written):
                node.replace_all_uses_with(origin)
                graph.erase_node(node)
                if node in visible:
                    visible.add(origin)
                changed = True
            elif not back:
                node.args = (origin,)
                changed = True
        return changed


def _is_plain_cast(node: fx.Node) -> bool:
    return node.op == "call_function" and node.target is CAST and set(node.kwargs) == {"dtype"}
