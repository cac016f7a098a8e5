"""Conversion to sympy: for torch, which asks for it in rare places, and for explicit requests.

sympy is imported on first use only.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

from torchsmith_guards._src.shapes import nodes
from torchsmith_guards._src.shapes.nodes import SymExpr


@lru_cache(maxsize=4096)
def to_sympy(expr: SymExpr) -> Any:
    """``expr`` as a sympy expression; symbols keep their names.

    Float functions without a sympy counterpart become undefined functions of that name.
    """
    sympy: Any = importlib.import_module("sympy")

    def convert(part: SymExpr) -> Any:
        match part:
            case nodes.Const():
                return sympy.sympify(part.value)
            case nodes.Symbol():
                if part.floating:
                    return sympy.Symbol(part.name, real=True)
                return sympy.Symbol(part.name, integer=True, positive=part.lo > 0 or None)
            case nodes.FloorDiv():
                return sympy.floor(convert(part.num) / convert(part.den))
            case nodes.Call():
                return sympy.Function(part.name)(*map(convert, part.args))
        return getattr(sympy, type(part).__name__)(*map(convert, part.parts()))

    return convert(expr)


def simplify(expr: SymExpr) -> str:
    """sympy's simplification as text; slow, for display."""
    sympy: Any = importlib.import_module("sympy")

    return str(sympy.simplify(to_sympy(expr)))
