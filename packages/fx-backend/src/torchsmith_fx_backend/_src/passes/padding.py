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
from torchsmith_fx_backend._src.passes.base import (
    CONTIGUOUS,
    Pass,
    escaping,
    insert,
    is_static,
    replace_with,
)

aten = torch.ops.aten

_ROW = by_rows.ROW
_MANY = 256  # rows from which on a product of two-byte numbers is not bound by reading the weight
# Measured on an H200, bfloat16, in operations per second (aligned to 16, 4 and 2 bytes), bytes per
# second, and seconds for one more kernel. Other chips differ in all of them alike.
_ALIGNED, _BY_TWO, _ODD = 600e12, 240e12, 100e12
_BANDWIDTH = 3.0e12
_LAUNCH = 4e-6


@dataclass(frozen=True)
class AlignedProducts(Pass):
    """Pads the operands of ``linear`` and ``mm`` where that pays.

    Attributes:
        device: products on devices of this type are rewritten.
    """

    device: str = "cuda"

    def run(self, graph: fx.Graph) -> None:
        padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node] = {}
        seen = escaping(graph)
        for node in list(graph.nodes):
            if node.target in (aten.linear.default, aten.mm.default):
                self._rewrite(graph, node, padded, node in seen)

    def _rewrite(
        self,
        graph: fx.Graph,
        node: fx.Node,
        padded: dict[tuple[fx.Node, tuple[int, ...]], fx.Node],
        seen: bool,
    ) -> None:
        left: Any = node.args[0]
        right: Any = node.args[1]
        x, w, result = (n.meta["val"] for n in (left, right, node))
        if w.dim() != 2 or not all(map(self._fits, (x, w, result))):
            return
        linear = node.target is aten.linear.default  # the weight is [columns, inner]
        inner, columns = x.shape[-1], result.shape[-1]
        rows = result.numel() // columns
        # Which dimension lies along the rows in memory, and how far apart these start.
        steps = (
            ("rows" if _lies_across(x) else "inner", _step(x)),
            ("columns" if linear == _lies_across(w) else "inner", _step(w)),
            ("columns", columns),
        )
        odd = {name for name, step in steps if step % _ROW}
        more_rows, more_inner, more = (
            -size % _ROW if name in odd else 0
            for name, size in (("rows", rows), ("inner", inner), ("columns", columns))
        )
        moved = [
            (more_rows or more_inner, rows * inner),
            (more_inner or more, inner * columns),
            (more, rows * columns),
        ]
        common = math.gcd(*(step for _, step in steps))
        copied = [size for does, size in moved if does]
        if not copied or not _pays(2 * rows * inner * columns, common, copied):
            return

        def pad(operand: fx.Node, *sizes: int) -> fx.Node:
            """Zeros behind the last dimensions, the last first, laid out as ``operand`` is."""
            if not any(sizes):
                return operand
            if len(sizes) == 2 and _lies_across(operand.meta["val"]):
                return insert(graph, aten.t.default, pad(_turned(graph, operand), *sizes[::-1]))
            sizes = sizes[: max(n for n, size in enumerate(sizes, 1) if size)]
            if (operand, sizes) not in padded:
                amounts = [n for size in sizes for n in (0, size)]
                target = aten.constant_pad_nd.default
                padded[operand, sizes] = insert(graph, target, operand, amounts, 0.0)
            return padded[operand, sizes]

        left_sizes = (more_inner, more_rows) if x.dim() == 2 else (more_inner,)
        classes = (
            more
            and not more_rows
            and rows >= _MANY * by_rows.period(columns)
            and columns >= 2 * _ROW
            and result.is_contiguous()
            and (seen or _copies_are_dear(rows * columns, by_rows.period(columns)))
        )
        with graph.inserting_before(node):
            if classes:
                weight = right if linear else insert(graph, aten.t.default, right)
                if not weight.meta["val"].is_contiguous():
                    weight = insert(graph, aten.clone.default, weight, **CONTIGUOUS)
                bias = node.args[2] if len(node.args) > 2 else None
                operands = (pad(left, *left_sizes), pad(weight, more_inner), bias)
                part = graph.call_function(by_rows.product, operands)
                part.meta = dict(node.meta)
                node.replace_all_uses_with(part)
                graph.erase_node(node)
                return
            both = (more_inner, more) if linear else (more, more_inner)
            args: list[Any] = [pad(left, *left_sizes), pad(right, *both)]
            if len(node.args) > 2 and node.args[2] is not None:
                args.append(pad(node.args[2], more))  # type: ignore[arg-type]
            part = insert(graph, node.target, *args)  # type: ignore[arg-type]
            if more:
                part = insert(graph, aten.slice.Tensor, part, -1, 0, columns)
            if more_rows:
                part = insert(graph, aten.slice.Tensor, part, 0, 0, rows)
                if seen:  # eager's result is no part of a larger one
                    part = insert(graph, aten.clone.default, part)
        replace_with(graph, node, part)

    def _fits(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` may belong to a product that is rewritten."""
        if not is_static(tensor) or tensor.dim() < 1 or not tensor.numel():
            return False
        return tensor.device.type == self.device and tensor.dtype.itemsize == 2


def _lies_across(tensor: torch.Tensor) -> bool:
    """Whether a matrix lies column by column."""
    return tensor.dim() == 2 and tensor.stride(0) == 1 and tensor.stride(1) != 1


def _step(tensor: torch.Tensor) -> int:
    """How far apart neighbours across the dense dimension lie."""
    if tensor.dim() == 2 and min(tensor.stride()) == 1:
        return max(tensor.stride())
    return tensor.shape[-1]  # or made contiguous


def _turned(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """The transpose of a matrix, which is what ``node`` is the transpose of if it is one."""
    if node.target is aten.t.default:
        return node.args[0]  # type: ignore[return-value]
    return insert(graph, aten.t.default, node)


def _pays(work: int, common: int, moved: list[int]) -> bool:
    """Whether a product gains more by aligned rows than padding costs.

    Args:
        work: its operations.
        common: what divides the distances of all rows.
        moved: elements of what is copied for it.
    """
    if common % 4 == 0:  # eight bytes: not measured to be slow
        return False
    gain = work / (_BY_TWO if common % 2 == 0 else _ODD) - work / _ALIGNED
    return gain > 2 * 2 * sum(moved) / _BANDWIDTH + len(moved) * _LAUNCH


def _copies_are_dear(elements: int, classes: int) -> bool:
    """Whether a copy of a padded result without its padding, which may well happen where it is
    read, costs more than a product and a padded weight for each class of rows."""
    return 2 * 2 * elements / _BANDWIDTH > 2 * classes * _LAUNCH
