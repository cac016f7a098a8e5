"""Random draws by key, so that they fuse: one seed per call, from torch's generator."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx
from torch.fx.node import Argument

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.capture.torch_private import fake_mode_of

aten = torch.ops.aten

_UNIFORM = frozenset({aten.rand.default, aten.rand_like.default})
_SEEDS = 1 << 62


@dataclass(frozen=True)
class KeyedRandom:
    """Replaces uniform and Bernoulli draws by functions of a seed and their places.

    Draws of other distributions, of double precision, of symbolic sizes, with a generator or with
    probabilities that differ from element to element go on drawing from the generator themselves.
    Not for a graph whose draws are still to be divided between a forward and a backward pass.
    """

    name: str = "keyed-random"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        draws = [node for node in graph.nodes if _is_keyed(node)]
        seeds: dict[torch.device, fx.Node] = {}
        for number, node in enumerate(draws):
            value = node.meta["val"]
            seed = seeds.get(value.device)
            with graph.inserting_before(node):
                if seed is None:
                    seed = seeds[value.device] = _seed(graph, value)
                args = (seed, number, list(value.shape), value.dtype)
                if node.target in _UNIFORM:
                    made = graph.call_function(keyed.uniform, args)
                else:
                    made = graph.call_function(keyed.bernoulli, (*args, _probability(node)))
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            graph.erase_node(node)
        return bool(draws)


def _is_keyed(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return False
    if value.layout is not torch.strided or node.kwargs.get("generator") is not None:
        return False
    if any(type(n) is not int for n in value.shape):
        return False
    if node.target in _UNIFORM:
        return value.dtype in keyed.BITS
    probability = _probability(node) if node.target is aten.bernoulli.p else None
    return isinstance(probability, (int, float)) and 0 <= probability <= 1


def _probability(node: fx.Node) -> Argument:
    return node.args[1] if len(node.args) > 1 else node.kwargs.get("p")


def _seed(graph: fx.Graph, like: torch.Tensor) -> fx.Node:
    """A node that draws a seed on the device of ``like``."""
    options: dict[str, Argument] = {"dtype": torch.int64, "device": like.device}
    node = graph.call_function(aten.randint.low, (-_SEEDS, _SEEDS, []), options)
    mode = fake_mode_of(like)
    assert mode is not None
    with mode:
        node.meta["val"] = torch.empty([], dtype=torch.int64, device=like.device)
    return node
