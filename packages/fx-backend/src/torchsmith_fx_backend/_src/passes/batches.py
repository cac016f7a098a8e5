"""Products of batches of several axes, as products of batches of one.

``matmul`` merges the axes of a batch, and copies an operand whose axes do not lie as one: the heads
of an attention do not. Where kernels compute the operand, they can write it as it is read. The same
goes for what ``linear`` takes as rows, such as transposed ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.sizes import is_tensor
from torchsmith_fx_backend._src.passes.base import CONTIGUOUS, Pass, insert, is_static

aten = torch.ops.aten


class BatchedProducts(Pass):
    """Replaces ``matmul`` over batches of at least two axes by ``bmm``; copies rows of ``linear``
    where it would."""

    def run(self, graph: fx.Graph) -> None:
        copies: dict[fx.Node, fx.Node] = {}
        for node in graph.find_nodes(op="call_function", target=aten.linear.default):
            x: Any = node.args[0]
            value = x.meta["val"]
            if x.op != "call_function" or not _suits(value, 3):
                continue
            if lie_as_one(value, range(value.dim() - 1)):
                continue
            with graph.inserting_before(node):
                copies[x] = copies.get(x) or insert(graph, aten.clone.default, x, **CONTIGUOUS)
            node.args = (copies[x], *node.args[1:])
        for node in graph.find_nodes(op="call_function", target=aten.matmul.default):
            operands: Any = node.args
            values = [operand.meta["val"] for operand in operands if is_tensor(operand)]
            batches = {value.shape[:-2] if _suits(value, 4) else None for value in values}
            if None in batches or len(batches) != 1:
                continue
            with graph.inserting_before(node):
                merged = [_merged(graph, operand) for operand in operands]
                product = insert(graph, aten.bmm.default, *merged)
                result = insert(graph, aten.view.default, product, list(node.meta["val"].shape))
            for new in (product, result):
                new.meta = {**node.meta, "val": new.meta["val"]}
            node.replace_all_uses_with(result)
            graph.erase_node(node)


def _suits(value: torch.Tensor, least: int) -> bool:
    return value.dim() >= least and is_static(value) and value.numel() > 0


def lie_as_one(value: torch.Tensor, axes: Iterable[int]) -> bool:
    """Whether these axes, outer ones first, can be viewed as one."""
    steps = [(value.shape[axis], value.stride(axis)) for axis in axes]
    return all(a == n * b for (_, a), (n, b) in pairwise([s for s in steps if s[0] != 1]))


def _merged(graph: fx.Graph, operand: fx.Node) -> fx.Node:
    """An operand with one axis for its batch. A copy keeps which of the two others is inner."""
    value = operand.meta["val"]
    *batch, rows, columns = value.shape
    if not lie_as_one(value, range(value.dim() - 2)):
        across = value.stride(-2) == 1 != value.stride(-1)
        if across:
            operand = insert(graph, aten.transpose.int, operand, -2, -1)
        operand = insert(graph, aten.clone.default, operand, **CONTIGUOUS)
        if across:
            operand = insert(graph, aten.transpose.int, operand, -2, -1)
    return insert(graph, aten.view.default, operand, [prod(batch), rows, columns])
