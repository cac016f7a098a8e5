"""Symbolic numbers: small hash-consed expressions over size symbols.

Integers are kept as polynomials in canonical form (a sum of integer multiples of products), so
that equal sizes are usually the same object and ``s0*s1 + s1 == (s0 + 1)*s1`` needs no solver.
Everything else (floor division, modulo, minimum, maximum, floats) is an atom in such a polynomial.
Every integer expression knows bounds that follow from the bounds its symbols were born with.

Build expressions with the functions here (``add``, ``mul``, ...), never with the classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar, TypeVar, cast
from weakref import WeakValueDictionary

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
    """

    __slots__ = ("__weakref__", "_free", "_order", "hi", "lo")
    precedence: ClassVar[int] = 10
    lo: Bound
    hi: Bound
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

    @property
    def is_float(self) -> bool:
        """True for expressions whose value is a Python float."""
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

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        """The same expression over changed operands."""
        return self

    def _paren(self, part: SymExpr, names: Mapping[str, str] | None, *, tight: bool = False) -> str:
        text = part.text(names)
        loose = part.precedence < self.precedence or (tight and part.precedence == self.precedence)
        return f"({text})" if loose else text

    def __repr__(self) -> str:
        return self.text()


def _intern(cls: type[_E], key: tuple[object, ...], lo: Bound, hi: Bound, **fields: object) -> _E:
    """The one object of this class and key."""
    full = (cls, *key)
    found = _TABLE.get(full)
    if found is None:
        found = object.__new__(cls)
        for name, value in fields.items():
            object.__setattr__(found, name, value)
        found.lo, found.hi = lo, hi
        found._free = None
        found._order = (_RANK[cls], found.text())
        found = _TABLE.setdefault(full, found)
    return cast(_E, found)


class Const(SymExpr):
    """A literal: an int, or a float in float expressions."""

    __slots__ = ("value",)
    value: Number

    @property
    def precedence(self) -> int:  # type: ignore[override]
        return 9 if self.value < 0 else 10

    @property
    def is_float(self) -> bool:
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

    @property
    def is_float(self) -> bool:
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

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return add(*(change(t) for t in self.terms))


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

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return mul(*(change(f) for f in self.factors))


class _Division(SymExpr):
    __slots__ = ("den", "num")
    precedence = 6
    num: SymExpr
    den: SymExpr
    sign: ClassVar[str]

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

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return self.num.evaluate(values) // self.den.evaluate(values)

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return floordiv(change(self.num), change(self.den))


class Mod(_Division):
    """``num % den`` with Python's sign (that of the divisor)."""

    __slots__ = ()
    sign = " % "

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return self.num.evaluate(values) % self.den.evaluate(values)

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return mod(change(self.num), change(self.den))


class _Extreme(SymExpr):
    __slots__ = ("args",)
    args: tuple[SymExpr, ...]
    function: ClassVar[str]

    def parts(self) -> tuple[SymExpr, ...]:
        return self.args

    def text(self, names: Mapping[str, str] | None = None) -> str:
        return f"{self.function}({', '.join(a.text(names) for a in self.args)})"


class Min(_Extreme):
    """The least of two or more numbers."""

    __slots__ = ()
    function = "min"

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return min(a.evaluate(values) for a in self.args)

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return minimum(*(change(a) for a in self.args))


class Max(_Extreme):
    """The greatest of two or more numbers."""

    __slots__ = ()
    function = "max"

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return max(a.evaluate(values) for a in self.args)

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return maximum(*(change(a) for a in self.args))


class Call(SymExpr):
    """A function of ``FUNCTIONS`` applied to numbers: float arithmetic, conversions, shifts."""

    __slots__ = ("args", "name")
    name: str
    args: tuple[SymExpr, ...]

    @property
    def is_float(self) -> bool:
        return self.name not in INTEGER_FUNCTIONS

    def parts(self) -> tuple[SymExpr, ...]:
        return self.args

    def evaluate(self, values: Mapping[str, Number]) -> Number:
        return FUNCTIONS[self.name](*(a.evaluate(values) for a in self.args))

    def text(self, names: Mapping[str, str] | None = None) -> str:
        return f"{self.name}({', '.join(a.text(names) for a in self.args)})"

    def rebuild(self, change: Callable[[SymExpr], SymExpr]) -> SymExpr:
        return call(self.name, *(change(a) for a in self.args))


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

