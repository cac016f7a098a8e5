"""Matrix products with one row, one column or one inner term, as sums of products.

Nothing is used twice in them, so that they cost what reading their operands costs, and a library's
tiles gain nothing. Nor do they where many rows meet few columns of few terms (attention that mixes
four heads: 0.28 ms a product of a million rows on an H200). As loops they take part in fusion
(projections of one input, a gate's activation, biases and residuals), and a launch takes a fifth of
the host time of a library's call.
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
_FEW, _MANY = 64, 1 << 14  # products that a row of the result takes, and such rows
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
        for node in [n for n in graph.nodes if n.target in _PRODUCTS and self._fits(n)]:
            _rewrite(graph, node)

    def _fits(self, node: fx.Node) -> bool:
        left, right, _ = _PRODUCTS[node.target]
        if node.kwargs or any(not isinstance(node.args[n], fx.Node) for n in (left, right)):
            return False
        a, b = (node.args[n].meta["val"] for n in (left, right))  # type: ignore[union-attr]
        result = node.meta["val"]
        kind = result.device.type == self.device and result.dtype.is_floating_point
        if not kind or a.dim() < 2 or b.dim() < 2 or not all(map(is_static, (a, b, result))):
            return False
        if not (a.numel() and b.numel()):
            return False
        rows = a.numel() // a.shape[-1] if node.target is aten.linear.default else a.shape[-2]
        inner, columns = a.shape[-1], result.shape[-1]
        small = inner * columns <= _FEW and result.numel() >= _MANY * columns
        return small or 1 in (rows, inner, columns)


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
        total = insert(graph, aten.sum.dim_IntList, insert(graph, aten.mul.Tensor, a, b), [-2])
        if more is not None and len(node.args) > more and node.args[more] is not None:
            total = insert(graph, aten.add.Tensor, total, wide(node.args[more]))
        if dtype in _LOW:
            total = insert(graph, aten._to_copy.default, total, dtype=dtype)
    replace_with(graph, node, total)
