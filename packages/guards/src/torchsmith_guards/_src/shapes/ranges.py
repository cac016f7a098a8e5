"""Bounds of expressions under refined bounds of their symbols, and refinement by guards."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes.nodes import Bound, Const, Number, Symbol, SymExpr
from torchsmith_guards._src.shapes.relation import Relation

Range = tuple[Bound, Bound]


def bounds(expr: SymExpr, ranges: Mapping[Symbol, Range]) -> Range:
    """The bounds of ``expr`` when symbols lie in ``ranges`` (or in the ranges of their birth)."""
    if expr.free_symbols.isdisjoint(ranges):
        return expr.lo, expr.hi
    # Stand-in symbols with the tighter bounds: the constructors then derive the rest.
    given = expr.free_symbols & ranges.keys()
    narrowed = {s: ex.symbol(s.name, *ranges[s], floating=s.floating) for s in given}
    try:
        result = ex.substitute(expr, {s: n for s, n in narrowed.items() if n is not s})
    except ZeroDivisionError:  # a divisor is zero wherever the symbols may lie: it has no value
        return expr.lo, expr.hi
    return result.lo, result.hi


def refine(relation: Relation, ranges: Mapping[Symbol, Range]) -> tuple[Symbol, Range] | None:
    """The symbol and its new range, when ``relation`` bounds a single symbol more tightly."""
    left, right = relation.left, relation.right
    if isinstance(left, Symbol) and isinstance(right, Const):
        symbol, low, high = left, None, right.value
    elif isinstance(right, Symbol) and isinstance(left, Const):
        symbol, low, high = right, left.value, None
    else:
        return None
    lo, hi = ranges.get(symbol, (symbol.lo, symbol.hi))
    match relation.op:
        case "<=":
            new = (lo if low is None else max(lo, low), hi if high is None else min(hi, high))
        case "==":
            value = high if low is None else low
            assert value is not None, "one side is the constant"
            new = (value, value)
        case "!=":
            value = high if low is None else low
            new = (lo + 1 if value == lo else lo, hi - 1 if value == hi else hi)
    return None if new == (lo, hi) else (symbol, new)


def only_solution(
    equality: Relation, ranges: Mapping[Symbol, Range], hints: Mapping[str, Number]
) -> tuple[Symbol, int] | None:
    """The symbol and its number, when an equality of one symbol holds for no other number."""
    symbol = next(iter(equality.free_symbols))
    number = hints.get(symbol.name)
    if len(equality.free_symbols) > 1 or type(number) is not int or symbol.floating:
        return None
    rest = ex.sub(equality.left, equality.right)
    lo, hi = ranges.get(symbol, (symbol.lo, symbol.hi))
    for first, last in ((lo, number - 1), (number + 1, hi)):
        low, high = bounds(rest, {symbol: (first, last)}) if first <= last else (1, 1)
        if low <= 0 <= high:
            return None
    return symbol, number
