"""Writes in place: an operator whose result only goes back into an input writes that input."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torchsmith_guards import hint_of

from torchsmith_fx_backend._src.captured import WRITES
from torchsmith_fx_backend._src.passes.base import (
    COPY,
    IN_PLACE,
    PARTS,
    Pass,
    escaping,
    same_layout,
    source,
)

aten = torch.ops.aten
_TAKEN = {
    aten.select_scatter.default: aten.select.int,
    aten.slice_scatter.default: aten.slice.Tensor,
}
_LARGE = 1 << 17  # bytes


class WritesInPlace(Pass):
    """Replaces ``new = index_copy(x, ...); ...; x.copy_(new)`` by ``x.index_copy_(...)``, which
    saves two copies of ``x`` (a key-value cache, say), where nothing else reads ``x`` itself and
    the caller sees ``new`` only as ``x``. That no other input shares memory with ``x`` is checked
    before each call. It is the last pass: afterwards the graph is not functional any more.
    """

    def run(self, graph: fx.Graph) -> None:
        seen = escaping(graph)
        _batch_norms(graph)
        for copy in graph.find_nodes(op="call_function", target=COPY):
            target: Any = copy.args[0]
            value: Any = copy.args[1]
            if (
                isinstance(value, fx.Node)
                and target.op == "placeholder"
                and not copy.users
                and value not in seen
                and same_layout(target.meta["val"], value.meta["val"])
                and (_takes(value, target, copy) or _parts_in_place(value, target, copy))
            ):
                value.target = IN_PLACE.get(value.target, value.target)
                graph.erase_node(copy)


def _parts_in_place(value: fx.Node, target: fx.Node, copy: fx.Node) -> bool:
    """Whether ``value``, which is a large ``target`` with other values in parts of it, is written
    there now. Of a small one, a kernel that has other work writes all with less ado than calls
    write parts. What else reads the memory does it for the next write alone, so before it."""
    node: Any = value
    writes: list[tuple[Any, fx.Node]] = []
    wholes = [value, target]
    while node is not target:
        if node.target not in PARTS:
            return False
        base, inner = node.args[0], node
        others = [user for user in base.users if user not in (node, copy)]
        if not _leads_only_to(node, others):
            return False
        writes.append((node, target))
        while (within := _within(inner)) is not None:
            inner = within
            writes.append((inner, inner.args[0]))
        wholes.append(base)
        if source(inner.args[1]) in wholes:
            return False
        node = base
    counted = sum(into is target for _, into in writes) == copy.meta.get(WRITES, 1)
    whole = target.meta["val"]
    if not counted or (hint_of(whole.numel()) or 0) * whole.element_size() < _LARGE:
        return False
    for node, into in writes:
        node.target = PARTS[node.target]
        node.kwargs = {**node.kwargs, "out": into}
    return True


def _within(node: Any) -> Any:
    """The write into a part of the very part that ``node`` writes, if it puts that back."""
    base, inner, *where = node.args
    if inner.target not in PARTS or len(inner.users) > 1 or len(inner.args[0].users) > 1:
        return None
    view = inner.args[0]
    same = view.target is _TAKEN[node.target] and view.args == (base, *where)
    return inner if same and view.kwargs == node.kwargs else None


def _leads_only_to(end: fx.Node, nodes: list[fx.Node]) -> bool:
    """Whether ``nodes`` and what is computed from them are there for ``end`` alone."""
    seen, waiting = {end}, nodes
    while waiting:
        node = waiting.pop()
        if not node.users:
            return False
        seen.add(node)
        waiting += [user for user in node.users if user not in seen]
    return True


def _batch_norms(graph: fx.Graph) -> None:
    """Let batch norm update its running statistics itself, where they are inputs that nothing else
    reads, as eager's does."""
    functional = aten._native_batch_norm_legit_functional.default
    for node in graph.find_nodes(op="call_function", target=functional):
        copies = [_only_copy(node, place) for place in (3, 4)]
        if None in copies or len(node.users) == len(copies):
            continue  # without a reader, nothing would call it
        for copy in copies:
            new = copy.args[1]
            graph.erase_node(copy)
            graph.erase_node(new)
        node.target = aten.native_batch_norm.default
        node.meta["val"] = node.meta["val"][:3]


def _only_copy(node: fx.Node, place: int) -> Any:
    """The write of result ``place`` into the argument that it is the new value of, if there is one
    and neither is read elsewhere."""
    target: Any = node.args[place]
    new = [user for user in node.users if user.args[1] == place]
    if len(new) != 1 or len(new[0].users) != 1:
        return None
    (copy,) = new[0].users
    mine = copy.target is COPY and copy.args[0] is target and not copy.meta.get(WRITES, 1)
    alone = target.op == "placeholder" and set(target.users) == {node, copy}
    return copy if mine and alone and not copy.users else None


def _takes(value: fx.Node, target: fx.Node, copy: fx.Node) -> bool:
    """Whether ``value`` is ``target`` with some elements replaced, and nothing else reads that."""
    return (
        value.target in IN_PLACE
        and value.args[0] is target
        and all(arg is not target for arg in value.args[1:])
        and set(target.users) == {value, copy}
        and copy.meta.get(WRITES, 1) == 1
    )
