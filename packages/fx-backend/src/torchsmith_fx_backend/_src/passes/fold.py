"""Constant folding: operators on tensors of one repeated value become such tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, escaping

aten = torch.ops.aten
FULL = aten.full.default

_VIEWS = (aten.view.default, aten.unsqueeze.default, aten.expand.default, aten.detach.default)
# Operators that map repeated values to a repeated value.
_FOLDABLE = frozenset(
    {
        aten.add.Tensor,
        aten.sub.Tensor,
        aten.mul.Tensor,
        aten.div.Tensor,
        aten.neg.default,
        aten.abs.default,
        aten.rsqrt.default,
        aten.sqrt.default,
        aten.reciprocal.default,
        aten.minimum.default,
        aten.maximum.default,
        aten.where.self,
        aten.eq.Scalar,
        aten.ne.Scalar,
        aten.lt.Scalar,
        aten.le.Scalar,
        aten.gt.Scalar,
        aten.ge.Scalar,
        aten.logical_not.default,
        aten.bitwise_not.default,
        aten._to_copy.default,
        aten.clone.default,
        *_VIEWS,
    }
)


class FoldConstants(Pass):
    """Folds calls whose tensor operands are all ``full`` nodes with a literal value. What is
    computed at compile time has one element."""

    def run(self, graph: fx.Graph) -> None:
        visible = escaping(graph)
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target not in _FOLDABLE or node in visible:
                continue
            operands = node.all_input_nodes
            if not operands or not all(_is_literal(n) for n in operands):
                continue
            value = node.meta["val"]
            if any(type(n) is not int for n in value.shape) or not value.is_contiguous():
                continue
            number = _compute(node)
            if number is None:
                continue
            with graph.inserting_before(node):
                folded = graph.create_node(
                    "call_function",
                    FULL,
                    (list(value.shape), number),
                    {"dtype": value.dtype, "device": value.device, "pin_memory": False},
                )
            folded.meta = dict(node.meta)
            node.replace_all_uses_with(folded)
            graph.erase_node(node)


def _is_literal(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target is FULL
        and type(node.args[1]) in (bool, int, float)
    )


def _compute(node: fx.Node) -> bool | int | float | None:
    def single(operand: fx.Node) -> torch.Tensor:
        value = operand.meta["val"]
        number: Any = operand.args[1]
        return torch.full([1] * value.dim(), number, dtype=value.dtype)

    target: Any = node.target
    if target in _VIEWS:
        return single(node.all_input_nodes[0]).item()
    args = fx.node.map_arg(node.args, single)
    kwargs = {k: v for k, v in node.kwargs.items() if k != "device"}
    result = target(*args, **kwargs)
    return result.item() if result.numel() == 1 else None
