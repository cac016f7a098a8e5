"""Matrix products with one row, one column or one inner term, as sums of products.

Nothing is used twice in them, so that they cost what reading their operands costs, and a library's
tiles gain nothing. As loops they take part in fusion (projections of one input, a gate's
activation, biases and residuals), and a launch takes a fifth of the host time of a library's call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, insert, is_static, replace_with

aten = torch.ops.aten

# -> where the factors are, and where what is added, if that may be there
_PRODUCTS: dict[Any, tuple[int, int, int | None]] = {
    aten.linear.default: (0, 1, 2),
    aten.mm.default: (0, 1, None),
    aten.bmm.default: (0, 1, None),
    aten.matmul.default: (0, 1, None),
    aten.addmm.default: (1, 2, 0),
}
_LOW = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class ThinProducts(Pass):
    """Replaces thin products by multiplications and sums, accumulated in at least float32 and
    rounded once, as the library does it.

    Attributes:
        device: products on devices of this type are rewritten.
    """

    device: str = "cuda"

    def run(self, graph: fx.Graph) -> None:
        thin = [node for node in graph.nodes if node.target in _PRODUCTS and self._fits(node)]
        for node in thin:
            _rewrite(graph, node)

    def _fits(self, node: fx.Node) -> bool:
        left, right, _ = _PRODUCTS[node.target]
        if node.kwargs or any(not isinstance(node.args[n], fx.Node) for n in (left, right)):
            return False
        a, b = (node.args[n].meta["val"] for n in (left, right))  # type: ignore[union-attr]
        result = node.meta["val"]
        if a.dim() < 2 or b.dim() < 2 or not all(map(is_static, (a, b, result))):
            return False
        if result.device.type != self.device or not result.dtype.is_floating_point:
            return False
        if not (a.numel() and b.numel()):
            return False
        linear = node.target is aten.linear.default
        rows = a.numel() // a.shape[-1] if linear else a.shape[-2]
        return 1 in (rows, a.shape[-1], result.shape[-1])


def _rewrite(graph: fx.Graph, node: fx.Node) -> None:
    left, right, more = _PRODUCTS[node.target]
    dtype = node.meta["val"].dtype
    with graph.inserting_before(node):

        def wide(operand: Any) -> fx.Node:
            if dtype not in _LOW:
                return operand  # type: ignore[no-any-return]
            return insert(graph, aten._to_copy.default, operand, dtype=torch.float32)

        b: Any = wide(node.args[right])
        if node.target is aten.linear.default:
            b = insert(graph, aten.t.default, b)
        a = insert(graph, aten.unsqueeze.default, wide(node.args[left]), -1)
        b = insert(graph, aten.unsqueeze.default, b, -3)
        total = insert(graph, aten.mul.Tensor, a, b)
        total = insert(graph, aten.sum.dim_IntList, total, [-2])
        if more is not None and len(node.args) > more and node.args[more] is not None:
            total = insert(graph, aten.add.Tensor, total, wide(node.args[more]))
        if dtype in _LOW:
            total = insert(graph, aten._to_copy.default, total, dtype=dtype)
    replace_with(graph, node, total)
