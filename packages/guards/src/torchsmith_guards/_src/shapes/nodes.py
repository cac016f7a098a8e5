"""Node classes of symbolic numbers: hash-consed, evaluable, printable as Python.

Build them with the functions of ``expr.py``, never with the classes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakValueDictionary

import torch

INF = math.inf
Number = int | float
Bound = int | float  # an int, or plus/minus infinity
_E = TypeVar("_E", bound="SymExpr")

# Weak, so that a process that compiles forever does not keep every size it has met.
_TABLE: WeakValueDictionary[tuple[object, ...], SymExpr] = WeakValueDictionary()


class SymExpr:
    """Base of all expressions. Immutable; equal expressions are the same object.

    Attributes:
        lo: greatest known lower bound (``-inf`` if none).
        hi: least known upper bound.
        is_float: whether its value is a Python float.
    """

    __slots__ = ("__weakref__", "_free", "_order", "hi", "is_float", "lo")
    precedence: ClassVar[int] = 10
    lo: Bound
    hi: Bound
    is_float: bool
    _order: tuple[object, ...]
    _free: frozenset[Symbol] | None

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols in the expression."""
        if self._free is None:
            found: frozenset[Symbol] = frozenset()
            for part in self.parts():
                found |= part.free_symbols
            self._free = found
        return self._free

    def _gives_float(self) -> bool:
        return any(part.is_float for part in self.parts())

    def parts(self) -> tuple[SymExpr, ...]:
        """The direct operands."""
        return ()

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        """The number that the expression stands for.

        Args:
            values: a number for the name of every symbol in it.

        Raises:
            KeyError: a symbol has no value.
            ZeroDivisionError: as Python's ``//`` and ``%`` do.
        """
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """Python source of the expression, with symbols renamed by ``names``."""
        raise NotImplementedError(type(self).__name__)  # every concrete class defines it

    def _paren(self, part: SymExpr, names: Mapping[str, str] | None, *, tight: bool = False) -> str:
        text = part.text(names)
        loose = part.precedence < self.precedence or (tight and part.precedence == self.precedence)
        return f"({text})" if loose else text

    def __repr__(self) -> str:
        return self.text()


def intern(cls: type[_E], key: tuple[object, ...], lo: Bound, hi: Bound, **fields: object) -> _E:
    """The one object of this class and key."""
    full = (cls, *key)
    found = _TABLE.get(full)
    if found is None:
        found = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(found, name, value)
        found.lo, found.hi = lo, hi
        found._free, found.is_float = None, found._gives_float()
        found._order = (_RANK[cls], found.text())
        found = _TABLE.setdefault(full, found)
    return cast(_E, found)


def exists(cls: type[SymExpr], key: tuple[object, ...]) -> bool:
    """Whether the object of this class and key has been made (its bounds are known then)."""
    return (cls, *key) in _TABLE


class Const(SymExpr):
    """A literal: an int, or a float in float expressions."""

    __slots__ = ("value",)
    value: Number

    @property
    def precedence(self) -> int:  # type: ignore[override]
        return 9 if self.value < 0 else 10

    def _gives_float(self) -> bool:
        return isinstance(self.value, float)

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return self.value

    def text(self, names: Mapping[str, str] | None = None) -> str:
        if isinstance(self.value, float) and not math.isfinite(self.value):
            return f"float({str(self.value)!r})"
        return repr(self.value)


class Symbol(SymExpr):
    """A named unknown: ``s0`` (size), ``i1`` (int argument), ``f2`` (float), ``u3`` (from data).

    ``lo`` and ``hi`` are assumptions made when the symbol was created; whoever makes it guards
    them.
    """

    __slots__ = ("floating", "name")
    name: str
    floating: bool

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))

    def _gives_float(self) -> bool:
        return self.floating

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return values[self.name]

    def text(self, names: Mapping[str, str] | None = None) -> str:
        return self.name if names is None else names.get(self.name, self.name)


class Add(SymExpr):
    """Sum of two or more terms in a fixed order; at most one is a ``Const``, and it is last."""

    __slots__ = ("terms",)
    precedence = 5
    terms: tuple[SymExpr, ...]

    def parts(self) -> tuple[SymExpr, ...]:
        return self.terms

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return sum(t.evaluate(values) for t in self.terms)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        out = self.terms[0].text(names)
        for term in self.terms[1:]:
            text = term.text(names)
            out += f" - {text[1:]}" if text.startswith("-") else f" + {text}"
        return out


