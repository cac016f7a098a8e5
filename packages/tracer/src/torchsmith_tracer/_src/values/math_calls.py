"""Functions of ``math`` on numbers that vary: they stay symbolic where they are defined.

That the numbers are in the domain is a guard, or a check of the graph where only the data knows;
with others the call is made with the numbers of this call, and raises what Python raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from torchsmith_guards import SYMBOLIC_MATH, limits_of

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.symnum import SymNumValue, assume, combine, decide

_FINITE = {"isfinite": True, "isinf": False, "isnan": False}


def math_call(tx: Trace, name: str, args: Sequence[Value]) -> Value | None:
    """``math.<name>(*args)`` with a symbolic number among ``args``; None: no symbolic form."""
    numbers = [_as_float(tx, value) for value in args]
    floats = [n for n in numbers if n is not None]
    if len(floats) != len(args):
        return None
    match name, floats:
        case "log", [number, base]:
            above, below = _apply(tx, name, number), _apply(tx, name, base)
            if above is None or below is None:
                return None
            return tx.interp.binary("truediv", above, below)
        case "pow", [number, power]:  # as the operator does where the base is positive
            return tx.interp.binary("pow", number, power) if _within(tx, number, "log") else None
        case _, [number] if name in SYMBOLIC_MATH:
            return _apply(tx, name, number)
        case _, [number] if name in _FINITE:
            return ConstantValue(_FINITE[name]) if _within(tx, number, name) else None
    return None


def _as_float(tx: Trace, value: Value) -> Value | None:
    if isinstance(value, SymNumValue):
        return value.to_float(tx)
    if isinstance(value, ConstantValue) and type(value.value) in (int, float):
        try:
            return ConstantValue(float(value.value))  # type: ignore[arg-type]
        except OverflowError:
            return None
    return None


def _apply(tx: Trace, name: str, number: Value) -> Value | None:
    if not _within(tx, number, name):
        return None
    fn: Callable[[Any], Any] = SYMBOLIC_MATH[name]
    if isinstance(number, SymNumValue):
        return combine(tx, fn, (number,), fn(number.sym))
    return ConstantValue(fn(number.as_constant()))


def _within(tx: Trace, number: Value, name: str) -> bool:
    """Whether a number is where the function has a finite value; relied on from here on."""
    least, most = limits_of(name)
    if not isinstance(number, SymNumValue):
        return least <= number.as_constant() <= most  # type: ignore[operator]
    sym: Any = number.sym
    for compare, limit in (operator.ge, least), (operator.le, most):
        condition = compare(sym, limit)
        known = decide(condition)
        if known is False or (known is None and not assume(tx, condition)):
            return False
    return True
