"""Runtime asserts: what tracing had to assume about numbers that only the data determines.

``torch._check`` and operators (equal sizes, an index within bounds) state facts about such numbers;
tracing relies on them from there on. So the graph checks them where they are stated. When one does
not hold, the graph fails and the program runs natively, which raises what eager raises, or gives
its result where eager asks for less.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING

import torch
from torch import fx
from torchsmith_guards import (
    Add,
    Call,
    Const,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Symbol,
    SymCondition,
    SymExpr,
    SymNode,
)

from torchsmith_tracer._src.breaks.signals import Unsupported

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph

Operand = fx.Node | int | float | bool
Function = Callable[..., object]

_COMPARE: dict[str, Function] = {
    "==": operator.eq, "!=": operator.ne, "<=": operator.le,
    "<": operator.lt, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_FOLDED: dict[type[SymExpr], Function] = {
    Add: operator.add,
    Mul: operator.mul,
    FloorDiv: operator.floordiv,
    Mod: operator.mod,
    Min: torch.sym_min,
    Max: torch.sym_max,
}
_CALLS: dict[str, Function] = {
    "float": torch.sym_float, "truediv": operator.truediv, "trunc": torch.sym_int,
    "float_add": operator.add, "float_sub": operator.sub, "float_mul": operator.mul,
    "float_floordiv": operator.floordiv, "float_mod": operator.mod, "float_neg": operator.neg,
    "float_abs": abs, "float_pow": operator.pow, "int_pow": operator.pow,
    "float_min": torch.sym_min, "float_max": torch.sym_max,
}  # fmt: skip
ASSERT: Function = torch.ops.aten._assert_scalar.default


def emit(graph: OutputGraph, condition: SymCondition) -> None:
    """Append a check of ``condition``.

    Raises:
        Unsupported: it has no form in a graph, or a number in it has no node.
    """
    for part in _conjuncts(condition):
        node = _Writer(graph).condition(part)
        if isinstance(node, fx.Node):
            graph.append_assert(node, f"the data must satisfy {part.text()}")


def _conjuncts(condition: SymCondition) -> tuple[SymCondition, ...]:
    return condition.parts if getattr(condition, "op", "") == "and" else (condition,)  # type: ignore[union-attr]


class _Writer:
    """Writes conditions and numbers as nodes."""

    def __init__(self, graph: OutputGraph) -> None:
        self.graph = graph

    def condition(self, condition: SymCondition) -> Operand:
        parts = getattr(condition, "parts", None)
        if parts is not None:
            fn: Function = operator.and_ if condition.op == "and" else operator.or_  # type: ignore[union-attr]
            return reduce(lambda a, b: self.call(fn, a, b), map(self.condition, parts))
        part = getattr(condition, "part", None)
        if part is not None:
            return self.call(torch.sym_not, self.condition(part))
        left, right = self.number(condition.left), self.number(condition.right)  # type: ignore[union-attr]
        return self.call(_COMPARE[condition.op], left, right)  # type: ignore[union-attr]

    def number(self, expr: SymExpr) -> Operand:
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Symbol):
            return self.symbol(expr)
        fn = _CALLS.get(expr.name) if isinstance(expr, Call) else _FOLDED.get(type(expr))
        if fn is None:
            raise Unsupported("data-dependent-op", what="a check", error=expr.text())
        operands = [self.number(part) for part in expr.parts()]
        if len(operands) == 1:
            return self.call(fn, operands[0])
        return reduce(lambda a, b: self.call(fn, a, b), operands)

    def symbol(self, symbol: Symbol) -> fx.Node:
        """The node that has, or whose size is, the number."""
        for node in self.graph.graph.nodes:
            example = node.meta.get("example_value")
            if _is(example, symbol):
                return node  # type: ignore[no-any-return]
            if isinstance(example, torch.Tensor):
                for dim, size in enumerate(example.shape):
                    if _is(size, symbol):
                        return self.node(torch.ops.aten.sym_size.int, (node, dim), size)
        raise Unsupported("data-dependent-op", what="a check", error=symbol.text())

    def call(self, fn: Function, *operands: Operand) -> Operand:
        examples = [o.meta["example_value"] if isinstance(o, fx.Node) else o for o in operands]
        result = fn(*examples)
        if not any(isinstance(o, fx.Node) for o in operands):
            return result  # type: ignore[return-value]
        return self.node(fn, operands, result)

    def node(self, fn: Function, args: tuple[object, ...], example: object) -> fx.Node:
        return self.graph.add_call("call_function", fn, args, {}, example)


def _is(example: object, symbol: Symbol) -> bool:
    if not isinstance(example, torch.SymInt | torch.SymFloat):
        return False
    node = example.node
    return isinstance(node, SymNode) and node.content is symbol
