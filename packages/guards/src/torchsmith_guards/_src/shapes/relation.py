"""Symbolic truth values: relations between symbolic numbers and their combinations.

A relation is kept as ``left op right`` with positive terms on both sides and no common factor, so
that equal conditions are the same object. What follows from bounds alone is decided at once.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes import nodes
from torchsmith_guards._src.shapes.nodes import Const, Number, Symbol, SymExpr


@dataclass(frozen=True, slots=True)
class _Comparison:
    """``left op right``; build with ``relate``."""

    op: str
    left: SymExpr
    right: SymExpr

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols on both sides."""
        return self.left.free_symbols | self.right.free_symbols

    def evaluate(self, values: Mapping[str, Number]) -> bool:
        """The truth for given values of the symbols."""
        return compare(self.op, self.left.evaluate(values), self.right.evaluate(values))

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """Python source."""
        return f"{self.left.text(names)} {self.op} {self.right.text(names)}"

    def __repr__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True, repr=False)
class Relation(_Comparison):
    """A comparison of ints in normal form; ``op`` is ``==``, ``!=`` or ``<=``."""


@dataclass(frozen=True, slots=True, repr=False)
class FloatRelation(_Comparison):
    """A comparison of floats, which have no normal form (NaN); ``op`` as in Python."""


@dataclass(frozen=True, slots=True)
class Junction:
    """All (``op`` "and") or some ("or") of several conditions."""

    op: Literal["and", "or"]
    parts: tuple[SymCondition, ...]

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols of all parts."""
        return frozenset().union(*(p.free_symbols for p in self.parts))

    def evaluate(self, values: Mapping[str, Number]) -> bool:
        """The truth for given values of the symbols."""
        found = (p.evaluate(values) for p in self.parts)
        return all(found) if self.op == "and" else any(found)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """Python source."""
        return f" {self.op} ".join(
            f"({p.text(names)})" if isinstance(p, Junction) else p.text(names) for p in self.parts
        )

    def __repr__(self) -> str:
        return self.text()


@dataclass(frozen=True, slots=True)
class Inverted:
    """``not part``, for conditions whose negation is no relation."""

    part: SymCondition

    @property
    def free_symbols(self) -> frozenset[Symbol]:
        """The symbols of the part."""
        return self.part.free_symbols

    def evaluate(self, values: Mapping[str, Number]) -> bool:
        """The truth for given values of the symbols."""
        return not self.part.evaluate(values)

    def text(self, names: Mapping[str, str] | None = None) -> str:
        """Python source."""
        return f"not ({self.part.text(names)})"

    def __repr__(self) -> str:
        return self.text()


SymCondition = Relation | FloatRelation | Junction | Inverted


def compare(op: str, left: Number, right: Number) -> bool:
    """Python's ``left op right`` for ``op`` in ``== != < <= > >=``."""
    return _COMPARISONS[op](left, right)