class Mul(SymExpr):
    """Product of two or more factors in a fixed order; at most one is a ``Const``, the first."""

    __slots__ = ("factors",)
    precedence = 6
    factors: tuple[SymExpr, ...]

    def parts(self) -> tuple[SymExpr, ...]:
        return self.factors

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return math.prod(f.evaluate(values) for f in self.factors)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        head, *rest = self.factors
        if isinstance(head, Const) and head.value == -1:
            return "-" + "*".join(self._paren(f, names, tight=True) for f in rest)
        return "*".join(self._paren(f, names, tight=i > 0) for i, f in enumerate(self.factors))


class _Division(SymExpr):
    __slots__ = ("den", "num")
    precedence = 6
    num: SymExpr
    den: SymExpr
    sign: ClassVar[str]
    divide: ClassVar[Callable[[Number, Number], Number]]

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return type(self).divide(self.num.evaluate(values), self.den.evaluate(values))

    def parts(self) -> tuple[SymExpr, ...]:
        return (self.num, self.den)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        num, den = self._paren(self.num, names), self._paren(self.den, names, tight=True)
        if num.startswith("-"):
            num = f"({num})"  # so that a sum does not take the sign for its own
        return f"{num}{self.sign}{den}"


class FloorDiv(_Division):
    """``num // den`` with Python's rounding (towards minus infinity)."""

    __slots__ = ()
    sign = "//"
    divide = operator.floordiv


class Mod(_Division):
    """``num % den`` with Python's sign (that of the divisor)."""

    __slots__ = ()
    sign = " % "
    divide = operator.mod


class _Extreme(SymExpr):
    __slots__ = ("args",)
    args: tuple[SymExpr, ...]
    pick: ClassVar[Any]  # which takes symbolic numbers, too
    function: ClassVar[str]

    def parts(self) -> tuple[SymExpr, ...]:
        return self.args

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        found: Number = reduce(type(self).pick, (a.evaluate(values) for a in self.args))
        return found

    def text(self, names: Mapping[str, str] | None = None) -> str:
        return f"{type(self).function}({', '.join(a.text(names) for a in self.args)})"


class Min(_Extreme):
    """The least of two or more numbers."""

    __slots__ = ()
    pick, function = torch.sym_min, "min"


class Max(_Extreme):
    """The greatest of two or more numbers."""

    __slots__ = ()
    pick, function = torch.sym_max, "max"


class Call(SymExpr):
    """A function of ``FUNCTIONS`` applied to numbers: float arithmetic, conversions, shifts."""

    __slots__ = ("args", "name")
    name: str
    args: tuple[SymExpr, ...]

    def _gives_float(self) -> bool:
        return self.name not in INTEGER_FUNCTIONS

    def parts(self) -> tuple[SymExpr, ...]:
        return self.args

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return FUNCTIONS[self.name](*(a.evaluate(values) for a in self.args))

    def text(self, names: Mapping[str, str] | None = None) -> str:
        return f"{self.name}({', '.join(a.text(names) for a in self.args)})"


_RANK: dict[type[SymExpr], int] = {
    Symbol: 0,
    Mul: 1,
    FloorDiv: 2,
    Mod: 3,
    Min: 4,
    Max: 5,
    Call: 6,
    Add: 7,
    Const: 8,
}

_ROUNDINGS = "trunc floor ceil"
#: Functions of ``math`` from a float to a float.
MATH_FUNCTIONS: tuple[str, ...] = tuple(
    "sqrt cbrt exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan "
    "asinh acosh atanh erf erfc degrees radians fabs".split()
)

#: Functions that ``Call`` may name. They print by this name and are bound in generated code.
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "float": float,
    "truediv": operator.truediv,
    **{f"float_{f}": getattr(operator, f) for f in "add sub mul floordiv mod neg abs".split()},
    "float_min": min,
    "float_max": max,
    "float_sign": lambda a: math.copysign(1.0, a),
    "float_pow": lambda a, b: float(a) ** b,
    "int_pow": operator.pow,
    "lshift": operator.lshift,
    "rshift": operator.rshift,
    **{f"bit{f}": getattr(operator, f"__{f}__") for f in ("and", "or", "xor")},
    "round_to_int": round,
    "round_digits": round,
    "bool_to_int": int,
    **{f: getattr(math, f) for f in (*_ROUNDINGS.split(), *MATH_FUNCTIONS)},
}
INTEGER_FUNCTIONS = frozenset(
    {"int_pow", "lshift", "rshift", "bitand", "bitor", "bitxor", "trunc", "floor", "ceil"}
    | {"round_to_int", "bool_to_int"}
)
