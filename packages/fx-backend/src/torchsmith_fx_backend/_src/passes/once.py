"""What a CPU computes from constants alone and hands to another device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.ops import op_info
from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, copy_node
from torchsmith_fx_backend._src.capture.torch_private import (
    OpOverload,
    below_autocast,
    without_active_modes,
)
from torchsmith_fx_backend._src.passes.base import (
    Pass,
    ancestors,
    escaping,
    held,
    is_pure,
    is_static,
)

aten = torch.ops.aten

# In the metadata of an attribute: the graph without inputs that gives its tensor, and the position
# among its results. A kept graph has that graph beside it, not the tensor.
ONCE = "once"


@dataclass(frozen=True)
class ComputedOnce(Pass):
    """Position buckets, window masks and tables that a program makes on the CPU, and moves: a copy
    from there waits for all kernels before it. They are computed when the graph is made, and again
    when it is loaded, by the operators that eager calls.

    Attributes:
        largest: bytes of all that a graph may hold in this way.
    """

    largest: int = 1 << 24

    def run(self, graph: fx.Graph) -> None:
        moved = _moved(graph, self.largest)
        if not moved:
            return
        program = _program(moved)
        try:
            with without_active_modes(), torch.no_grad(), below_autocast():
                values = program()
        except (RuntimeError, IndexError):  # it shall fail when the graph runs
            return
        for number, (node, value) in enumerate(zip(moved, values, strict=True)):
            with graph.inserting_before(node):
                constant = held(graph, value, {**node.meta, ONCE: (program, number)})
            node.replace_all_uses_with(constant)
        graph.eliminate_dead_code(lambda node: not is_pure(node))


def is_elsewhere(value: torch.Tensor) -> bool:
    return value.device.type != "cpu"


def _moved(graph: fx.Graph, largest: int) -> list[fx.Node]:
    """The copies to other devices of what a CPU computes from nothing, up to ``largest`` bytes; not
    those that the caller gets to see."""
    seen = escaping(graph)
    known: set[fx.Node] = set()
    moved = []
    for node in graph.nodes:
        if not is_pure(node) or node.op == "get_attr" or not known.issuperset(node.all_input_nodes):
            continue
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(v, torch.Tensor) and is_static(v) for v in values) or _draws(node):
            continue
        if not any(map(is_elsewhere, values)):
            known.add(node)
        elif node.target is aten._to_copy.default and node.all_input_nodes and node not in seen:
            largest -= value.numel() * value.itemsize
            if largest >= 0:
                moved.append(node)
    return moved


def _draws(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and op_info(node.target).seeded


def _program(results: list[fx.Node]) -> LazyGraphModule:
    """A graph without inputs that gives ``results``."""
    graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in sorted(ancestors(results)):
        env[node] = copy_node(graph, node, env.__getitem__)
    graph.output(tuple(env[node] for node in results))
    return LazyGraphModule(torch.nn.Module(), graph)
