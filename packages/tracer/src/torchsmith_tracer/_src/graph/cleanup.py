"""Cleanups of the finished graph: state toggles without effect, accessors without users."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable

import torch
from torch import fx

from torchsmith_tracer._src.graph.fakes import in_place
from torchsmith_tracer._src.torch_private import (
    enter_autocast,
    exit_autocast,
    set_grad_enabled,
    storage_id,
)
from torchsmith_tracer._src.values.builtins.printing import add_filter, enter_filters, exit_filters

GRAD_TOGGLES: frozenset[object] = frozenset([set_grad_enabled])
_LEFT_BY: dict[object, object] = {enter_autocast: exit_autocast, enter_filters: exit_filters}

_ACCESSOR_METHODS = {"size", "stride", "storage_offset", "numel", "dim"}
_ACCESSORS: set[object] = {
    operator.getitem,
    getattr,
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_storage_offset.default,
}
_SCALAR_OPS: set[Callable[..., object]] = {
    *(operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv),
    *(operator.mod, operator.pow, operator.neg, torch.sym_max, torch.sym_min, torch.sym_int),
    *(torch.sym_float, torch.sym_not),
}
_SCALARS = (int, float, bool, torch.SymInt, torch.SymFloat, torch.SymBool)


def remove_redundant_toggles(graph: fx.Graph, mode: bool) -> None:
    """Erase a grad-mode change that the next node takes back, and changes to the mode that holds
    already; entering and leaving a context with nothing between goes as well.

    Args:
        graph: changed in place.
        mode: whether gradients are enabled when the graph is entered.
    """
    changed = True
    while changed:
        changed = False
        nodes = list(graph.nodes)
        for first, second in itertools.pairwise(nodes):
            if first._erased or second._erased:
                continue
            if first.target in GRAD_TOGGLES and second.target in GRAD_TOGGLES:
                # The first of two adjacent toggles is overwritten at once.
                graph.erase_node(first)
                changed = True
            elif first.target is add_filter and second.target is exit_filters:
                (entry,) = first.all_input_nodes
                graph.erase_node(first)
                graph.erase_node(entry)
                changed = True
            elif second.args == (first,) and second.target is _LEFT_BY.get(first.target):
                graph.erase_node(second)
                graph.erase_node(first)
                changed = True
    for node in list(graph.nodes):
        if node.target in GRAD_TOGGLES:
            if node.args[0] == mode:
                graph.erase_node(node)
            mode = bool(node.args[0])


def remove_trivial_dead_nodes(graph: fx.Graph) -> None:
    """Erase accessors (item, attribute, size) and scalar arithmetic without users. Tensor
    operators stay: whether they may go is the backend's decision."""
    for node in reversed(list(graph.nodes)):
        if node.users or node.op in ("placeholder", "output"):
            continue
        if node.op == "get_attr" or _is_accessor(node):
            graph.erase_node(node)


def unused_that_fail(
    graph: fx.Graph, results: tuple[object, ...], fails: Callable[[fx.Node], bool]
) -> list[fx.Node]:
    """Nodes to return as well, so that no backend leaves out the checks of calls that may fail but
    that nothing uses. They are new ones without a history, since nobody differentiates them.

    Args:
        graph: without its output.
        results: what it is to return.
        fails: whether a call may raise.
    """
    live = {node for node in results if isinstance(node, fx.Node)}
    memory = {_storage(n) for n in (*graph.find_nodes(op="placeholder"), *live)} - {None}
    found: list[fx.Node] = []
    for node in reversed(graph.nodes):
        if node.op == "placeholder":
            break
        if in_place(node.target):
            target = node.args[0]
            used = node in live or _storage(target) in memory
        else:
            used, target = node in live or not isinstance(_example(node), torch.Tensor), node
        if not used and fails(node):
            assert isinstance(target, fx.Node)
            found.append(target)
            used = True
        if used:
            live.update(node.all_input_nodes)
            memory.update(map(_storage, node.all_input_nodes))
    return [_without_history(graph, node) for node in reversed(found)]


def _without_history(graph: fx.Graph, node: fx.Node) -> fx.Node:
    made = graph.call_method("detach", (node,))
    made.meta["example_value"] = node.meta["example_value"].detach()
    return made


def _example(node: object) -> object:
    return node.meta.get("example_value") if isinstance(node, fx.Node) else None


def _storage(node: object) -> int | None:
    example = _example(node)
    return storage_id(example) if isinstance(example, torch.Tensor) else None


def _is_accessor(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    if node.op == "call_method":
        return node.target in _ACCESSOR_METHODS
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        # Indexing a tuple of results, or a view of a tensor; both have no effect.
        return len(node.all_input_nodes) == 1
    return node.target in _ACCESSORS or (
        node.target in _SCALAR_OPS and isinstance(example, _SCALARS)
    )