_COMPARISONS: dict[str, Callable[[Number, Number], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@lru_cache(maxsize=16384)
def relate(op: str, left: SymExpr, right: SymExpr) -> SymCondition | bool:
    """``left op right`` in normal form, or its truth when the bounds decide it."""
    if isinstance(left, Const) and isinstance(right, Const):
        return compare(op, left.value, right.value)
    if left.is_float or right.is_float:
        if left.lo > right.hi or left.hi < right.lo:
            # Unknown floats have no bounds; these are converted ints or literals, never NaN.
            return compare(op, 1, 0) if left.lo > right.hi else compare(op, 0, 1)
        return FloatRelation(op, left, right)
    match op:
        case "<":
            return relate("<=", ex.add(left, ex.const(1)), right)
        case ">":
            return relate("<=", ex.add(right, ex.const(1)), left)
        case ">=":
            return relate("<=", right, left)
        case "==" | "!=" | "<=":
            return _normal(op, ex.sub(right, left))
        case _:
            raise ValueError(f"unknown comparison {op!r}")


def _normal(op: str, difference: SymExpr) -> Relation | bool:
    """``0 op difference``."""
    if op == "<=":
        if difference.lo >= 0:
            return True
        if difference.hi < 0:
            return False
        if _without_divisions(difference, least=True).lo >= 0:
            return True
        if _without_divisions(difference, least=False).hi < 0:
            return False
    elif difference.lo > 0 or difference.hi < 0:
        return op == "!="
    elif difference.lo == 0 == difference.hi:
        return op == "=="
    terms = ex._poly(difference)
    literal = terms.pop((), 0)
    common = math.gcd(*terms.values())
    if common > 1:
        if op == "<=":  # 0 <= c*t + k  <=>  0 <= t + floor(k / c)
            literal = literal // common
        elif literal % common:
            return op == "!="
        else:
            literal //= common
        reduced = {m: c // common for m, c in terms.items()}
        # The reduced form has tighter bounds: an inequality may be decided now.
        return _normal(op, ex._from_poly({**reduced, (): literal} if literal else reduced))
    if op != "<=":
        terms, literal = _orient(terms, literal)
    left = {m: -c for m, c in terms.items() if c < 0}
    right = {m: c for m, c in terms.items() if c > 0}
    if literal < 0 or (literal > 0 and not left and right):
        # A literal stands on the side that has no other terms, else where it is positive.
        left[()] = -literal
    elif literal > 0:
        right[()] = literal
    if left and not right and () in left and len(left) > 1:
        right[()] = -left.pop(())
    return Relation(op, ex._from_poly(left), ex._from_poly(right))


def _without_divisions(difference: SymExpr, *, least: bool) -> SymExpr:
    """A positive multiple of ``difference`` in which each ``num // c`` has been replaced by its
    least or greatest value, ``(num - c + 1) / c`` and ``num / c``."""
    for monomial, coefficient in ex._poly(difference).items():
        if len(monomial) != 1 or not isinstance(monomial[0], nodes.FloorDiv):
            continue
        division = monomial[0]
        if not isinstance(division.den, Const) or division.den.value <= 0:
            continue
        down = least is (coefficient > 0)
        bound = ex.sub(division.num, ex.const(division.den.value - 1)) if down else division.num
        others = ex.sub(difference, ex.mul(ex.const(coefficient), division))
        scaled = ex.add(ex.mul(division.den, others), ex.mul(ex.const(coefficient), bound))
        return _without_divisions(scaled, least=least)
    return difference


def _orient(terms: ex._Poly, literal: int) -> tuple[ex._Poly, int]:
    """Equalities read the same in both directions: the first term goes to the left."""
    first = min(terms, key=lambda m: ex._term_order(ex._mul_node(1, m)))
    if terms[first] > 0:
        return {m: -c for m, c in terms.items()}, -literal
    return terms, literal


def indicator(condition: SymCondition | bool) -> SymExpr | None:
    """One where it holds, else zero; None for conditions on floats."""
    one, zero = ex.const(1), ex.const(0)
    if isinstance(condition, bool):
        return one if condition else zero
    if isinstance(condition, Junction):
        parts = [indicator(part) for part in condition.parts]
        known = [part for part in parts if part is not None]
        chosen = ex.minimum if condition.op == "and" else ex.maximum
        return chosen(*known) if len(known) == len(parts) else None
    if not isinstance(condition, Relation):
        return None
    gap = ex.sub(condition.right, condition.left)
    if condition.op == "<=":
        return ex.maximum(ex.minimum(ex.add(gap, one), one), zero)
    differs = ex.minimum(ex.maximum(gap, ex.neg(gap)), one)
    return differs if condition.op == "!=" else ex.sub(one, differs)


def as_relation(condition: SymCondition) -> SymCondition:
    """An equal comparison, for conditions on ints of which one of several may hold."""
    holds = None if getattr(condition, "op", "or") != "or" else indicator(condition)
    made = None if holds is None else relate("==", holds, ex.const(1))
    return condition if made is None or isinstance(made, bool) else made


@lru_cache(maxsize=16384)
def invert(condition: SymCondition | bool) -> SymCondition | bool:
    """``not condition``."""
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, Inverted):
        return condition.part
    if isinstance(condition, Relation):
        if condition.op == "<=":
            return relate("<", condition.right, condition.left)
        return Relation("!=" if condition.op == "==" else "==", condition.left, condition.right)
    return Inverted(condition)


def join(op: Literal["and", "or"], *parts: SymCondition | bool) -> SymCondition | bool:
    """``a and b and ...`` or ``a or b or ...``."""
    decisive = op == "or"
    kept: dict[SymCondition, None] = {}
    for part in parts:
        if isinstance(part, bool):
            if part is decisive:
                return decisive
        elif isinstance(part, Junction) and part.op == op:
            kept.update(dict.fromkeys(part.parts))
        else:
            kept[part] = None
    if not kept:
        return not decisive
    return next(iter(kept)) if len(kept) == 1 else Junction(op, tuple(kept))
