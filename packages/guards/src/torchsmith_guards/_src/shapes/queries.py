"""Questions about values that may be symbolic, answered for plain numbers as well."""

from __future__ import annotations

from typing import Any

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


def settled(size: Any) -> Any:
    """A size of a computed tensor, told apart from 0 and 1, which change what operators do.

    Symbols are at least two; what is computed from them need not be. Makes a guard where this
    call's sizes do not follow from those of the symbols: the result is a plain 0 or 1, or at least
    two from now on. A size that depends on tensor contents stays as it is.
    """
    if type(size) is int:
        return size
    try:
        if expr_of(size).lo >= 2 or hint_of(size) is None:
            return size
    except TypeError:
        return size  # of another library
    return size if size >= 2 else int(size)


def _node(value: object) -> SymNode | None:
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    node = value.node
    if not isinstance(node, SymNode):
        raise TypeError(f"symbolic value of a foreign library: {type(node).__name__}")
    return node
