"""Sums of products in which each factor takes part many times, as matrix products.

``(a[:, :, None] * b[None]).sum(-1)`` is ``a @ b.t()``. Written out like that, by a program (state
spaces, capsules, pairwise scores) or by the gradient of such an expression, a loop reads both
factors again for each sum; a library's product keeps them in tiles. Four of them were nine tenths
of a Mamba-2 layer's time on an H200.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import CONTIGUOUS, Pass, insert, is_static, replace_with
from torchsmith_fx_backend._src.passes.batches import lie_as_one
from torchsmith_fx_backend._src.runtime.products import EXACT_MATMUL

aten = torch.ops.aten
_LEAST = 8  # terms, rows and columns
_LIBRARY = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# -> dtypes, in how many products each number read or written takes part at least, and how many
# there are in all; a CPU's loops keep more in registers and caches
_DEVICES: dict[str, tuple[set[torch.dtype], int, int]] = {
    "cuda": (_LIBRARY, 8, 1 << 24),
    "cpu": ({torch.float32, torch.float64}, 16, 1 << 22),
}
_GUESS = 64  # what an unknown number of products in a batch stands for


@dataclass(frozen=True)
class _Axes:
    """The axes of a product of two factors, by what they are in a matrix product, and whether all
    of its sizes and steps are known."""

    static: bool
    batch: list[int]
    rows: list[int]
    columns: list[int]
    inner: list[int]


class Contractions(Pass):
    """Replaces sums of products of two factors by ``matmul`` where both are used many times.

    Products in low precision are not rounded before they are summed then. Products of float32 stay
    as exact as they were, whatever is allowed for ``matmul``.
    """

    def run(self, graph: fx.Graph) -> None:
        if torch.are_deterministic_algorithms_enabled():
            return  # under which a library's products may be refused
        for node in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
            axes = _axes(node)
            if axes is not None:
                with graph.inserting_before(node):
                    product = _product(graph, node, axes)
                replace_with(graph, node, product)


def _axes(node: fx.Node) -> _Axes | None:
    """How ``node`` is a matrix product that is worth a library's call, if it is one."""
    product: Any = node.args[0]
    if product.target is not aten.mul.Tensor or len(product.users) > 1 or not node.args[1]:
        return None
    if any(not isinstance(factor, fx.Node) for factor in product.args):
        return None
    values = [factor.meta["val"] for factor in product.args]
    result, whole = node.meta["val"], product.meta["val"]
    dtypes, reuse, least = _DEVICES.get(result.device.type, (set(), 0, 0))
    if result.dtype not in dtypes or not whole.dtype.is_floating_point:
        return None
    if torch.promote_types(whole.dtype, result.dtype) != result.dtype:
        return None  # factors that are rounded before they are multiplied
    if any(not isinstance(v, torch.Tensor) or v.device != result.device for v in values):
        return None
    summed = {axis % whole.dim() for axis in node.args[1]}  # type: ignore[union-attr]
    axes = _Axes(all(map(is_static, (*values, result))), [], [], [], [])
    for axis in range(whole.dim()):
        if _is_one(whole.shape[axis]):
            continue
        left, right = (not _repeats(value, axis - whole.dim()) for value in values)
        if axis in summed:
            if not (left and right):
                return None
            axes.inner.append(axis)
        elif left == right:
            axes.batch.append(axis)
        else:
            (axes.rows if left else axes.columns).append(axis)
    return axes if _pays(axes, whole, reuse, least) else None


def _is_one(size: int | torch.SymInt) -> bool:
    return type(size) is int and size == 1


def _repeats(value: torch.Tensor, axis: int) -> bool:
    """Whether ``value`` is the same all along an axis, counted from the last."""
    if value.dim() < -axis:
        return True
    step = value.stride(axis)
    return _is_one(value.shape[axis]) or (type(step) is int and step == 0)


