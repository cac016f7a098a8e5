"""The growing graph of a trace: nodes, attributes, and names."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.symbols import SymbolNodes
from torchsmith_fx_backend._src.capture.torch_private import gradient_clock, running_gradient

# Metadata that a recorded node takes over from the node of the incoming graph it comes from.
INHERITED = ("stack_trace", "nn_module_stack", "source_fn_stack", "user_line")


class Recorder:
    """Appends nodes to a graph and keeps the tensors that the graph refers to by name.

    Attributes:
        graph: the graph under construction.
        attributes: what its ``get_attr`` nodes name.
        symbols: nodes of symbolic numbers.
        origin: the node of an incoming graph that is being executed, if there is one; ``follow``
            sets it.
    """

    def __init__(self, attributes: Mapping[str, object] | None = None) -> None:
        self.graph = fx.Graph()
        self.attributes: dict[str, object] = dict(attributes or {})
        self.symbols = SymbolNodes(self.graph)
        self.origin: fx.Node | None = None
        self._attribute_nodes: dict[str, fx.Node] = {}
        self._began: list[int] = []  # what autograd had counted when each of these came up
        self._followed: list[fx.Node | None] = []

    def follow(self, origin: fx.Node | None) -> None:
        """What is recorded from now on comes from ``origin``, and so do its gradients."""
        self.origin = origin
        self._began.append(gradient_clock())
        self._followed.append(origin)

    def _differentiated(self) -> fx.Node | None:
        """The node whose gradient is being computed, if it came from one of those followed."""
        number = running_gradient()
        if number is None:
            return None
        position = bisect_right(self._began, number)
        return self._followed[position - 1] if position else None

    def blame(self, error: Exception) -> None:
        """Note with ``error`` the node that it came up at, or in whose gradient."""
        error.node = self.origin or self._differentiated()  # type: ignore[attr-defined]

    def placeholder(self, name: str, value: object) -> fx.Node:
        """Add an input."""
        node = self.graph.placeholder(name)
        node.meta["val"] = value
        return node

    def call(
        self,
        target: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        value: object,
        name: str | None = None,
    ) -> fx.Node:
        """Add a call whose result looks like ``value``."""
        node = self.graph.create_node("call_function", target, name=name)
        _set_arguments(node, tuple(args), dict(kwargs))
        node.meta["val"] = value
        origin = self.origin or self._differentiated()
        if origin is not None:
            meta = origin.meta
            for key in INHERITED:
                if key in meta:
                    node.meta[key] = meta[key]
            node.meta["from_node"] = origin.name
        return node

    def attribute(self, name: str, value: object, fake: object) -> fx.Node:
        """The node that reads attribute ``name`` of the root, which is ``value``."""
        node = self._attribute_nodes.get(name)
        if node is None:
            self.attributes[name] = value
            node = self.graph.create_node("get_attr", name)
            node.meta["val"] = fake
            self._attribute_nodes[name] = node
        return node

    def fresh_attribute_name(self, prefix: str) -> str:
        """``prefix0``, ``prefix1``, ...: the first one that is free."""
        index = 0
        while f"{prefix}{index}" in self.attributes:
            index += 1
        return f"{prefix}{index}"

    def root(self) -> torch.nn.Module:
        """A module that has ``attributes`` at their paths."""
        root = torch.nn.Module()
        for path, value in self.attributes.items():
            owner = root
            *parents, name = path.split(".")
            for parent in parents:
                if not hasattr(owner, parent):
                    owner.add_module(parent, torch.nn.Module())
                owner = getattr(owner, parent)
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                owner.register_buffer(name, value, persistent=False)
            else:
                setattr(owner, name, value)
        return root


def _set_arguments(node: fx.Node, args: Any, kwargs: Any) -> None:
    """Given when a node is created, fx would look through all of them for numbers without a node;
    set by its own ``__setattr__``, it would file the node again by what does not change."""
    if args:
        object.__setattr__(node, "args", args)
    if kwargs:
        object.__setattr__(node, "kwargs", kwargs)


def copy_node(
    graph: fx.Graph, node: fx.Node, argument: Callable[[fx.Node], Any] = lambda n: n
) -> fx.Node:
    """``graph.node_copy(node, argument)``, in a fraction of the time."""
    map_arg = fx.node.map_arg
    copy = graph.create_node(node.op, node.target, name=node.name, type_expr=node.type)
    _set_arguments(copy, map_arg(node.args, argument), map_arg(node.kwargs, argument))
    copy.meta = dict(node.meta)
    return copy


class LazyGraphModule(fx.GraphModule):
    """A graph module whose Python code is generated when it is first run or printed.

    Graphs between stages are walked, not run, so most never need code.
    """

    def __init__(self, root: Any, graph: fx.Graph, class_name: str = "GraphModule") -> None:
        self._stale = False
        super().__init__(root, graph, class_name)

    def recompile(self) -> Any:
        """Mark the code as out of date."""
        self._stale = True
        return None

    def _refresh(self) -> None:
        if self._stale:
            self._stale = False
            super().recompile()

    @property
    def code(self) -> str:
        """Python source of ``forward``."""
        self._refresh()
        return super().code

    def forward(self, *args: object, **kwargs: object) -> object:
        """Run the graph."""
        self._refresh()
        return type(self).forward(self, *args, **kwargs)


def values_of(nest: Any) -> Any:
    """``nest`` with what its nodes give, as their metadata tells, in their places."""
    return fx.node.map_arg(nest, lambda node: node.meta["val"])


def tensors_in(values: object) -> list[torch.Tensor]:
    """All tensors in nested lists, tuples and dicts, in order."""
    if isinstance(values, torch.Tensor):
        return [values]
    found: list[torch.Tensor] = []
    if isinstance(values, (list, tuple)):
        for value in values:
            found.extend(tensors_in(value))
    elif isinstance(values, dict):
        for value in values.values():
            found.extend(tensors_in(value))
    return found
