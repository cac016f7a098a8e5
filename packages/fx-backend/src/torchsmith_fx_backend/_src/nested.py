"""Graphs that take containers of tensors, or whose code takes containers apart: what is compiled
is a graph of the tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import pytree, structures

Compile = Callable[[fx.GraphModule, Sequence[object]], Any]


class Around:
    """Calls a compiled graph in a way of its own; what it tells is what that one tells."""

    compiled: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self).get("compiled"), name)


def is_nested(gm: fx.GraphModule, inputs: Sequence[object]) -> bool:
    """Whether ``gm`` is called with containers; ``inputs`` may be what is in them."""
    return structures(gm.graph) is not None or any(type(x) in (list, tuple, dict) for x in inputs)


class Nested(Around):
    """A graph that is called with containers; those of another structure it takes as captured."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[object], build: Compile) -> None:
        self._gm = gm
        graph, own = fx.Graph(), structures(gm.graph)
        known: dict[fx.Node, Any] = {}
        for node, value in zip(gm.graph.find_nodes(op="placeholder"), inputs):
            spec = pytree.tree_structure(value)
            if own is None and not spec.is_leaf():
                names = [f"{node.name}_{i}" for i in range(spec.num_leaves)]
                known[node] = pytree.tree_unflatten(map(graph.placeholder, names), spec)
            elif own is None:
                known[node] = graph.node_copy(node)
        graph.output(graph.graph_copy(gm.graph, known))
        self._takes = pytree.tree_structure(tuple(inputs)) if own is None else own[0]
        self._gives = None if own is None else own[1]
        flat = fx.GraphModule(gm, graph)
        flat._parameters, flat._buffers, flat._modules = gm._parameters, gm._buffers, gm._modules
        self.compiled = build(flat, pytree.tree_leaves(inputs))

    def __call__(self, *inputs: Any) -> Any:
        leaves, spec = pytree.tree_flatten(inputs)
        if spec != self._takes:
            return self._gm.forward(*inputs)
        results = self.compiled(*leaves)
        return results if self._gives is None else pytree.tree_unflatten(results, self._gives)
