"""No-ops: copies and views that change nothing, and what is taken out of a stack again."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx
from torchsmith_guards import same_sizes

from torchsmith_fx_backend._src.captured import is_boxed
from torchsmith_fx_backend._src.passes.base import (
    Pass,
    copied_back,
    escaping,
    is_view,
    returned,
    same_layout,
    source,
)

aten = torch.ops.aten

COPIES = frozenset({aten.clone.default, aten._to_copy.default, aten.lift_fresh_copy.default})


class NoOps(Pass):
    """Drops copies that nobody can tell from their source, views equal to what they view, and
    stacks of which only single items are read."""

    def run(self, graph: fx.Graph) -> None:
        outputs, visible, written = returned(graph), escaping(graph), copied_back(graph)
        inputs, boxed = set(graph.find_nodes(op="placeholder")), is_boxed(graph)
        for node in list(graph.nodes):
            if node.op != "call_function" or not node.args:
                continue
            item = _stacked(node)
            before = node.args[0] if item is None else item
            if not isinstance(before, fx.Node):
                continue
            is_copy = item is not None or node.target in COPIES
            if not is_copy and not is_view(node):
                continue
            if not is_copy:
                before = _viewed_before(node, before)
            if before is None or not same_layout(node.meta["val"], before.meta["val"]):
                continue
            if is_copy and not can_share(node, before, visible, written):
                continue
            if item is not None and node in visible:
                continue  # the stack may be seen as well, whose memory it shares
            if is_copy and _is_restrided(node) and _may_start_later(before):
                continue
            # Gradients go to autograd, which no view tells from the fresh tensor that it views.
            whole = boxed and source(before) is before and before not in outputs | inputs
            if not is_copy and node in outputs and not whole:
                continue
            node.replace_all_uses_with(before)
            graph.erase_node(node)
            for group in (outputs, visible, written):
                if node in group:
                    group.add(before)
                    group.add(source(before))


def _stacked(node: fx.Node) -> fx.Node | None:
    """What was stacked at the place of which ``node`` selects the item."""
    if node.target is aten.select.int:
        whole, dim, place = node.args
    elif node.target is operator.getitem and node.args[0].target is aten.unbind.int:  # type: ignore[union-attr]
        (whole, dim), place = (*node.args[0].args, 0)[:2], node.args[1]  # type: ignore[union-attr]
    else:
        return None
    if not isinstance(whole, fx.Node) or whole.target is not aten.cat.default:
        return None
    parts: Any = whole.args[0]
    rank = whole.meta["val"].dim()
    axis = dim % rank
    if (whole.args[1] if len(whole.args) > 1 else 0) % rank != axis:
        return None
    if type(place) is not int or any(p.meta["val"].shape[axis] != 1 for p in parts):
        return None
    part = parts[place]
    alone = part.target is aten.unsqueeze.default and part.args[1] % rank == axis
    return part.args[0] if alone else None


def _viewed_before(node: fx.Node, before: fx.Node) -> fx.Node | None:
    """The tensor behind ``node`` that a chain of views comes back to (``t`` of ``t``), if any."""
    value, view, found = node.meta["val"], node, before
    # The place that ``as_strided`` names counts from where the storage of the call begins.
    while view.target is not aten.as_strided.default or not _may_start_later(found):
        if _same_view(value, found.meta["val"]):
            return found
        inner = found.args[0] if is_view(found) else None
        if not isinstance(inner, fx.Node):
            break
        view, found = found, inner
    return None


def _same_view(a: torch.Tensor, b: torch.Tensor) -> bool:
    return same_layout(a, b) and same_sizes((a.storage_offset(),), (b.storage_offset(),))


def _is_restrided(node: fx.Node) -> bool:
    """Whether somebody counts elements from the start of the storage."""
    return any(
        user.target is aten.as_strided.default or (is_view(user) and _is_restrided(user))
        for user in node.users
    )


def _may_start_later(node: fx.Node) -> bool:
    """Whether the tensor may not begin where its storage does."""
    owner = source(node)
    return owner.op in ("placeholder", "get_attr") or bool(node.meta["val"].storage_offset() != 0)


def can_share(node: fx.Node, before: fx.Node, visible: set[fx.Node], written: set[fx.Node]) -> bool:
    """Whether users of the fresh tensor ``node`` may get ``before``, which has equal values."""
    owner = source(before)
    belongs_to_caller = owner.op in ("placeholder", "get_attr")
    if belongs_to_caller and node in written:
        return False  # the source may be overwritten before it is copied
    if node not in visible:
        return True
    return not belongs_to_caller and owner not in visible and owner is before
