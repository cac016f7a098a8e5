"""Functions of ``math`` that take symbolic numbers, too, and where they are defined."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch

from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes.nodes import MATH_FUNCTIONS
from torchsmith_guards._src.shapes.sym_node import SymNode

_MOST = sys.float_info.max
_LEAST = math.nextafter(0.0, 1.0)
_BELOW_ONE = math.nextafter(1.0, 0.0)
_POSITIVE = (_LEAST, _MOST)
_LIMITS = {
    "sqrt": (0.0, _MOST),
    **dict.fromkeys(("log", "log2", "log10"), _POSITIVE),
    "log1p": (-_BELOW_ONE, _MOST),
    **dict.fromkeys(("asin", "acos"), (-1.0, 1.0)),
    "acosh": (1.0, _MOST),
    "atanh": (-_BELOW_ONE, _BELOW_ONE),
    # Beyond these the result does not fit into a float.
    **dict.fromkeys(("exp", "expm1"), (-_MOST, 709.0)),
    "exp2": (-_MOST, 1023.0),
    **dict.fromkeys(("sinh", "cosh"), (-709.0, 709.0)),
    "degrees": (-1e306, 1e306),
}


def limits_of(name: str) -> tuple[float, float]:
    """The least and the greatest number for which the function certainly has a finite value."""
    return _LIMITS.get(name, (-_MOST, _MOST))


def _with_symbols(name: str) -> Callable[[Any], Any]:
    function: Callable[[Any], float] = getattr(math, name)

    def apply(number: Any) -> Any:
        node = number.node if isinstance(number, torch.SymInt | torch.SymFloat) else None
        if not isinstance(node, SymNode):
            return function(number)
        made: Any = SymNode(node.shape_env, ex.call(name, node.sym_float().value))
        symbolic: Any = torch.SymFloat
        return symbolic(made)

    apply.__name__ = apply.__qualname__ = name
    return apply


def __getattr__(name: str) -> Callable[[Any], Any]:
    try:
        return SYMBOLIC_MATH[name]
    except KeyError:
        raise AttributeError(name) from None


#: By the name in ``math``: the function for plain and symbolic numbers, which a graph may call.
SYMBOLIC_MATH = {name: _with_symbols(name) for name in MATH_FUNCTIONS}
