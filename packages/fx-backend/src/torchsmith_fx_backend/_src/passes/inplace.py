"""Writes in place: an operator whose result only goes back into an input writes that input."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.captured import WRITES
from torchsmith_fx_backend._src.passes.base import COPY, IN_PLACE, Pass, escaping, same_layout

aten = torch.ops.aten


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
                and _takes(value, target)
                and set(target.users) == {value, copy}
                and not copy.users
                and value not in seen
                and copy.meta.get(WRITES, 1) == 1
                and same_layout(target.meta["val"], value.meta["val"])
            ):
                value.target = IN_PLACE[value.target]
                graph.erase_node(copy)


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


def _takes(value: fx.Node, target: fx.Node) -> bool:
    """Whether ``value`` is ``target`` with some elements replaced."""
    return (
        value.op == "call_function"
        and value.target in IN_PLACE
        and value.args[0] is target
        and all(arg is not target for arg in value.args[1:])
    )
