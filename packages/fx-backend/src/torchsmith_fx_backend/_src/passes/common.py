"""Calls that are not needed: equal ones, and those whose results nothing uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torchsmith_guards import Symbol, expr_of, hint_of

from torchsmith_fx_backend._src.passes.base import Pass, escaping, is_pure, stand_in

aten = torch.ops.aten
_FROM_DATA = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}


class CommonSubexpressions(Pass):
    """Merges calls with equal targets and arguments. Two results that the caller both sees stay
    two tensors."""

    def run(self, graph: fx.Graph) -> None:
        seen: dict[Any, fx.Node] = {}
        visible = escaping(graph)
        for node in list(graph.nodes):
            if not is_pure(node) or _brings_size(node) or _is_written_apart(node):
                continue
            key = (node.op, node.target, stand_in(node.args), stand_in(node.kwargs))
            first = seen.setdefault(key, node)
            if first is node:
                continue
            if node in visible:
                if first in visible:
                    continue
                visible.add(first)
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _is_written_apart(node: fx.Node) -> bool:
    """Whether ``node`` fills memory that kernels do not compute, with a number: parts of it are
    written in place where it is one's own."""
    return node.target is aten.full.default and node.meta["val"].is_complex()


def _brings_size(node: fx.Node) -> bool:
    """Whether a size or number that only the data decides comes into the graph with ``node``."""
    value = node.meta.get("val")
    named = isinstance(value, torch.SymInt) and isinstance(expr_of(value), Symbol)
    if not named and _FROM_DATA.isdisjoint(getattr(node.target, "tags", ())):
        return False
    results = value if isinstance(value, (tuple, list)) else (value,)
    numbers = [n for r in results for n in (r.shape if isinstance(r, torch.Tensor) else (r,))]
    return any(isinstance(n, torch.SymInt | torch.SymFloat) and hint_of(n) is None for n in numbers)


class DeadCode(Pass):
    """Drops unused nodes without effects. Random draws stay, since later draws depend on them."""

    def run(self, graph: fx.Graph) -> None:
        for node in reversed(graph.nodes):
            if not node.users and is_pure(node):
                graph.erase_node(node)
