"""Scatters for kernels: with a copy of their own to write into, and in terms of few operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.registry import Pointwise, Scatter, argument, rule_for
from torchsmith_fx_backend._src.loops.scatters import REDUCING, in_any_order, takes_alone
from torchsmith_fx_backend._src.passes.base import (
    Pass,
    insert,
    is_static,
    replace_with,
    same_layout,
)

aten = torch.ops.aten


class ScatterTargets(Pass):
    """Gives each scatter that kernels can do a first operand that nothing else reads, and that
    lies in memory as its result: the kernel writes into that. Runs right before scheduling, since
    other passes would take the copies away.

    Reductions that leave out what was there before, means, and the gradient of an embedding become
    scatters that stores can do; those of a GPU stay, where aten has better ways.
    """

    def run(self, graph: fx.Graph) -> None:
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in _REWRITES and _on_cpu(node):
                _rewrite(graph, node, _REWRITES[node.target])
        for node in list(graph.nodes):
            if node.op == "call_function" and node.target in _SOURCES:
                _rewrite(graph, node, _widened)
        for node in list(graph.nodes):
            if node.op == "call_function" and isinstance(rule_for(node), Scatter):
                _give_target(graph, node)


def _on_cpu(node: fx.Node) -> bool:
    return bool(node.meta["val"].device.type == "cpu")


def _rewrite(
    graph: fx.Graph, node: fx.Node, rewrite: Callable[[fx.Graph, fx.Node], fx.Node | None]
) -> None:
    with graph.inserting_before(node):
        new = rewrite(graph, node)
    if new is not None and same_layout(new.meta["val"], node.meta["val"]):
        replace_with(graph, node, new)


def _widened(graph: fx.Graph, node: Any) -> fx.Node | None:
    """Sums and products in low precision are rounded once, not at each point; a GPU's memory adds
    no others."""
    dtype = node.meta["val"].dtype
    low = dtype in (torch.bfloat16, torch.float16)
    if not low or not _accumulates(node):
        return None
    if not (isinstance(rule_for(node), Scatter) if _on_cpu(node) else in_any_order(node)):
        return None
    args: list[Any] = list(node.args)
    for position in (0, _SOURCES[node.target]):
        if isinstance(args[position], fx.Node):
            args[position] = insert(
                graph, aten._to_copy.default, args[position], dtype=torch.float32
            )
    wide = insert(graph, node.target, *args, **node.kwargs)
    return insert(graph, aten._to_copy.default, wide, dtype=dtype)


def _accumulates(node: fx.Node) -> bool:
    """Whether what points write is summed up or multiplied."""
    if node.target is aten.index_put.default:
        return bool(argument(node, 3, "accumulate", False))
    return node.target not in REDUCING or argument(node, 4, "reduce") not in ("amax", "amin")


def _give_target(graph: fx.Graph, node: fx.Node) -> None:
    target = node.args[0]
    assert isinstance(target, fx.Node)
    made = target.op == "call_function" and isinstance(rule_for(target), Pointwise | Scatter)
    fits = same_layout(target.meta["val"], node.meta["val"])
    if made and fits and takes_alone(node):
        return
    for kept in (torch.preserve_format, torch.contiguous_format):
        with graph.inserting_before(node):
            copy = insert(graph, aten.clone.default, target, memory_format=kept)
        if same_layout(copy.meta["val"], node.meta["val"]):
            node.args = (copy, *node.args[1:])
            return
        graph.erase_node(copy)


def _reduced(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    """``scatter_reduce`` without what was there before, and means."""
    target: Any = node.args[0]
    dim, index, source, reduce = (argument(node, i, n) for i, n in _REDUCE_ARGS)
    included = argument(node, 5, "include_self", True)
    dtype = target.meta["val"].dtype
    mean = reduce == "mean"
    if dtype is torch.bool or dtype.is_complex or (included and not mean):
        return None
    low = not dtype.is_floating_point
    most = torch.iinfo(dtype).max if low else float("inf")
    least = torch.iinfo(dtype).min if low else -float("inf")
    start = {"amax": least, "amin": most, "prod": 1}.get(str(reduce), 0)
    if not included:
        target = insert(graph, aten.scatter.value, target, dim, index, start)
    kind = "sum" if mean else reduce
    total = insert(graph, aten.scatter_reduce.two, target, dim, index, source, kind)
    if not mean:
        return total
    ones = insert(graph, aten.full_like.default, target, 1)
    if not included:
        ones = insert(graph, aten.scatter.value, ones, dim, index, 0)
    one = insert(graph, aten.full_like.default, source, 1)
    count = insert(graph, aten.scatter_add.default, ones, dim, index, one)
    if low:
        return insert(graph, aten.div.Tensor_mode, total, count, rounding_mode="floor")
    return insert(graph, aten.div.Tensor, total, count)


_REDUCE_ARGS = ((1, "dim"), (2, "index"), (3, "src"), (4, "reduce"))


def _embedding_gradient(graph: fx.Graph, node: fx.Node) -> fx.Node | None:
    grad, index, _, padding, by_frequency = node.args
    assert isinstance(grad, fx.Node) and isinstance(index, fx.Node)
    value = node.meta["val"]
    if by_frequency or not is_static(value) or type(padding) is not int:
        return None
    if padding >= 0:
        row = insert(graph, aten.eq.Scalar, index, padding)
        row = insert(graph, aten.unsqueeze.default, row, -1)
        grad = insert(graph, aten.masked_fill.Scalar, grad, row, 0)
    options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
    zeros = graph.call_function(aten.full.default, (list(value.shape), 0), options)
    zeros.meta["val"] = value
    return insert(graph, aten.index_put.default, zeros, [index], grad, True)


# Where the operand is that is added, or multiplied with what is there.
_SOURCES: dict[Any, int] = {
    **dict.fromkeys(REDUCING, 3),
    aten.scatter_add.default: 3,
    aten.index_add.default: 3,
    aten.index_put.default: 2,
}
_REWRITES = {
    aten.scatter_reduce.two: _reduced,
    aten.embedding_dense_backward.default: _embedding_gradient,
}
