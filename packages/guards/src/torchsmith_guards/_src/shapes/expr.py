"""Constructors of symbolic numbers.

Integers are kept as polynomials in canonical form (a sum of integer multiples of products), so
that equal sizes are usually the same object and ``s0*s1 + s1 == (s0 + 1)*s1`` needs no solver.
Everything else (floor division, modulo, minimum, maximum, floats) is an atom in such a polynomial.
Every integer expression knows bounds that follow from the bounds its symbols were born with.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from torchsmith_guards._src.shapes.nodes import (
    FUNCTIONS,
    INF,
    Add,
    Bound,
    Call,
    Const,
    FloorDiv,
    Max,
    Min,
    Mod,
    Mul,
    Number,
    Symbol,
    SymExpr,
    exists,
    intern,
)

# Products of sums are multiplied out up to this many terms; beyond it they stay atoms.
_MAX_TERMS = 32

_Monomial = tuple[SymExpr, ...]  # sorted atoms, repeated for powers
_Poly = dict[_Monomial, int]


# Fake execution asks for the same few results over and over.
_cached = lru_cache(maxsize=16384)


def const(value: Number) -> Const:
    """The literal ``value``."""
    return _int_const(value) if type(value) is int else _const(value)


def _const(value: Number) -> Const:
    return intern(Const, (type(value), repr(value)), value, value, value=value)


@_cached
def _int_const(value: int) -> Const:
    return _const(value)


def symbol(name: str, lo: Bound = -INF, hi: Bound = INF, *, floating: bool = False) -> Symbol:
    """The symbol ``name`` with values assumed in ``lo .. hi``."""
    return intern(Symbol, (name, lo, hi, floating), lo, hi, name=name, floating=floating)


@_cached
def add(*terms: SymExpr) -> SymExpr:
    """The sum of integer expressions."""
    total: _Poly = {}
    for term in terms:
        for monomial, coefficient in _poly(term).items():
            _accumulate(total, monomial, coefficient)
    return _from_poly(total)


@_cached
def mul(*factors: SymExpr) -> SymExpr:
    """The product of integer expressions, multiplied out."""
    product: _Poly = {(): 1}
    for factor in factors:
        poly = _poly(factor)
        if len(poly) * len(product) > _MAX_TERMS:
            (left, c1), (right, c2) = _as_monomial(product), _as_monomial(poly)
            product = {tuple(sorted((*left, *right), key=_order)): c1 * c2}
            continue
        result: _Poly = {}
        for m1, c1 in product.items():
            for m2, c2 in poly.items():
                monomial = tuple(sorted((*m1, *m2), key=_order)) if m1 and m2 else m1 or m2
                _accumulate(result, monomial, c1 * c2)
        product = result
    return _from_poly(product)


def neg(value: SymExpr) -> SymExpr:
    """``-value``."""
    return mul(const(-1), value)


def sub(left: SymExpr, right: SymExpr) -> SymExpr:
    """``left - right``."""
    return add(left, neg(right))


@_cached
def floordiv(num: SymExpr, den: SymExpr) -> SymExpr:
    """``num // den``; constant parts and common factors are divided out.

    Raises:
        ZeroDivisionError: ``den`` is the literal 0.
    """
    if isinstance(num, Const) and isinstance(den, Const):
        return const(num.value // den.value)
    if isinstance(den, Const) and den.value == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if isinstance(den, Const) and den.value < 0:
        return floordiv(neg(num), const(-den.value))
    if isinstance(den, Const) and den.value == 1:
        return num
    nonzero = den.lo > 0 or den.hi < 0
    if num is den and nonzero:
        return const(1)
    if nonzero:
        whole, rest = _divide(num, den)
        if not rest:
            return _from_poly(whole)
        if whole:
            return add(_from_poly(whole), floordiv(_from_poly(rest), den))
        num, den = _cancel(num, den)
        if isinstance(den, Const) and (den.value < 2 or isinstance(num, Const)):
            return floordiv(num, den)
    if num.lo >= 0 and _surely_less(num, den):
        return const(0)
    if isinstance(num, FloorDiv) and num.den.lo > 0 and den.lo > 0:
        return floordiv(num.num, mul(num.den, den))
    lo, hi = -INF, INF
    if den.lo > 0:
        lo = _floordiv_bound(num.lo, den.hi if num.lo >= 0 else den.lo)
        hi = _floordiv_bound(num.hi, den.lo if num.hi >= 0 else den.hi)
    return intern(FloorDiv, (num, den), lo, hi, num=num, den=den)


@_cached
def mod(num: SymExpr, den: SymExpr) -> SymExpr:
    """``num % den``; multiples of ``den`` vanish.

    Raises:
        ZeroDivisionError: ``den`` is the literal 0.
    """
    if isinstance(num, Const) and isinstance(den, Const):
        return const(num.value % den.value)
    if isinstance(den, Const) and den.value == 0:
        raise ZeroDivisionError("integer division or modulo by zero")
    if isinstance(den, Const) and den.value < 0:
        return neg(mod(neg(num), const(-den.value)))
    if den.lo > 0 or den.hi < 0:
        whole, rest = _divide(num, den)
        if not rest:
            return const(0)
        if whole:
            return mod(_from_poly(rest), den)
    if num.lo >= 0 and _surely_less(num, den):
        return num
    lo, hi = (0, min(den.hi - 1, num.hi if num.lo >= 0 else INF)) if den.lo > 0 else (-INF, INF)
    return intern(Mod, (num, den), lo, hi, num=num, den=den)


@_cached
def minimum(*args: SymExpr) -> SymExpr:
    """The least of some integer expressions."""
    return _extreme(Min, args, min, lambda a, b: _surely_le(b, a))


@_cached
def maximum(*args: SymExpr) -> SymExpr:
    """The greatest of some integer expressions."""
    return _extreme(Max, args, max, _surely_le)


def _extreme(
    kind: type[Min] | type[Max],
    args: Iterable[SymExpr],
    pick: Callable[[Iterable[Bound]], Bound],
    loses: Callable[[SymExpr, SymExpr], bool],
) -> SymExpr:
    """The one of ``args`` that no other beats, or what is asked for at run time."""
    flat = _flatten(kind, args)
    left = [a for a in flat if not any(b is not a and loses(a, b) for b in flat)]
    if len(left) == 1:
        return left[0]
    key = tuple(sorted(left or flat, key=_order))
    return intern(kind, key, pick(a.lo for a in key), pick(a.hi for a in key), args=key)


def is_plain(expr: SymExpr) -> bool:
    """Whether it is made of sums and products only."""
    return isinstance(expr, Symbol | Const | Add | Mul) and all(map(is_plain, expr.parts()))


@_cached
def call(name: str, *args: SymExpr) -> SymExpr:
    """``FUNCTIONS[name]`` of ``args``; computed at once when all are literals."""
    if all(isinstance(a, Const) for a in args):
        return const(FUNCTIONS[name](*(a.value for a in args if isinstance(a, Const))))
    lo, hi = (args[0].lo, args[0].hi) if name == "float" else (-INF, INF)
    return intern(Call, (name, *args), lo, hi, name=name, args=args)


def substitute(expr: SymExpr, values: Mapping[Symbol, SymExpr]) -> SymExpr:
    """``expr`` with symbols replaced."""
    if isinstance(expr, Symbol):
        return values.get(expr, expr)
    if expr.free_symbols.isdisjoint(values):
        return expr
    parts = [substitute(part, values) for part in expr.parts()]
    if isinstance(expr, Call):
        return call(expr.name, *parts)
    return _CONSTRUCTORS[type(expr)](*parts)


_CONSTRUCTORS: dict[type[SymExpr], Callable[..., SymExpr]] = {
    Add: add,
    Mul: mul,
    FloorDiv: floordiv,
    Mod: mod,
    Min: minimum,
    Max: maximum,
}


# --- polynomials --------------------------------------------------------------------------------


def _order(expr: SymExpr) -> tuple[object, ...]:
    return expr._order


def _accumulate(poly: _Poly, monomial: _Monomial, coefficient: int) -> None:
    total = poly.get(monomial, 0) + coefficient
    if total:
        poly[monomial] = total
    else:
        poly.pop(monomial, None)


def _poly(expr: SymExpr) -> _Poly:
    if isinstance(expr, Const):
        assert isinstance(expr.value, int), "float literal in an integer expression"
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, Add):
        out: _Poly = {}
        for term in expr.terms:
            out.update(_poly(term))
        return out
    if isinstance(expr, Mul):
        head, *rest = expr.factors
        if isinstance(head, Const):
            return {tuple(rest): int(head.value)}
        return {expr.factors: 1}
    return {(expr,): 1}


def _as_monomial(poly: _Poly) -> tuple[_Monomial, int]:
    """A single product as its atoms and coefficient; a sum as an atom."""
    if len(poly) == 1:
        return next(iter(poly.items()))
    return (_from_poly(poly),), 1


def _from_poly(poly: _Poly) -> SymExpr:
    literal = poly.get((), 0)
    terms = [_mul_node(c, m) for m, c in poly.items() if m]
    if not terms:
        return const(literal)
    terms.sort(key=lambda t: _term_order(t))
    if literal:
        terms.append(const(literal))
    if len(terms) == 1:
        return terms[0]
    key = tuple(terms)
    lo, hi = sum(t.lo for t in key), sum(t.hi for t in key)
    if not literal and (lo < 0 or hi > 0) and not exists(Add, key):
        lo, hi = _factored_bounds(poly, lo, hi)
    return intern(Add, key, lo, hi, terms=key)


def _factored_bounds(poly: _Poly, lo: Bound, hi: Bound) -> tuple[Bound, Bound]:
    """Bounds of a sum whose terms share positive factors: ``s0*s1 - s0`` is ``s0*(s1 - 1)``."""
    monomials = list(poly)
    shared: list[SymExpr] = []
    for atom in dict.fromkeys(monomials[0]):
        if atom.lo > 0:
            shared += [atom] * min(m.count(atom) for m in monomials)
    if not shared:
        return lo, hi
    factor = _mul_node(1, tuple(shared))
    rest: _Poly = {}
    for monomial, coefficient in poly.items():
        left = _remove(monomial, tuple(shared))
        assert left is not None, "every monomial has the shared factors"
        rest[left] = coefficient
    quotient = _from_poly(rest)
    ends = [_mul_bound(a, b) for a in (quotient.lo, quotient.hi) for b in (factor.lo, factor.hi)]
    return max(lo, min(ends)), min(hi, max(ends))


def _term_order(term: SymExpr) -> tuple[object, ...]:
    """Terms by their symbols, not by their coefficients."""
    if isinstance(term, Mul) and isinstance(term.factors[0], Const):
        rest = term.factors[1:]
        return (*_order(rest[0]), len(rest), term.text())
    return (*_order(term), 1, term.text())


def _mul_node(coefficient: int, atoms: _Monomial) -> SymExpr:
    if coefficient == 1 and len(atoms) == 1:
        return atoms[0]
    factors = atoms if coefficient == 1 else (const(coefficient), *atoms)
    lo: Bound = 1
    hi: Bound = 1
    for factor in factors:
        ends = [_mul_bound(a, b) for a in (lo, hi) for b in (factor.lo, factor.hi)]
        lo, hi = min(ends), max(ends)
    return intern(Mul, factors, lo, hi, factors=factors)


def _mul_bound(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b


def _floordiv_bound(a: Bound, b: Bound) -> Bound:
    if a in (INF, -INF):
        return a
    if b == INF:
        return 0 if a >= 0 else -1
    return a // b


def _divide(num: SymExpr, den: SymExpr) -> tuple[_Poly, _Poly]:
    """``num`` split into ``whole`` and ``rest`` with ``num == whole * den + rest``, term-wise."""
    numerator, divisor = _poly(num), _poly(den)
    whole: _Poly = {}
    if len(divisor) != 1:
        if numerator and divisor:
            multiple = _multiple(numerator, divisor)
            if multiple is not None:
                return {(): multiple}, {}
        return {}, numerator
    ((factors, scale),) = divisor.items()
    rest: _Poly = {}
    for monomial, coefficient in numerator.items():
        left = _remove(monomial, factors)
        if left is None:
            rest[monomial] = coefficient
            continue
        quotient, remainder = divmod(coefficient, scale)
        if quotient and (remainder == 0 or not factors):
            _accumulate(whole, left, quotient)
            coefficient = remainder
        if coefficient:
            rest[monomial] = coefficient
    return whole, rest


def _multiple(numerator: _Poly, divisor: _Poly) -> int | None:
    """The integer ``k`` with ``numerator == k * divisor``, if there is one."""
    if numerator.keys() != divisor.keys():
        return None
    first = next(iter(divisor))
    multiple, remainder = divmod(numerator[first], divisor[first])
    if remainder or any(numerator[m] != multiple * c for m, c in divisor.items()):
        return None
    return multiple


def _remove(monomial: _Monomial, factors: _Monomial) -> _Monomial | None:
    left = list(monomial)
    for factor in factors:
        if factor not in left:
            return None
        left.remove(factor)
    return tuple(left)


def _cancel(num: SymExpr, den: SymExpr) -> tuple[SymExpr, SymExpr]:
    """Divide both by their common positive integer factor and common positive atoms."""
    numerator, divisor = _poly(num), _poly(den)
    common = math.gcd(*numerator.values(), *divisor.values())
    shared: list[SymExpr] = []
    monomials = [*numerator, *divisor]
    for atom in dict.fromkeys(monomials[0]):
        if atom.lo > 0:
            shared += [atom] * min(m.count(atom) for m in monomials)
    if common <= 1 and not shared:
        return num, den
    factors = tuple(shared)

    def reduced(poly: _Poly) -> SymExpr:
        out: _Poly = {}
        for monomial, coefficient in poly.items():
            left = _remove(monomial, factors)
            assert left is not None, "every monomial has the shared factors"
            out[left] = coefficient // common
        return _from_poly(out)

    return reduced(numerator), reduced(divisor)


def _flatten(kind: type[Min] | type[Max], args: Iterable[SymExpr]) -> list[SymExpr]:
    flat: dict[SymExpr, None] = {}
    for arg in args:
        for part in arg.args if isinstance(arg, kind) else (arg,):
            flat[part] = None
    return list(flat)


def _surely_le(left: SymExpr, right: SymExpr) -> bool:
    if left.hi <= right.lo:
        return left is not right
    return sub(right, left).lo >= 0


def _surely_less(left: SymExpr, right: SymExpr) -> bool:
    return left.hi < right.lo or sub(right, left).lo > 0
