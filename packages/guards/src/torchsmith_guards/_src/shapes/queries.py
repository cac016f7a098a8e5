"""Questions about values that may be symbolic, answered for plain numbers as well."""

from __future__ import annotations

import torch

from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes.nodes import Number, SymExpr
from torchsmith_guards._src.shapes.sym_node import SymNode


def is_symbolic(value: object) -> bool:
    """True for ``torch.SymInt``, ``SymFloat`` and ``SymBool``."""
    return isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool)


def hint_of(value: object) -> Number | bool | None:
    """The number that a value has at this call.

    Args:
        value: a plain or symbolic number or truth value.

    Returns:
        The number; None when it depends on tensor contents. No guard is made.

    Raises:
        TypeError: ``value`` is no number.
    """
    node = _node(value)
    if node is not None:
        return node.hint
    if isinstance(value, int | float):
        return value
    raise TypeError(f"expected a number, got {type(value).__name__}")


def expr_of(value: object) -> SymExpr:
    """The expression of a plain or symbolic int or float (``Const`` for plain ones).

    Raises:
        TypeError: ``value`` is no int or float, or a symbolic number of another library.
    """
    node = _node(value)
    if node is not None:
        return node.value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return ex.const(value)
    raise TypeError(f"expected an int or float, got {type(value).__name__}")


def _node(value: object) -> SymNode | None:
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    node = value.node
    if not isinstance(node, SymNode):
        raise TypeError(f"symbolic value of a foreign library: {type(node).__name__}")
    return node
