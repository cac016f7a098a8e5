"""Matrix products whose rows do not start at multiples of 16 bytes, made to.

The library's fast kernels load 16 bytes at a time. A row of 50,257 bfloat16 numbers sends a product
to kernels that reach a seventh of their speed. Operands are padded in each call (nothing computed
from a weight outlives it), and results padded, or computed by classes of rows where there are many
of them, when that is estimated to cost less than it gains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src import by_rows
from torchsmith_fx_backend._src.passes.base import insert, is_static, replace_with

aten = torch.ops.aten

_ROW = by_rows.ROW
_MANY = 256  # rows from which on a product of two-byte numbers is not bound by reading the weight
# Measured on an H200, bfloat16, in operations per second (aligned to 16, 4 and 2 bytes), bytes per
# second, and seconds for one more kernel. Other chips differ in all of them alike.
_ALIGNED, _BY_TWO, _ODD = 600e12, 240e12, 100e12
_BANDWIDTH = 3.0e12
_LAUNCH = 4e-6
_CONTIGUOUS = {"memory_format": torch.contiguous_format}


@dataclass(frozen=True)
class AlignedProducts:
    """Pads the operands of ``linear`` and ``mm`` where that pays.

    Attributes:
        device: products on devices of this type are rewritten.
    """

    device: str = "cuda"
    name: str = "aligned-products"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        changed = False
        for target in (aten.linear.default, aten.mm.default):
            for node in graph.find_nodes(op="call_function", target=target):
                changed |= self._rewrite(graph, node, padded)
        return changed

    def _rewrite(
        self,
        graph: fx.Graph,
        node: fx.Node,
        padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node],
    ) -> bool:
        left: Any = node.args[0]
        right: Any = node.args[1]
        x, w, result = (n.meta["val"] for n in (left, right, node))
        if not all(is_static(v) and v.dim() >= 1 and v.numel() for v in (x, w, result)):
            return False
        if any(v.device.type != self.device or v.dtype.itemsize != 2 for v in (x, w, result)):
            return False
        transposed = node.target is aten.linear.default  # the weight is [columns, inner]
        inner, columns = x.shape[-1], result.shape[-1]
        rows = result.numel() // columns
        more_inner, more = -inner % _ROW, -columns % _ROW
        if w.dim() != 2 or not _pays(rows, inner, columns):
            return False

        def pad(operand: fx.Node, *sizes: int) -> fx.Node:
            """Zeros behind the last dimensions, the last first."""
            if not any(sizes):
                return operand
            if (operand, sizes) not in padded:
                amounts = [n for size in sizes for n in (0, size)]
                target = aten.constant_pad_nd.default
                padded[operand, sizes] = insert(graph, target, operand, amounts, 0.0)
            return padded[operand, sizes]

        classes = (
            more
            and rows >= _MANY * by_rows.period(columns)
            and columns >= 2 * _ROW
            and result.is_contiguous()
        )
        with graph.inserting_before(node):
            if classes:
                weight = right if transposed else insert(graph, aten.t.default, right)
                if not weight.meta["val"].is_contiguous():
                    weight = insert(graph, aten.clone.default, weight, **_CONTIGUOUS)
                bias = node.args[2] if len(node.args) > 2 else None
                operands = (pad(left, more_inner), pad(weight, more_inner), bias)
                part = graph.call_function(by_rows.product, operands)
                part.meta = dict(node.meta)
                node.replace_all_uses_with(part)
                graph.erase_node(node)
                return True
            both = (more_inner, more) if transposed else (more, more_inner)
            args: list[Any] = [pad(left, more_inner), pad(right, *both)]
            if len(node.args) > 2 and node.args[2] is not None:
                args.append(pad(node.args[2], more))  # type: ignore[arg-type]
            wide = insert(graph, node.target, *args)  # type: ignore[arg-type]
            if not more:
                part = wide
            else:
                part = insert(graph, aten.slice.Tensor, wide, -1, 0, columns)
        replace_with(graph, node, part)
        return True


def _pays(rows: int, inner: int, columns: int) -> bool:
    """Whether a product gains more by aligned rows than padding costs."""
    common = math.gcd(inner, columns)
    if common % 4 == 0:  # eight bytes: not measured to be slow
        return False
    work = 2 * rows * inner * columns
    gain = work / (_BY_TWO if common % 2 == 0 else _ODD) - work / _ALIGNED
    moved, kernels = inner * columns, 1
    if inner % _ROW:
        moved, kernels = moved + rows * inner, kernels + 1
    if columns % _ROW:
        moved, kernels = moved + rows * columns, kernels + 1
    return gain > 2 * 2 * moved / _BANDWIDTH + kernels * _LAUNCH
