"""Values that are written part by part: what reads another part does not wait for the writes.

A loop over time that stores its results, and the gradient of one that reads its steps, are chains
of as many writes of one part, each a value of full size where nothing else is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, escaping, insert, is_static, same_layout

aten = torch.ops.aten
_READS = {aten.select.int: 1, aten.slice.Tensor: 1}  # -> where their arguments begin
_WRITES = {aten.select_scatter.default: 2, aten.slice_scatter.default: 2}


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions ``start`` to ``stop`` along ``dim``, which a selected part does not have."""

    dim: int
    start: int
    stop: int
    selected: bool

    def is_apart(self, other: _Part) -> bool:
        return self.dim == other.dim and (self.stop <= other.start or other.stop <= self.start)


@dataclass(slots=True)
class _Sum:
    """What is zero but for parts of it, and the chain of writes that has the same elements, but for
    the signs of zeros that were added up."""

    chain: fx.Node
    parts: list[_Part]


class WrittenParts(Pass):
    """Reads parts from where they were written, or from what was there before; and adds up parts
    of zeros, the gradients of what reads them, by writing each into the others."""

    def run(self, graph: fx.Graph) -> None:
        parts = {node: part for node in graph.nodes if (part := _part(node)) is not None}
        seen = escaping(graph)
        sums: dict[fx.Node, _Sum] = {}
        for node in list(graph.nodes):
            if node.target in _READS and node in parts and node not in seen:
                if not _is_put_back(node):
                    _read(node, parts)
            elif node.target in _WRITES and node in parts and _is_zero(node.args[0]):
                sums[node] = _Sum(node, [parts[node]])
            elif node.target is aten.add.Tensor and not node.kwargs:
                _add(graph, node, sums)


def _part(node: fx.Node) -> _Part | None:
    """The part that ``node`` reads or writes, if it is known and without gaps."""
    first = _READS.get(node.target) or _WRITES.get(node.target)  # type: ignore[call-overload]
    if first is None or not isinstance(node.args[0], fx.Node):
        return None
    whole = node.args[0].meta["val"]
    given: Any = node.args[first:]
    if not is_static(whole) or node.kwargs or any(type(n) not in (int, type(None)) for n in given):
        return None
    dim = (given[0] if given else 0) % whole.dim()
    size = int(whole.shape[dim])
    if node.target in (aten.select.int, aten.select_scatter.default):
        start = given[1] % size
        return _Part(dim, start, start + 1, True)
    start, stop, _ = slice(*(*given[1:3], None, None)[:2]).indices(size)
    return None if given[3:] not in ((), (1,)) else _Part(dim, start, max(start, stop), False)


def _is_put_back(node: fx.Node) -> bool:
    """Whether parts of what is read are written, and it into the whole: in place, in the end."""
    return any(user.target in _WRITES and user.args[0] is node for user in node.users)


def _read(node: fx.Node, parts: dict[fx.Node, _Part]) -> None:
    base: Any = node.args[0]
    wanted, source = parts[node], base
    while source.target in _WRITES and source in parts and parts[source].is_apart(wanted):
        source = source.args[0]
    if source.target in _WRITES and parts.get(source) == wanted:
        value: Any = source.args[1]  # parts of it may be written in place, if it is not looked at
        if value.target not in _WRITES and same_layout(value.meta["val"], node.meta["val"]):
            node.replace_all_uses_with(value)
            return
    if source is not base and same_layout(source.meta["val"], base.meta["val"]):
        node.replace_input_with(base, source)


def _is_zero(node: Any) -> bool:
    return node.target is aten.full.default and node.args[1] == 0


def _add(graph: fx.Graph, node: fx.Node, sums: dict[fx.Node, _Sum]) -> None:
    args: Any = node.args
    for given in (args, args[::-1]):
        one, other = map(sums.get, given)
        if one is None or other is None or len(other.parts) > 1:
            continue
        (part,), whole = other.parts, node.meta["val"]
        if not all(same_layout(whole, each.chain.meta["val"]) for each in (one, other)):
            continue
        if not all(part.is_apart(each) for each in one.parts):
            continue
        write: Any = other.chain
        with graph.inserting_before(node):
            chain = insert(graph, write.target, one.chain, *write.args[1:])
            total = insert(graph, aten.add.Tensor, chain, 0)  # -0.0 + 0.0 is 0.0
        chain.meta, total.meta = {**node.meta, "val": chain.meta["val"]}, {**node.meta}
        node.replace_all_uses_with(total)
        graph.erase_node(node)
        sums[total] = _Sum(chain, [*one.parts, part])
        for each in given:
            if not each.users:
                graph.erase_node(each)
        return
