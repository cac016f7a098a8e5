"""Graphs that take containers of tensors, or whose code takes containers apart: what is compiled
is a graph of the tensors."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import pytree, structures
from torchsmith_fx_backend._src.records.graphs import tell_eager

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
        self._gm, leaves = gm, pytree.tree_leaves(inputs)
        ends: Any = structures(gm.graph) or (pytree.tree_structure(tuple(inputs)), None)
        self._takes, self._gives = ends
        graph = _flat(gm.graph, inputs if self._gives is None else leaves)
        if graph is None:
            tell_eager("the graph changes a container, or returns one that it was given")
            self.compiled, self._takes = gm, None
            return
        flat = fx.GraphModule(gm, graph)
        flat._parameters, flat._buffers, flat._modules = gm._parameters, gm._buffers, gm._modules
        self.compiled = build(flat, leaves)

    def __call__(self, *inputs: Any) -> Any:
        leaves, spec = pytree.tree_flatten(inputs)
        if spec != self._takes:
            return self._gm.forward(*inputs)
        results = self.compiled(*leaves)
        return results if self._gives is None else pytree.tree_unflatten(results, self._gives)


def _flat(captured: fx.Graph, inputs: Sequence[object]) -> fx.Graph | None:
    """The graph that takes what is in its containers; None where it is about these themselves."""
    graph, given = fx.Graph(), iter(inputs)
    known: dict[fx.Node, Any] = {}
    for node in captured.nodes:
        spec = pytree.tree_structure(next(given)) if node.op == "placeholder" else None
        whole = [n for n in node.all_input_nodes if not isinstance(known[n], fx.Node)]
        if spec is not None and not spec.is_leaf():
            names = [f"{node.name}_{i}" for i in range(spec.num_leaves)]
            known[node] = pytree.tree_unflatten(map(graph.placeholder, names), spec)
        elif whole and node.target is operator.getitem and node.all_input_nodes == whole:
            known[node] = known[whole[0]][node.args[1]]
        elif whole and not (getattr(node.target, "__module__", None) or "").startswith("torch"):
            return None
        else:
            known[node] = graph.node_copy(node, known.__getitem__)
    return graph
