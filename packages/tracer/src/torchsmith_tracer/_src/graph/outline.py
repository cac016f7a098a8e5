"""``Body``: the part of a graph that a traced function appended, moved into a graph of its own.

A body is traced like any inlined function, so guards and side effects are the trace's own. When it
is closed, its nodes leave the outer graph; what they used of it becomes their operands, in order of
first use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.trace import Outlined

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph
    from torchsmith_tracer._src.values.base import Value


_SIZES = {torch.ops.aten.sym_size.int: "size", torch.ops.aten.sym_stride.int: "stride"}


def body_input() -> None:
    """Stands for an input while its body is traced; it becomes a placeholder."""


class BodyModule(fx.GraphModule):
    """A body whose errors are the program's own, to catch: fx would print them first. It is none
    of the program's modules, so hooks on all modules do not see it."""

    def recompile(self) -> Any:
        code = super().recompile()
        type(self).__call__ = lambda self, *args: self.forward(*args)  # type: ignore[method-assign]
        return code


class Body:
    """A body that is being traced: make its inputs, trace, ``close``."""

    def __init__(self, graph: OutputGraph) -> None:
        graph.emit_checks()
        self._graph = graph
        self._last = graph.graph._root.prev
        self._contexts = len(graph.contexts)
        self._replaced = len(graph.replaced)
        self._inputs: list[fx.Node] = []

    def input(self, fake: torch.Tensor) -> Value:
        """A new input of the body."""
        node = self._graph.add_call("call_function", body_input, (), {}, fake)
        self._inputs.append(node)
        return self._graph.wrap_result(node, fake)

    def nodes(self) -> list[fx.Node]:
        """What the body has appended so far, its inputs included."""
        found = []
        node = self._last.next
        while node is not self._graph.graph._root:
            if node.op != "placeholder":  # inputs of the whole graph stay where they are
                found.append(node)
            node = node.next
        return found

    def close(self, results: Sequence[Value]) -> Outlined:
        """Move the body out of the outer graph.

        Raises:
            Unsupported: the body entered a context and did not leave it.
        """
        outer = self._graph
        if len(outer.contexts) != self._contexts:
            raise Unsupported("opaque-call", what="a function that leaves a context open")
        outer.emit_checks()
        own = self.nodes()
        inside = set(own)
        outputs: tuple[Any, ...] = tuple(outer.argument(v) for v in results)
        operands: dict[fx.Node, None] = {}
        for node in own:
            operands.update((n, None) for n in node.all_input_nodes if n not in inside)
        operands.update((n, None) for n in outputs if isinstance(n, fx.Node) and n not in inside)
        inner = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in (*self._inputs, *operands):
            copies[node] = copy = inner.placeholder(node.name)
            copy.meta = dict(node.meta)
        for node in own:
            if node in copies:
                continue
            copies[node] = copy = inner.node_copy(node, copies.__getitem__)
            if node.target in _SIZES:  # these operators have no rule for mapped tensors
                copy.op, copy.target = "call_method", _SIZES[node.target]
        inner.output(tuple(copies[n] if isinstance(n, fx.Node) else n for n in outputs))
        module = BodyModule(outer.modules, inner, class_name="Body")
        # What the body changed in place is, outside of it, still the tensor that it was given.
        for value, before in reversed(outer.replaced[self._replaced :]):
            if value.node in inside and before not in inside:
                value.replace_node(outer.tx, before)
        for node in reversed(own):
            outer.discard(node)
        fakes = tuple(n.meta["example_value"] if isinstance(n, fx.Node) else n for n in outputs)
        return Outlined(module, tuple(operands), fakes)
