"""Casts: those that a shorter one, or none, replaces, and those that comparisons need."""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.registry import Pointwise, Reduction, Scatter, rule_for
from torchsmith_fx_backend._src.loops.sizes import is_tensor
from torchsmith_fx_backend._src.passes.base import Pass, copied_back, escaping, is_view, same_layout
from torchsmith_fx_backend._src.passes.noop import can_share

aten = torch.ops.aten
CAST = aten._to_copy.default

_INTEGERS = (torch.int16, torch.int32, torch.int64)
_FLOATS = (torch.float16, torch.float32, torch.float64)
# type -> types that hold all of its values
_WIDER: dict[torch.dtype, set[torch.dtype]] = {
    torch.bool: {torch.uint8, torch.int8, *_INTEGERS, torch.bfloat16, *_FLOATS},
    torch.uint8: {*_INTEGERS, *_FLOATS},
    torch.int8: {*_INTEGERS, *_FLOATS},
    torch.int16: {torch.int32, torch.int64, torch.float32, torch.float64},
    torch.int32: {torch.int64, torch.float64},
    torch.float16: {torch.float32, torch.float64},
    torch.bfloat16: {torch.float32, torch.float64},
    torch.float32: {torch.float64},
}


class RedundantCasts(Pass):
    """Shortens a lossless cast followed by another cast."""

    def run(self, graph: fx.Graph) -> None:
        visible, written = escaping(graph), copied_back(graph)
        for node in list(graph.nodes):
            if not _is_plain_cast(node):
                continue
            first: Any = node.args[0]
            if not _is_plain_cast(first):
                continue
            origin: Any = first.args[0]
            kind, middle = origin.meta["val"].dtype, first.meta["val"].dtype
            if middle not in _WIDER.get(kind, ()):
                continue
            back = same_layout(origin.meta["val"], node.meta["val"])
            if back and can_share(node, origin, visible, written):
                node.replace_all_uses_with(origin)
                graph.erase_node(node)
                if node in visible:
                    visible.add(origin)
            elif not back:
                node.args = (origin,)


def _is_plain_cast(node: Any) -> bool:
    """Whether a tensor is cast, and nothing else: in derivatives numbers are, too."""
    plain = isinstance(node, fx.Node) and node.target is CAST and set(node.kwargs) == {"dtype"}
    return plain and is_tensor(node.args[0])


ROUND = torch.ops.prims.convert_element_type.default
_COMPARE = {
    *(getattr(aten, name).Tensor for name in "eq ne lt le gt ge".split()),
    aten._segment_reduce_backward.default,
}
_NORMS = {aten.native_group_norm.default, aten.native_layer_norm.default}
_NORMS_BACKWARD = {
    getattr(aten, f"native_{kind}_norm_backward").default for kind in ("group", "layer", "batch")
}
_FIRST = {aten.amax.default, aten.amin.default, *_COMPARE, *_NORMS, *_NORMS_BACKWARD}
# Operators whose results are among the elements that they are given.
_SELECT = frozenset(
    "amax amin aminmax cummax cummin kthvalue max median min mode nanmedian sort topk".split()
)


class ComparedValues(Pass):
    """Rounds what is compared, or shifted by its maximum or its mean, back to sums and products.

    Kernels hold values of low precision in float32, and what is stored on the way decides which are
    rounded. A maximum that one kernel finds may so equal nothing that another compares it with, and
    its gradient is divided by how many do; a distance from a mean that a norm has found of rounded
    values is divided by what may be small. For joint graphs, too, so that both halves agree.
    """

    def run(self, graph: fx.Graph) -> None:
        if not any(graph.find_nodes(op="call_function", target=first) for first in _FIRST):
            return
        compared, extreme, means = set[fx.Node](), set[fx.Node](), set[fx.Node]()
        for node in graph.nodes:
            source: Any = node.args[0] if node.args else None
            if node.target is operator.getitem and source.target in _NORMS and node.args[1] == 1:
                means.add(node)
            if (node.target is CAST or is_view(node)) and source in means:
                means.add(node)
            found = not extreme.isdisjoint(node.all_input_nodes) and _passes_on(node)
            if found or node.target in (aten.amax.default, aten.amin.default):
                extreme.add(node)
        for node in reversed(graph.nodes):
            compares = node.target in _COMPARE and isinstance(node.args[1], fx.Node)
            shifts = node.target is aten.sub.Tensor and (
                (_is_low(node) and node in extreme) or node.args[1] in means
            )
            if compares or shifts or (node in compared and _passes_on(node)):
                compared.update(node.all_input_nodes)
            elif node.target in _NORMS_BACKWARD:
                compared.add(node.all_input_nodes[1])
        held = [node for node in graph.nodes if node in compared and _is_held(node)]
        seen = escaping(graph)  # views that the caller sees stay views of what it sees
        for node in held:
            value = node.meta["val"]
            users = [u for u in node.users if u.op != "output" and not (is_view(u) and u in seen)]
            with graph.inserting_after(node):
                rounded = graph.call_function(ROUND, (node, value.dtype))
            rounded.meta = {**node.meta, "val": value.detach().clone()}
            for user in users:
                user.replace_input_with(node, rounded)


def is_rounding(node: fx.Node) -> bool:
    """Whether ``node`` is a value as it is stored: what lies in memory is it already."""
    given: Any = node.args[0] if node.target is ROUND else None
    return given is not None and given.meta["val"].dtype is node.meta["val"].dtype


def _passes_on(node: fx.Node) -> bool:
    """Whether values come through ``node`` as they are, or may be computed again with it."""
    selects = node.target is operator.getitem or getattr(node.target, "_opname", "") in _SELECT
    return selects or is_view(node) or isinstance(rule_for(node), Pointwise | Scatter)


def _is_held(node: fx.Node) -> bool:
    """Whether a kernel may hold the value of ``node``, of low precision, unrounded."""
    again = ROUND in (node.target, *(user.target for user in node.users))
    return not again and _is_low(node) and isinstance(rule_for(node), Pointwise | Reduction)


def _is_low(node: fx.Node) -> bool:
    return getattr(node.meta.get("val"), "dtype", None) in (torch.bfloat16, torch.float16)
