"""Copies of what repeats a tensor: position biases, expanded to a batch and made contiguous."""

from __future__ import annotations

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.registry import Pointwise, Reduction, rule_for
from torchsmith_fx_backend._src.passes.base import (
    Pass,
    copied_back,
    escaping,
    infer,
    insert,
    is_static,
    same_layout,
)
from torchsmith_fx_backend._src.passes.noop import can_share

aten = torch.ops.aten


class Repeats(Pass):
    """Copies a tensor before it is repeated, not after, where only loops read the copy."""

    def run(self, graph: fx.Graph) -> None:
        visible, written = escaping(graph), copied_back(graph)
        for copy in graph.find_nodes(op="call_function", target=aten.clone.default):
            wide = copy.args[0]
            if wide.target is not aten.expand.default or not is_static(copy.meta["val"]):
                continue
            if copy in visible or not can_share(copy, wide, visible, written):
                continue
            small = wide.args[0]
            fewer = 2 * small.meta["val"].numel() <= copy.meta["val"].numel()
            if not fewer or not all(map(_is_loop, copy.users)):
                continue
            with graph.inserting_before(copy):
                rows = insert(
                    graph, aten.clone.default, small, memory_format=torch.contiguous_format
                )
                repeated = insert(graph, aten.expand.default, rows, *wide.args[1:])
            for user in list(copy.users):
                given = user.args, user.kwargs
                user.replace_input_with(copy, repeated)
                if not same_layout(infer(user), user.meta["val"]):
                    user.args, user.kwargs = given


def _is_loop(node: fx.Node) -> bool:
    rule = rule_for(node) if node.op == "call_function" else None
    several = isinstance(rule, Reduction) and rule.several
    return isinstance(rule, Pointwise | Reduction) and not several
