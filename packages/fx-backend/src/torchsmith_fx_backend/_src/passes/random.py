"""Random draws by key, so that they fuse: one seed per call, from torch's generator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.capture.torch_private import fake_mode_of
from torchsmith_fx_backend._src.passes.base import insert

aten = torch.ops.aten

_SEEDS = 1 << 62
_Made = tuple[Callable[..., torch.Tensor], tuple[Argument, ...]]


@dataclass(frozen=True)
class KeyedRandom:
    """Replaces uniform, normal, Bernoulli and integer draws by functions of a seed and of places.

    Draws of other distributions, with a generator or with probabilities that differ from element to
    element go on drawing from the generator themselves.
    Not for a graph whose draws are still to be divided between a forward and a backward pass.
    """

    name: str = "keyed-random"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        draws = [(node, how) for node in graph.nodes if (how := _keyed(node)) is not None]
        seeds: dict[torch.device, fx.Node] = {}
        for number, (node, (function, more)) in enumerate(draws):
            value = node.meta["val"]
            seed = seeds.get(value.device)
            with graph.inserting_before(node):
                if seed is None:
                    seed = seeds[value.device] = _seed(graph, value)
                args = (seed, number, _sizes(graph, node), value.dtype, *more)
                made = graph.call_function(function, args)
                made.meta = dict(node.meta)
                new = _moved(graph, node, made)
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)
        return bool(draws)


def _keyed(node: fx.Node) -> _Made | None:
    """The function that a draw becomes, with its arguments behind the dtype."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, torch.Tensor):
        return None
    if value.layout is not torch.strided or node.kwargs.get("generator") is not None:
        return None
    arg = _Arguments(node)
    if node.target in _UNIFORM:
        return (keyed.uniform, ()) if value.dtype in keyed.BITS else None
    if node.target in _NORMAL:
        plain = all(isinstance(x, (int, float)) for x in _spread(node))
        return (keyed.normal, ()) if value.dtype in keyed.BITS and plain else None
    if node.target is aten.bernoulli.p:
        probability = arg(1, "p")
        known = isinstance(probability, (int, float)) and 0 <= probability <= 1
        return (keyed.bernoulli, (probability,)) if known else None
    if node.target in _INTEGERS:
        low, high = (arg(n, name) if n is not None else 0 for n, name in _INTEGERS[node.target])
        known = type(low) is int and type(high) is int and low < high
        if known and high - low < keyed.MOST_INTEGERS and value.dtype is not torch.bool:
            return keyed.integers, (low, high)
    return None


class _Arguments:
    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def __call__(self, position: int, name: str, default: Any = None) -> Any:
        args = self.node.args
        return args[position] if position < len(args) else self.node.kwargs.get(name, default)


_UNIFORM = frozenset({aten.rand.default, aten.rand_like.default})
_NORMAL = frozenset(
    {
        aten.randn.default,
        aten.randn_like.default,
        aten.normal.float_float,
        aten.normal_functional.default,
    }
)
_INTEGERS: dict[object, tuple[tuple[int | None, str], tuple[int, str]]] = {
    aten.randint.default: ((None, ""), (0, "high")),
    aten.randint.low: ((0, "low"), (1, "high")),
    aten.randint_like.default: ((None, ""), (1, "high")),
    aten.randint_like.low_dtype: ((1, "low"), (2, "high")),
}
_SIZES: dict[object, int] = {
    aten.rand.default: 0,
    aten.randn.default: 0,
    aten.randint.default: 1,
    aten.randint.low: 2,
    aten.normal.float_float: 2,
}


def _spread(node: fx.Node) -> tuple[Any, Any]:
    """Mean and standard deviation."""
    if node.target not in (aten.normal.float_float, aten.normal_functional.default):
        return 0.0, 1.0
    first = 0 if node.target is aten.normal.float_float else 1
    arg = _Arguments(node)
    return arg(first, "mean", 0.0), arg(first + 1, "std", 1.0)


def _moved(graph: fx.Graph, node: fx.Node, made: fx.Node) -> fx.Node:
    """Standard normal numbers scaled and moved."""
    mean, std = _spread(node)
    if node.target not in _NORMAL or (mean, std) == (0, 1):
        return made
    return insert(graph, aten.add.Tensor, insert(graph, aten.mul.Tensor, made, std), mean)


def _sizes(graph: fx.Graph, node: fx.Node) -> list[Argument]:
    """The sizes of a draw, as the graph gives them."""
    place = _SIZES.get(node.target)
    if place is not None:
        return list(node.args[place])  # type: ignore[arg-type]
    like = node.args[0]
    assert isinstance(like, fx.Node)
    found: list[Argument] = []
    for dim, size in enumerate(node.meta["val"].shape):
        if type(size) is int:
            found.append(size)
            continue
        one = graph.call_function(aten.sym_size.int, (like, dim))
        one.meta["val"] = size
        found.append(one)
    return found


def _seed(graph: fx.Graph, like: torch.Tensor) -> fx.Node:
    """A node that draws a seed on the device of ``like``."""
    options: dict[str, Argument] = {"dtype": torch.int64, "device": like.device}
    node = graph.call_function(aten.randint.low, (-_SEEDS, _SEEDS, []), options)
    mode = fake_mode_of(like)
    assert mode is not None
    with mode:
        node.meta["val"] = torch.empty([], dtype=torch.int64, device=like.device)
    return node
