"""Writes where a mask is true, as choices between two values."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, insert, replace_with

aten = torch.ops.aten


class MaskedWrites(Pass):
    """Replaces ``x[mask] = value`` by ``where(mask, value, x)`` for a single value. Aten looks for
    the mask's true places first, which on a GPU waits for what runs there; a choice fuses.
    """

    def run(self, graph: fx.Graph) -> None:
        for node in list(graph.find_nodes(op="call_function", target=aten.index_put.default)):
            mask = _mask(node)
            if mask is None:
                continue
            target: Any = node.args[0]
            value: Any = node.args[2]
            with graph.inserting_before(node):
                rank = target.meta["val"].dim()
                while mask.meta["val"].dim() < rank - _before(node):
                    mask = insert(graph, aten.unsqueeze.default, mask, -1)
                if value.meta["val"].dim():
                    value = insert(graph, aten.view.default, value, [])
                if len(node.args) > 3 and node.args[3]:
                    value = insert(graph, aten.add.Tensor, target, value)
                new = insert(graph, aten.where.self, mask, value, target)
            replace_with(graph, node, new)


def _before(node: fx.Node) -> int:
    """How many dimensions come before the first that is indexed."""
    indices: Any = node.args[1]
    return next(d for d, index in enumerate(indices) if index is not None)


def _mask(node: fx.Node) -> fx.Node | None:
    """The one mask of a write of one value, which has the sizes of what it is laid over."""
    target, indices, value = node.args[:3]
    assert isinstance(indices, (list, tuple))
    found = [index for index in indices if index is not None]
    if len(found) != 1 or not isinstance(found[0], fx.Node) or not isinstance(value, fx.Node):
        return None
    assert isinstance(target, fx.Node)
    whole, mask, one = (n.meta["val"] for n in (target, found[0], value))
    over = whole.shape[_before(node) :][: mask.dim()]
    same = mask.dim() > 0 and len(over) == mask.dim() and mask.dtype is torch.bool
    same = same and all(m is n or (type(m) is int and m == n) for m, n in zip(mask.shape, over))
    single = all(type(n) is int and n == 1 for n in one.shape)
    alike = one.dtype == whole.dtype and one.device == whole.device == mask.device
    adds = len(node.args) > 3 and bool(node.args[3])
    if not (same and single and alike) or (adds and whole.dtype is torch.bool):
        return None
    return found[0]
