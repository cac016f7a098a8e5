"""Random draws by key, so that they fuse: seeds for a call's draws, from torch's generator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import fx
from torch.fx.node import Argument

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.capture.torch_private import fake_mode_of
from torchsmith_fx_backend._src.loops.registry import argument
from torchsmith_fx_backend._src.passes.base import Pass, insert, replace_with

aten = torch.ops.aten

_Made = tuple[Callable[..., torch.Tensor], tuple[Argument, ...]]


@dataclass(frozen=True)
class KeyedRandom(Pass):
    """Replaces uniform, normal, Bernoulli and integer draws by functions of a seed and of places;
    those that nothing uses are left out, since no later number depends on them.

    Draws of other distributions, with a generator or with probabilities that differ from element to
    element go on drawing from the generator themselves. Of a graph that is still to be divided, the
    draws of a part that may run several times are left alone.

    Attributes:
        unless: nodes with this key in their meta are left alone.
    """

    unless: str = ""

    def run(self, graph: fx.Graph) -> None:
        draws = [
            (node, how)
            for node in graph.nodes
            if self.unless not in node.meta and (how := _keyed(node)) is not None
        ]
        unused = {node for node, _ in draws if not node.users}
        for node in unused:
            graph.erase_node(node)
        draws = [(node, how) for node, how in draws if node not in unused]
        values: list[Any] = [_drawn(node) for node, _ in draws]
        seeds: dict[torch.device, list[fx.Node]] = {}
        for (node, (function, more)), value in zip(draws, values, strict=True):
            with graph.inserting_before(node):
                if value.device not in seeds:
                    count = sum(v.device == value.device for v in values)
                    seeds[value.device] = _seeds(graph, value, count)
                args = (seeds[value.device].pop(0), _sizes(graph, node), value.dtype, *more)
                made = graph.call_function(function, args)
                made.meta = {**node.meta, "val": value}
                if node.target is _DROPOUT:
                    _drop(graph, node, made)
                    continue
                new = _moved(graph, node, made)
            new.meta = dict(node.meta)
            node.replace_all_uses_with(new)
            graph.erase_node(node)


_DROPOUT = aten.native_dropout.default


def _drawn(node: fx.Node) -> torch.Tensor | None:
    """What a draw gives; of dropout the mask."""
    value: Any = node.meta.get("val")
    if node.target is _DROPOUT:
        value = value[1]
    return value if isinstance(value, torch.Tensor) else None


def _drop(graph: fx.Graph, node: fx.Node, mask: fx.Node) -> None:
    """Put dropout by ``mask`` in the place of ``node``, which gives its result and the mask."""
    x: Any = node.args[0]
    kept = insert(graph, aten.mul.Tensor, x, mask)
    probability: Any = node.args[1]
    scaled = insert(graph, aten.mul.Tensor, kept, 1.0 / (1.0 - probability))
    for item in list(node.users):
        if item.args[1] == 0:
            replace_with(graph, item, scaled)
        else:
            item.replace_all_uses_with(mask)
            graph.erase_node(item)
    graph.erase_node(node)


def _keyed(node: fx.Node) -> _Made | None:
    """The function that a draw becomes, with its arguments behind the dtype."""
    value = _drawn(node) if node.target in _DRAWS else None
    if value is None:
        return None
    if value.layout is not torch.strided or node.kwargs.get("generator") is not None:
        return None
    arg = partial(argument, node)
    if node.target in _UNIFORM:
        return (keyed.uniform, ()) if value.dtype in keyed.BITS else None
    if node.target in _NORMAL:
        plain = all(isinstance(x, (int, float)) or _varies(x) for x in _spread(node))
        return (keyed.normal, ()) if value.dtype in keyed.BITS and plain else None
    if node.target is _DROPOUT:
        p, train = arg(1, "p"), arg(2, "train")
        known = isinstance(p, float) and 0 < p < 1 and train is not False
        return (keyed.bernoulli, (1.0 - p,)) if known else None
    if node.target is aten.bernoulli.p:
        probability = arg(1, "p")
        known = isinstance(probability, (int, float)) and 0 <= probability <= 1
        return (keyed.bernoulli, (probability,)) if known or _varies(probability) else None
    if node.target in _INTEGERS:
        low, high = (arg(n, name) if n is not None else 0 for n, name in _INTEGERS[node.target])
        known = type(low) is int and type(high) is int and low < high
        if known and high - low < keyed.MOST_INTEGERS and value.dtype is not torch.bool:
            return keyed.integers, (low, high)
    return None


def _varies(number: object) -> bool:
    """Whether it is a number of each call; it was checked where the program was captured."""
    return isinstance(number, fx.Node) and isinstance(number.meta.get("val"), torch.SymFloat)


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
_DRAWS = {_DROPOUT, aten.bernoulli.p, *_UNIFORM, *_NORMAL, *_INTEGERS}
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
    arg = partial(argument, node)
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
    drawn = _drawn(node)
    assert drawn is not None
    for dim, size in enumerate(drawn.shape):
        if type(size) is int:
            found.append(size)
            continue
        one = graph.call_function(aten.sym_size.int, (like, dim))
        one.meta["val"] = size
        found.append(one)
    return found


def _seeds(graph: fx.Graph, like: torch.Tensor, count: int) -> list[fx.Node]:
    """Nodes of seeds for the draws on the device of ``like``."""
    mode = fake_mode_of(like)
    assert mode is not None
    node = graph.call_function(keyed.seeds, (count, like.device))
    with mode:
        fakes = [torch.empty([], dtype=torch.int64, device=like.device) for _ in range(count)]
    node.meta["val"] = fakes
    found = [graph.call_function(operator.getitem, (node, n)) for n in range(count)]
    for item, fake in zip(found, fakes, strict=True):
        item.meta["val"] = fake
    return found
