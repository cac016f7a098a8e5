"""Symbolic sizes in a recorded graph: from an expression over size symbols to graph nodes.

A graph node for size arithmetic is made when something uses the value, never when it is computed,
and once per distinct expression. So unused arithmetic leaves no trace, and ``s0 * 1`` is ``s0``.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend.errors import UnsupportedError, UntrackedError

SymNumber = torch.SymInt | torch.SymFloat | torch.SymBool
SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)

aten = torch.ops.aten

_QUERIES = {
    "size": aten.sym_size.int,
    "stride": aten.sym_stride.int,
    "storage_offset": aten.sym_storage_offset.default,
}
_FOLDS: dict[str, Callable[..., object]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    "FloorDiv": operator.floordiv,
    "Mod": operator.mod,
    "Min": torch.sym_min,
    "Max": torch.sym_max,
}
_ORDER = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)
_COMPARISONS: dict[str, Callable[..., object]] = dict(zip("== != < <= > >=".split(), _ORDER))
_CALLS: dict[str, Callable[..., object]] = {
    "float": torch.sym_float,
    "floor": math.floor,
    "ceil": math.ceil,
    "trunc": math.trunc,
    "truediv": operator.truediv,
    "float_add": operator.add,
    "float_sub": operator.sub,
    "float_mul": operator.mul,
    "float_floordiv": operator.floordiv,
    "float_mod": operator.mod,
    "float_min": torch.sym_min,
    "float_max": torch.sym_max,
    "float_neg": operator.neg,
    "float_abs": operator.abs,
    "float_pow": operator.pow,
    "int_pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    "bitand": operator.and_,
    "bitor": operator.or_,
    "bitxor": operator.xor,
    "round_to_int": round,
    "round_digits": round,
    **guards.SYMBOLIC_MATH,
}


class SymbolNodes:
    """The graph nodes that stand for symbolic numbers.

    Attributes:
        graph: where nodes are added.
        environment: knows what symbols stand for that come from no input.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._origins: dict[str, tuple[fx.Node, str, int, object]] = {}
        self._nodes: dict[object, fx.Node | int | float | bool] = {}
        self.environment: guards.ShapeEnv | None = None

    def bind(self, value: SymNumber, node: fx.Node) -> None:
        """``node`` computes ``value``; the first binding of an expression stays."""
        self._nodes.setdefault(self._key(value), node)

    def bind_tensor(self, tensor: torch.Tensor, node: fx.Node) -> list[tuple[str, str, int]]:
        """Make the symbols in the layout of ``tensor`` available from ``node``.

        Returns:
            (symbol, ``size``/``stride``/``storage_offset``, axis) for each symbol not known before.
        """
        found: list[tuple[str, str, int]] = []
        for axis, size in enumerate(tensor.shape):
            self._bind_one(size, node, "size", axis, found)
        if tensor.layout is torch.strided:
            for axis, stride in enumerate(tensor.stride()):
                self._bind_one(stride, node, "stride", axis, found)
            self._bind_one(tensor.storage_offset(), node, "storage_offset", 0, found)
        return found

    def _bind_one(
        self, value: object, node: fx.Node, what: str, axis: int, found: list[tuple[str, str, int]]
    ) -> None:
        if not isinstance(value, torch.SymInt):
            return
        expr = guards.expr_of(value)
        name = getattr(expr, "name", None) if type(expr).__name__ == "Symbol" else None
        if name is not None and name not in self._origins and expr not in self._nodes:
            self._origins[name] = (node, what, axis, value)
            found.append((name, what, axis))

    def known(self) -> list[fx.Node]:
        """A node for each symbol that inputs and results so far have brought."""
        for *_, value in self._origins.values():
            self.lower(value)  # type: ignore[arg-type]
        found = [n for e, n in self._nodes.items() if type(e).__name__ == "Symbol"]
        return [node for node in found if isinstance(node, fx.Node)]

    def _key(self, value: SymNumber) -> object:
        if isinstance(value, torch.SymBool):
            return id(value.node)
        return guards.expr_of(value)

    def lower(self, value: SymNumber) -> fx.Node | int | float | bool:
        """The node that computes ``value``, or the number itself when it is constant.

        Raises:
            UntrackedError: a symbol in it comes from no input of this graph.
            UnsupportedError: its expression has no graph form.
        """
        key = self._key(value)
        known = self._nodes.get(key)
        if known is not None:
            return known
        if not isinstance(value, torch.SymBool):
            return self.lower_expr(key)
        relation: Any = getattr(value.node, "condition", None)
        compare = _COMPARISONS.get(getattr(relation, "op", ""))
        if compare is None:
            raise UntrackedError(what=f"the symbolic bool {value}")
        sides = self.lower_expr(relation.left), self.lower_expr(relation.right)
        return self._apply(compare, sides)

    def lower_expr(self, expr: Any) -> fx.Node | int | float | bool:
        """``lower`` for the expression of a number."""
        known = self._nodes.get(expr)
        if known is not None:
            return known
        kind = type(expr).__name__
        made: fx.Node | int | float | bool
        if kind == "Const":
            made = expr.value
        elif kind == "Symbol" and (env := self.environment) and expr in env.definitions:
            made = self.lower_expr(env.definitions[expr])
            if isinstance(made, fx.Node):
                made.meta["val"] = env.size_of(expr)  # which kernels know by name
        elif kind == "Symbol":
            made = self._query(expr.name)
        elif kind in _FOLDS:
            parts = [self.lower_expr(part) for part in expr.parts()]
            made = parts[0]
            for part in parts[1:]:
                made = self._apply(_FOLDS[kind], (made, part))
        elif kind == "Call" and expr.name in _CALLS:
            made = self._apply(_CALLS[expr.name], tuple(map(self.lower_expr, expr.parts())))
        else:
            raise UnsupportedError(what=f"the size expression `{expr}`")
        self._nodes[expr] = made
        return made

    def _query(self, name: str) -> fx.Node:
        origin = self._origins.get(name)
        if origin is None:
            raise UntrackedError(what=f"the size symbol {name}")
        node, what, axis, value = origin
        args: tuple[Any, ...] = (node,) if what == "storage_offset" else (node, axis)
        made = self.graph.call_function(_QUERIES[what], args)
        made.meta["val"] = value
        return made

    def _apply(self, op: Callable[..., object], args: tuple[Any, ...]) -> fx.Node:
        made = self.graph.call_function(op, args)
        made.meta["val"] = op(*(x.meta["val"] if isinstance(x, fx.Node) else x for x in args))
        return made
