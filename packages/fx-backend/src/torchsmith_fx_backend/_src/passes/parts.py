"""Writes into parts of what kernels do not compute, with one call for each."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, insert, is_static

aten = torch.ops.aten
Strided = tuple[list[int], list[int], int]  # size, strides, offset


class NestedParts(Pass):
    """A slice of a slice of complex numbers that a program writes is put back into the slice, and
    that into the whole: two copies, where eager writes the elements alone."""

    def run(self, graph: fx.Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.slice_scatter.default):
            base: Any = node.args[0]
            whole = base.meta["val"]
            if not whole.is_complex() or not is_static(whole) or not _begins(base):
                continue
            value, part = _innermost(node, (list(whole.shape), list(whole.stride()), 0))
            if value is not node.args[1]:
                with graph.inserting_before(node):
                    new = insert(graph, aten.as_strided_scatter.default, base, value, *part)
                new.meta = {**node.meta}
                node.replace_all_uses_with(new)
                graph.erase_node(node)


def _begins(node: fx.Node) -> bool:
    """Whether a value is dense, and the beginning of memory of its own: copies of it are, too."""
    if node.target in (aten.slice_scatter.default, aten.as_strided_scatter.default):
        return _begins(node.args[0])  # type: ignore[arg-type]
    made = node.target in (aten.full.default, aten.clone.default)
    return made and bool(node.meta["val"].is_contiguous())


def _innermost(node: fx.Node, strided: Strided) -> tuple[Any, Strided]:
    """What is written, and where in the memory of the whole."""
    given: Any = node.args
    base, value, *where = given
    inside = _sliced(strided, *where)
    if (
        value.target is aten.slice_scatter.default
        and len(value.users) == 1
        and value.args[0].target is aten.slice.Tensor
        and value.args[0].args == (base, *where)
    ):
        return _innermost(value, inside)
    return value, inside


def _sliced(
    strided: Strided, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Strided:
    """Where a slice lies."""
    size, stride, offset = strided
    axis = dim % len(size)
    taken = range(*slice(start, end, step).indices(size[axis]))
    moved = offset + taken.start * stride[axis]
    counts = [len(taken) if d == axis else n for d, n in enumerate(size)]
    return counts, [n * step if d == axis else n for d, n in enumerate(stride)], moved
