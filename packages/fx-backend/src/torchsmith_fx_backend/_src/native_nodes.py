"""Graphs with nodes that are no operators: hooks of Python's, settings of torch, random generators.

Such a node has to run at its place, on the very tensors of the program. The graph is cut there:
what is between is compiled, part by part, when it first runs, and the rest runs as captured.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import is_setting

# What tracers call in graphs for backends that have ``native_nodes``.
_HOOKS = frozenset(("module_hooks", "set_up_hooks", "retain_grad"))
# Changes of mode, which capture follows within a graph, but not over a cut.
_MODE = re.compile("(_cuda)?_set_.*|_(enter|exit)_(autocast|inference_mode)")

_EXAMPLES = ("example_value", "val")

Compile = Callable[[fx.GraphModule, Sequence[object]], Callable[..., Any]]


def has_native_nodes(gm: fx.GraphModule) -> bool:
    """Whether a graph, or a body in it, has nodes that capture would not understand."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    return any(_is_native(node) for graph in graphs for node in graph.nodes)


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _is_native(node: fx.Node) -> bool:
    if not node.op.startswith("call"):
        return False
    name = _name(node)
    if name in _HOOKS or (node.op == "call_function" and is_setting(name)):
        return True
    values = (n.meta.get("example_value") for n in (node, *node.all_input_nodes))
    return any(isinstance(value, torch.Generator) for value in values)


def cut(gm: fx.GraphModule, compile_part: Compile) -> fx.GraphModule:
    """The graph with each part between native nodes in one call."""
    outer = fx.Graph()
    parts: dict[str, torch.nn.Module] = {}
    copies: dict[fx.Node, fx.Node] = {}

    def take(node: fx.Node) -> fx.Node:
        """The outer graph's own of a node of ``gm``."""
        if node not in copies:
            copies[node] = outer.node_copy(node, take)
        return copies[node]

    def native(node: fx.Node) -> bool:
        bodies = [n.meta.get("example_value") for n in node.all_input_nodes if n.op == "get_attr"]
        inside = any(has_native_nodes(body) for body in bodies if isinstance(body, fx.GraphModule))
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            inside = not isinstance(node.args[0].meta.get("example_value"), torch.Tensor)
        return inside or _is_native(node) or _MODE.fullmatch(_name(node)) is not None

    *nodes, output = gm.graph.nodes
    calls = [n for n in nodes if n.op != "get_attr"]
    for as_it_is, run in itertools.groupby(calls, lambda n: n.op == "placeholder" or native(n)):
        if as_it_is:
            for node in run:
                take(node)
            continue
        inside = list(run)
        graph, inputs, results = _part(inside)
        name = f"part_{len(parts)}"
        module = fx.GraphModule(gm, graph)
        every = _values((*inputs, *results))
        parts[name] = _Later(module, compile_part) if every else module
        call = outer.call_module(name, tuple(map(take, inputs)))
        for place, node in enumerate(results):
            copies[node] = outer.call_function(_item, (call, place))
    outer.output(fx.map_arg(output.args[0], take))
    return fx.GraphModule({**dict(gm.named_children()), **_attributes(gm), **parts}, outer)


def _part(inside: list[fx.Node]) -> tuple[fx.Graph, list[fx.Node], list[fx.Node]]:
    """A graph of some nodes, which other nodes it takes, and which of its own are used outside."""
    graph, own = fx.Graph(), set(inside)
    used = dict.fromkeys(n for node in inside for n in node.all_input_nodes if n not in own)
    inputs = [n for n in used if n.op != "get_attr"]
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = copy = graph.placeholder(node.name)
        # Not the example: what it is at its call counts, after ``x.data = ...`` for instance.
        copy.meta = {key: value for key, value in node.meta.items() if key not in _EXAMPLES}
    for node in (*(n for n in used if n.op == "get_attr"), *inside):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    results = [node for node in inside if not own.issuperset(node.users)]
    graph.output(tuple(copies[node] for node in results))
    return graph, inputs, results


def _item(found: Sequence[object], place: int) -> object:
    return found[place]


def _values(nodes: Iterable[fx.Node]) -> bool:
    """Whether all of the nodes are tensors of known sizes."""
    values = [node.meta.get("example_value") for node in nodes]
    return all(isinstance(v, torch.Tensor) and all(type(n) is int for n in v.shape) for v in values)


def _attributes(gm: fx.GraphModule) -> dict[str, object]:
    names = {str(node.target) for node in gm.graph.nodes if node.op == "get_attr"}
    return {name: operator.attrgetter(name)(gm) for name in names}


class _Later(torch.nn.Module):
    """A part that is compiled for the tensors of its first call."""

    def __init__(self, part: fx.GraphModule, compile_part: Compile) -> None:
        super().__init__()
        self.part, self.compile_part = part, compile_part
        self.compiled: Callable[..., Any] | None = None

    def forward(self, *inputs: object) -> Any:
        if self.compiled is None:
            self.compiled = self.compile_part(self.part, inputs)
        return self.compiled(*inputs)