#: Functions that ``Call`` may name. They print by this name and are bound in generated code.
FUNCTIONS: dict[str, Callable[..., Number]] = {
    "float": float,
    "truediv": lambda a, b: a / b,
    "float_add": lambda a, b: a + b,
    "float_sub": lambda a, b: a - b,
    "float_mul": lambda a, b: a * b,
    "float_floordiv": lambda a, b: a // b,
    "float_mod": lambda a, b: a % b,
    "float_min": min,
    "float_max": max,
    "float_neg": lambda a: -a,
    "float_abs": abs,
    "float_pow": lambda a, b: float(a) ** b,
    "int_pow": lambda a, b: a**b,
    "lshift": lambda a, b: a << b,
    "rshift": lambda a, b: a >> b,
    "bitand": lambda a, b: a & b,
    "bitor": lambda a, b: a | b,
    "bitxor": lambda a, b: a ^ b,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    "round_to_int": round,
    "round_digits": round,
    "bool_to_int": int,
    **{
        f: getattr(math, f)
        for f in (
            "sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh",
            "asin", "acos", "atan",
        )
    },
}  # fmt: skip
INTEGER_FUNCTIONS = frozenset(
    {"int_pow", "lshift", "rshift", "bitand", "bitor", "bitxor", "trunc", "floor", "ceil"}
    | {"round_to_int", "bool_to_int"}
)

# --- constructors -------------------------------------------------------------------------------

# Products of sums are multiplied out up to this many terms; beyond it they stay atoms.
_MAX_TERMS = 32

_Monomial = tuple[SymExpr, ...]  # sorted atoms, repeated for powers
_Poly = dict[_Monomial, int]


def const(value: Number) -> Const:
    """The literal ``value``."""
    return _intern(Const, (type(value), repr(value)), value, value, value=value)


def symbol(name: str, lo: Bound = -INF, hi: Bound = INF, *, floating: bool = False) -> Symbol:
    """The symbol ``name`` with values assumed in ``lo .. hi``."""
    return _intern(Symbol, (name, lo, hi, floating), lo, hi, name=name, floating=floating)


def add(*terms: SymExpr) -> SymExpr:
    """The sum of integer expressions."""
    total: _Poly = {}
    for term in terms:
        for monomial, coefficient in _poly(term).items():
            _accumulate(total, monomial, coefficient)
    return _from_poly(total)


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
        if isinstance(den, Const) and den.value == 1:
            return num
    if num.lo >= 0 and _surely_less(num, den):
        return const(0)
    if isinstance(num, FloorDiv) and num.den.lo > 0 and den.lo > 0:
        return floordiv(num.num, mul(num.den, den))
    lo, hi = -INF, INF
    if den.lo > 0:
        lo = _floordiv_bound(num.lo, den.hi if num.lo >= 0 else den.lo)
        hi = _floordiv_bound(num.hi, den.lo if num.hi >= 0 else den.hi)
    return _intern(FloorDiv, (num, den), lo, hi, num=num, den=den)


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
    return _intern(Mod, (num, den), lo, hi, num=num, den=den)


def minimum(*args: SymExpr) -> SymExpr:
    """The least of some integer expressions."""
    flat = _flatten(Min, args)
    low = [a for a in flat if not any(b is not a and _surely_le(b, a) for b in flat)]
    if len(low) == 1:
        return low[0]
    key = tuple(sorted(low or flat, key=_order))
    return _intern(Min, key, min(a.lo for a in key), min(a.hi for a in key), args=key)


def maximum(*args: SymExpr) -> SymExpr:
    """The greatest of some integer expressions."""
    flat = _flatten(Max, args)
    high = [a for a in flat if not any(b is not a and _surely_le(a, b) for b in flat)]
    if len(high) == 1:
        return high[0]
    key = tuple(sorted(high or flat, key=_order))
    return _intern(Max, key, max(a.lo for a in key), max(a.hi for a in key), args=key)


def call(name: str, *args: SymExpr) -> SymExpr:
    """``FUNCTIONS[name]`` of ``args``; computed at once when all are literals."""
    if all(isinstance(a, Const) for a in args):
        return const(FUNCTIONS[name](*(a.value for a in args if isinstance(a, Const))))
    lo, hi = (args[0].lo, args[0].hi) if name == "float" else (-INF, INF)
    return _intern(Call, (name, *args), lo, hi, name=name, args=args)


def substitute(expr: SymExpr, values: Mapping[Symbol, SymExpr]) -> SymExpr:
    """``expr`` with symbols replaced."""
    if isinstance(expr, Symbol):
        return values.get(expr, expr)
    if expr.free_symbols.isdisjoint(values):
        return expr
    return expr.rebuild(lambda part: substitute(part, values))


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
    if not literal and (lo < 0 or hi > 0) and (Add, *key) not in _TABLE:
        lo, hi = _factored_bounds(poly, lo, hi)
    return _intern(Add, key, lo, hi, terms=key)


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
    return _intern(Mul, factors, lo, hi, factors=factors)


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