def _pays(axes: _Axes, whole: torch.Tensor, reuse: int, least: int) -> bool:
    groups = (axes.rows, axes.columns, axes.inner)
    sizes = [[whole.shape[axis] for axis in group] for group in groups]
    if any(type(size) is not int for group in sizes for size in group):
        return False
    rows, columns, inner = (prod(group) for group in sizes)
    if min(rows, columns, inner) < _LEAST:
        return False
    if rows * columns * inner < reuse * (rows * inner + inner * columns + rows * columns):
        return False
    if not axes.static and max(map(len, groups)) > 1:
        return False  # axes that would be merged beside unknown ones
    counts = (whole.shape[axis] for axis in axes.batch)
    products = prod([n if type(n) is int else _GUESS for n in counts]) * rows * columns * inner
    return products >= least and not (axes.static and whole.numel() == 0)


def _product(graph: fx.Graph, node: fx.Node, axes: _Axes) -> fx.Node:
    terms: Any = node.args[0]
    left, right = terms.args
    whole, result = terms.meta["val"], node.meta["val"]
    a = _matrices(graph, left, axes, axes.rows, whole.dim(), result.dtype)
    b = _matrices(graph, right, axes, axes.columns, whole.dim(), result.dtype)
    b = insert(graph, aten.transpose.int, b, -2, -1)
    product = insert(graph, aten.bmm.default if axes.static else aten.matmul.default, a, b)
    if result.dtype in (torch.float32, torch.float64):
        product.target = EXACT_MATMUL  # which gives the same, as far as metadata tells
    order = [*axes.batch, *axes.rows, *axes.columns]
    if axes.static:
        sizes = [whole.shape[axis] for axis in order]
        product = insert(graph, aten.view.default, product, sizes)
    back = [order.index(axis) for axis in sorted(order)]
    product = insert(graph, aten.permute.default, product, back)
    for axis, size in enumerate(result.shape):  # those of one element, which were left out
        if _is_one(size):
            product = insert(graph, aten.unsqueeze.default, product, axis)
    return product


def _matrices(
    graph: fx.Graph, factor: fx.Node, axes: _Axes, outer: list[int], rank: int, dtype: torch.dtype
) -> fx.Node:
    """A factor as a batch of matrices, results' rows or columns (``outer``) by terms."""
    batch, inner = axes.batch, axes.inner
    for _ in range(rank - factor.meta["val"].dim()):
        factor = insert(graph, aten.unsqueeze.default, factor, 0)
    kept = [*batch, *outer, *inner]
    for axis in reversed([axis for axis in range(rank) if axis not in kept]):
        factor = insert(graph, aten.select.int, factor, axis, 0)
    if factor.meta["val"].dtype != dtype:
        factor = insert(graph, aten._to_copy.default, factor, dtype=dtype)
    places, steps = sorted(kept), factor.meta["val"].stride()
    turned = all(type(n) is int for n in steps) and steps[places.index(outer[-1])] == 1
    groups = (batch, inner, outer) if turned else (batch, outer, inner)
    order = [places.index(axis) for group in groups for axis in group]
    factor = insert(graph, aten.permute.default, factor, order)
    if axes.static:
        factor = _merged(graph, factor, [len(group) for group in groups])
    if turned:
        factor = insert(graph, aten.transpose.int, factor, -2, -1)
    return factor


def _merged(graph: fx.Graph, factor: fx.Node, counts: list[int]) -> fx.Node:
    """``factor`` with one axis for each ``counts`` of them: copied where they do not lie as one."""
    value = factor.meta["val"]
    starts = [sum(counts[:n]) for n in range(len(counts) + 1)]
    parts = [range(start, end) for start, end in pairwise(starts)]
    if not all(lie_as_one(value, part) for part in parts):
        factor = insert(graph, aten.clone.default, factor, **CONTIGUOUS)
    sizes = [prod([value.shape[axis] for axis in part]) for part in parts]
    return insert(graph, aten.view.default, factor, sizes)
