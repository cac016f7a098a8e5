"""Graphs that switch inference mode on or off: whether a result is an inference tensor is decided
where it is made, which generated code does in the mode that it is called in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.nested import Around


def switches(gm: fx.GraphModule) -> bool:
    """Whether ``gm`` changes the mode, given the mode that is on now."""
    on = torch.is_inference_mode_enabled()
    return any(_enters(node) and node.args[0] is not on for node in gm.graph.nodes)


def inside(gm: fx.GraphModule) -> tuple[bool, fx.GraphModule] | None:
    """The mode that all of ``gm`` runs in, and ``gm`` without the switch; None where parts run in
    another."""
    first, *_, last = [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr")][:-1]
    if not _enters(first) or last.args != (first,) or len(first.users) != 1:
        return None
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {first: first, last: last}))
    return bool(first.args[0]), fx.GraphModule(gm, graph)


class InMode(Around):
    """A compiled graph that runs with inference mode ``on`` or off."""

    def __init__(self, on: bool, compiled: Callable[..., Any]) -> None:
        self.on, self.compiled = on, compiled

    def __call__(self, *inputs: object) -> Any:
        with torch.inference_mode(self.on):
            return self.compiled(*inputs)


def _enters(node: fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "_enter_inference_mode"
