"""Runtime asserts: what tracing had to assume about numbers that only the data determines.

``torch._check`` and operators (equal sizes, an index within bounds) state facts about such numbers;
tracing relies on them from there on. So the graph checks them where they are stated. When one does
not hold, the graph fails and the program runs natively, which raises what eager raises, or gives
its result where eager asks for less.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torchsmith_guards import Symbol, SymCondition, SymExpr, SymNode

from torchsmith_tracer._src.breaks.signals import Unsupported

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph

ASSERT: Callable[..., object] = torch.ops.aten._assert_scalar.default


class _Number:
    """A number of the graph: what computes with it appends nodes."""

    def __init__(self, graph: OutputGraph, node: fx.Node) -> None:
        self.graph = graph
        self.node = node

    def __bool__(self) -> bool:
        raise TypeError("only the data determines it")

    @classmethod
    def __torch_function__(
        cls, fn: Callable[..., object], types: object, args: Any = (), kwargs: object = None
    ) -> _Number:
        return _operator(fn)(*args)


def _operator(fn: Callable[..., object], *, reflected: bool = False) -> Callable[..., _Number]:
    def append(*operands: _Number | int | float) -> _Number:
        graph = next(o.graph for o in operands if isinstance(o, _Number))
        args = [o.node if isinstance(o, _Number) else o for o in operands]
        if reflected:
            args.reverse()
        result = fn(*[a.meta["example_value"] if isinstance(a, fx.Node) else a for a in args])
        return _Number(graph, graph.add_call("call_function", fn, tuple(args), {}, result))

    return append


for _name in "eq ne le lt ge gt add sub mul floordiv mod truediv neg abs pow".split():
    setattr(_Number, f"__{_name}__", _operator(getattr(operator, _name)))
_Number.__trunc__ = _operator(torch.sym_int)  # type: ignore[attr-defined]
for _name in "add sub mul floordiv mod truediv pow".split():
    setattr(_Number, f"__r{_name}__", _operator(getattr(operator, _name), reflected=True))


def emit(graph: OutputGraph, condition: SymCondition) -> None:
    """Append a check of ``condition``.

    Raises:
        Unsupported: it has no form in a graph, or a number in it has no node.
    """
    if getattr(condition, "op", "") == "and":
        for part in condition.parts:  # type: ignore[union-attr]
            emit(graph, part)
        return
    truth: object = None
    with suppress(TypeError):  # of a function that takes numbers only
        truth = condition.evaluate(_numbers(graph, condition))
    if not isinstance(truth, _Number):
        raise Unsupported("data-dependent-size", what="a check", error=condition.text())
    graph.append_assert(truth.node, f"the data must satisfy {condition.text()}")


def _numbers(graph: OutputGraph, value: SymCondition | SymExpr) -> Any:
    return {s.name: _number_of(graph, s) for s in value.free_symbols}


def _number_of(graph: OutputGraph, symbol: Symbol) -> object:
    definition = graph.shape_env.definitions.get(symbol)  # type: ignore[union-attr]
    if definition is not None:
        return definition.evaluate(_numbers(graph, definition))
    return _Number(graph, _node_of(graph, symbol))


def _node_of(graph: OutputGraph, symbol: Symbol) -> fx.Node:
    """The node that has, or whose size is, the number ``symbol``."""
    for node in graph.graph.nodes:
        example = node.meta.get("example_value")
        if _is(example, symbol):
            return node  # type: ignore[no-any-return]
        if isinstance(example, torch.Tensor):
            for dim, size in enumerate(example.shape):
                if _is(size, symbol):
                    size_of: Callable[..., object] = torch.ops.aten.sym_size.int
                    return graph.add_call("call_function", size_of, (node, dim), {}, size)
    raise Unsupported("data-dependent-size", what="a check", error=str(symbol))


def _is(example: object, symbol: object) -> bool:
    node = getattr(example, "node", None)
    return isinstance(node, SymNode) and node.content is symbol
