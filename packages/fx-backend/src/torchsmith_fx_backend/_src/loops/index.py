"""Integer index expressions: affine sums over iteration ranges, with floor division and modulo.

Own small expressions instead of sympy: they are built and substituted for every load and store of
every kernel, so a node is a tuple-sized frozen object, made canonical by its constructor functions.
Constructors (``add``, ``mul``, ``floordiv``, ``mod``) return canonical form; the node classes are
never called directly by other modules, except ``Const``, ``Sym`` and ``Var``, which are canonical.

Division rounds to minus infinity and a remainder has the sign of its (positive) divisor, as in
Python. What prints an expression for a machine that truncates goes through ``proof.settled``.

Where a simplification needs to know how far a variable runs, the constructor takes ``ranges``, a
mapping (or sequence) from axis number to extent. All variables are ``>= 0``; symbols carry their
own bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Index:
    """Base of all index nodes. Immutable, hashable, printable as C-like infix text."""

    def __str__(self) -> str:
        return render(self)


@dataclass(frozen=True, slots=True)
class Const(Index):
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Sym(Index):
    """A size symbol such as ``s0``: an int64 argument of the kernel, constant during a launch.

    ``low`` and ``high`` bound its value, both included; None where nothing is known.
    """

    name: str
    low: int | None = 1
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Var(Index):
    """Iteration variable number ``axis`` of the kernel: ``0 .. kernel.ranges[axis]-1``."""

    axis: int


@dataclass(frozen=True, slots=True)
class Add(Index):
    """Sum of two or more terms, sorted; at most one ``Const`` among them, last."""

    terms: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Mul(Index):
    """Product of two or more factors, sorted; at most one ``Const`` among them, first."""

    factors: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class FloorDiv(Index):
    """``num // den``, rounded to minus infinity; ``den`` is positive.

    ``floored`` is set by ``proof.settled`` alone: the printer must not rely on a numerator that is
    not negative.
    """

    num: Index
    den: Index
    floored: bool = False


@dataclass(frozen=True, slots=True)
class Mod(Index):
    """``num % den``, never negative; ``den`` is positive. ``floored`` as in ``FloorDiv``."""

    num: Index
    den: Index
    floored: bool = False


@dataclass(frozen=True, slots=True)
class Loaded(Index):
    """A position that the kernel computes: SSA value number ``value``, an ``ir.Position``.

    ``0 <= value < extent``. ``axes`` are the iteration axes along which it differs.
    """

    value: int
    extent: Index
    axes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inside(Index):
    """``num``, which is one of ``0 .. extent-1`` wherever it is looked at: what a mask tells."""

    num: Index
    extent: Index


Ranges = Mapping[int, Index] | Sequence[Index]
_CONSTS = tuple(map(Const, range(1025)))  # most sizes and strides
ZERO, ONE = _CONSTS[:2]
_NO_RANGES: dict[int, Index] = {}
_VARS = tuple(Var(i) for i in range(64))
_VARY = frozenset({Var, Loaded})


def const(value: int) -> Const:
    """The literal ``value``."""
    return _CONSTS[value] if 0 <= value < len(_CONSTS) else Const(value)


def var(axis: int) -> Var:
    """Iteration variable number ``axis``."""
    return _VARS[axis] if axis < len(_VARS) else Var(axis)


# ------------------------------------------------------------------------------- canonical order


def order(x: Index) -> tuple[Any, ...]:
    """Sort key of the terms of a sum. Payloads of one rank have one shape, so keys compare."""
    match x:
        case Var(axis):
            return (0, axis)
        case Sym(name):
            return (1, name)
        case FloorDiv(num, den):
            return (2, order(num), order(den))
        case Mod(num, den):
            return (3, order(num), order(den))
        case Mul(factors):
            rest = factors[1:] if type(factors[0]) is Const else factors
            coefficient = factors[0].value if type(factors[0]) is Const else 1
            return (4, tuple(map(order, rest)), coefficient)
        case Add(terms):
            return (5, tuple(map(order, terms)))
        case Const(value):
            return (6, value)
        case Loaded(value):
            return (7, value)
        case Inside(num):
            return (8, order(num))
    raise TypeError(f"not an index expression: {x!r}")


# ----------------------------------------------------------------------------------- constructors


def _split(x: Index) -> tuple[int, Index]:
    """``x`` as (coefficient, rest) where rest has no constant factor."""
    if type(x) is Mul:
        first = x.factors[0]
        if type(first) is Const:
            rest = x.factors[1:]
            return first.value, rest[0] if len(rest) == 1 else Mul(rest)
    return 1, x


def _scaled(coefficient: int, rest: Index) -> Index:
    if coefficient == 1:
        return rest
    if type(rest) is Mul:
        return Mul((Const(coefficient), *rest.factors))
    return Mul((Const(coefficient), rest))


def _collect(terms: Sequence[Index]) -> tuple[dict[Index, int], int]:
    acc: dict[Index, int] = {}
    constant = 0
    stack = list(terms)
    while stack:
        x = stack.pop()
        kind = type(x)
        if kind is Const:
            constant += x.value  # type: ignore[attr-defined]
        elif kind is Add:
            stack.extend(x.terms)  # type: ignore[attr-defined]
        else:
            coefficient, rest = _split(x)
            acc[rest] = acc.get(rest, 0) + coefficient
    return acc, constant


def _recombine(acc: dict[Index, int]) -> dict[Index, int]:
    """Apply ``(x // d) * d + x % d == x`` and ``((x // d) % e) * d + x % d == x % (d * e)`` until
    nothing changes."""
    changed = True
    while changed:
        changed = False
        for term, c in list(acc.items()):
            if c == 0:
                continue
            extra: Index | None = None
            inner = term
            if type(term) is Mul:  # symbolic stride times a modulo
                mods = [f for f in term.factors if type(f) is Mod]
                if len(mods) != 1:
                    continue
                inner = mods[0]
                others = tuple(f for f in term.factors if f is not inner)
                extra = others[0] if len(others) == 1 else Mul(others)
            if type(inner) is not Mod:
                continue
            quotient = floordiv(inner.num, inner.den)
            scale = (inner.den,) if extra is None else (inner.den, extra)
            qc, qrest = _split(mul(quotient, *scale))
            restored: Index | None = None
            if type(qrest) is not Add and acc.get(qrest, 0) == c * qc:
                restored = inner.num
            else:
                for other in acc:
                    found = _modulo_of(other, quotient)
                    if found is None:
                        continue
                    high, ahead = found
                    qc, qrest = _split(mul(high, *scale))
                    if acc.get(qrest, 0) == c * qc and qrest != term:
                        whole = add(inner.num, mul(inner.den, Const(ahead)))
                        restored = Mod(whole, mul(inner.den, high.den))
                        break
            if restored is None:
                continue
            del acc[term], acc[qrest]
            if extra is not None:
                restored = mul(restored, extra)
            more, constant = _collect([mul(Const(c), restored)])
            for rest, value in more.items():
                acc[rest] = acc.get(rest, 0) + value
            if constant:
                acc[ONE] = acc.get(ONE, 0) + constant
            changed = True
            break
    return acc


def _modulo_of(term: Index, num: Index) -> tuple[Mod, int] | None:
    """The factor ``(num + k) % e`` of ``term`` and its ``k``, for any ``e``."""
    for factor in term.factors if type(term) is Mul else (term,):
        if type(factor) is Mod:
            if factor.num == num:
                return factor, 0
            if type(factor.num) is Add and type(factor.num.terms[-1]) is Const:
                ahead = sub(factor.num, num)
                if type(ahead) is Const and ahead.value > 0:
                    return factor, ahead.value
    return None


def add(*terms: Index) -> Index:
    """The sum of ``terms`` in canonical form."""
    acc, constant = _collect(terms)
    if any(type(t) is Mod or type(t) is Mul for t in acc) and len(acc) > 1:
        acc = _recombine(acc)
        constant += acc.pop(ONE, 0)
    parts = [_scaled(c, rest) for rest, c in acc.items() if c]
    if len(parts) > 1:
        parts.sort(key=order)
    if constant or not parts:
        parts.append(const(constant))
    return parts[0] if len(parts) == 1 else Add(tuple(parts))


def sub(a: Index, b: Index) -> Index:
    """``a - b`` in canonical form."""
    if b == ZERO:
        return a
    return add(a, mul(Const(-1), b))


def mul(*factors: Index) -> Index:
    """The product of ``factors`` in canonical form; distributes over sums."""
    constant = 1
    rest: list[Index] = []
    stack = list(reversed(factors))
    while stack:
        x = stack.pop()
        kind = type(x)
        if kind is Const:
            constant *= x.value  # type: ignore[attr-defined]
        elif kind is Mul:
            stack.extend(x.factors)  # type: ignore[attr-defined]
        elif kind is Add:
            others = [Const(constant), *rest, *stack]
            return add(*(mul(term, *others) for term in x.terms))  # type: ignore[attr-defined]
        else:
            rest.append(x)
    if constant == 0:
        return ZERO
    if not rest:
        return const(constant)
    if len(rest) == 1:
        return _scaled(constant, rest[0])
    rest.sort(key=order)
    return Mul((Const(constant), *rest)) if constant != 1 else Mul(tuple(rest))


def product(factors: Sequence[Index]) -> Index:
    """The product of any number of factors (``1`` for none)."""
    total = 1
    for factor in factors:
        if type(factor) is not Const:
            return mul(*factors)
        total *= factor.value
    return const(total)


def _exact_quotient(term: Index, den: Index) -> Index | None:
    """``term / den`` when it divides for sure, else None."""
    if term == den:
        return ONE
    dc, drest = (den.value, None) if type(den) is Const else _split(den)
    if type(term) is Const:
        return const(term.value // dc) if drest is None and term.value % dc == 0 else None
    tc, trest = _split(term)
    if tc % dc:
        return None
    factors = list(trest.factors) if type(trest) is Mul else [trest]
    if drest is not None:
        for factor in drest.factors if type(drest) is Mul else (drest,):
            if factor not in factors:
                return None
            factors.remove(factor)
    return mul(Const(tc // dc), *factors)


def floordiv(num: Index, den: Index, ranges: Ranges = _NO_RANGES) -> Index:
    """``num // den`` in canonical form; ``den`` is positive."""
    if den == ONE or num == ZERO:
        return num
    if type(num) is Const and type(den) is Const:
        return const(num.value // den.value)
    exact = _exact_quotient(num, den) if type(num) is not Add else None
    if exact is not None:
        return exact
    if type(num) is FloorDiv:
        return floordiv(num.num, mul(num.den, den), ranges)
    if type(num) is Mod:
        high = _exact_quotient(num.den, den)
        if high is not None:
            return mod(floordiv(num.num, den, ranges), high, ranges)
    if type(num) is Add:
        whole: list[Index] = []
        left: list[Index] = []
        for term in num.terms:
            q = _exact_quotient(term, den)
            (left if q is None else whole).append(term if q is None else q)
        if type(den) is Const and left and type(left[-1]) is Const:
            times, remainder = divmod(left[-1].value, den.value)
            if times:
                whole.append(const(times))
                left[-1] = const(remainder)
        if whole:
            return add(*whole, floordiv(add(*left), den, ranges))
        common = _common_factor(num, den)
        if common > 1:
            g = const(common)
            return floordiv(_divide(num, common), _exact_quotient(den, g) or den, ranges)
    elif type(den) is Const:
        coefficient, rest = _split(num)
        common = _gcd(coefficient, den.value)
        if common > 1:
            return floordiv(
                _scaled(coefficient // common, rest), const(den.value // common), ranges
            )
    if in_range(num, den, ranges):
        return ZERO
    return FloorDiv(num, den)


def mod(num: Index, den: Index, ranges: Ranges = _NO_RANGES) -> Index:
    """``num % den`` in canonical form; ``den`` is positive."""
    if den == ONE or num == ZERO:
        return ZERO
    if type(num) is Const and type(den) is Const:
        return const(num.value % den.value)
    left: list[Index] = []
    stripped = False
    for term in num.terms if type(num) is Add else (num,):
        if _exact_quotient(term, den) is not None:
            continue
        if type(den) is Const and type(term) is Const:
            term = const(term.value % den.value)
        if type(term) is Mod and _exact_quotient(term.den, den) is not None:
            term = term.num
            stripped = True
        left.append(term)
    num = add(*left)
    if stripped:  # what was inside may have multiples of ``den`` in turn
        return mod(num, den, ranges)
    if num == ZERO:
        return ZERO
    if type(num) is Const and type(den) is Const:
        return const(num.value % den.value)
    if in_range(num, den, ranges):
        return num
    if type(den) is Const:
        common = _common_factor(num, den)
        if common > 1:
            inner = mod(_divide(num, common), const(den.value // common), ranges)
            return mul(const(common), inner)
    return Mod(num, den)


def _gcd(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return abs(a)


def _common_factor(num: Index, den: Index) -> int:
    """Greatest constant that divides every term of ``num`` and ``den`` (1 when unknown)."""
    if type(den) is not Const:
        return 1
    common = den.value
    for term in num.terms if type(num) is Add else (num,):
        value = term.value if type(term) is Const else _split(term)[0]
        common = _gcd(common, value)
        if common == 1:
            return 1
    return common


def _divide(num: Index, by: int) -> Index:
    parts: list[Index] = []
    for term in num.terms if type(num) is Add else (num,):
        if type(term) is Const:
            parts.append(const(term.value // by))
        else:
            coefficient, rest = _split(term)
            parts.append(_scaled(coefficient // by, rest))
    return add(*parts)


# ------------------------------------------------------------------------------------ facts


def _extent(axis: int, ranges: Ranges) -> Index | None:
    if isinstance(ranges, Mapping):
        return ranges.get(axis)
    return ranges[axis] if axis < len(ranges) else None


def bounds(x: Index, ranges: Ranges = _NO_RANGES) -> tuple[int | None, int | None]:
    """Smallest and largest value as integers; None where unknown or symbolic."""
    match x:
        case Const(value):
            return value, value
        case Sym(_, low, high):
            return low, high
        case Var(axis):
            extent = _extent(axis, ranges)
            return 0, extent.value - 1 if type(extent) is Const else None
        case Loaded(_, extent) | Inside(_, extent):
            return 0, extent.value - 1 if type(extent) is Const else None
        case Add(terms):
            lo: int | None = 0
            hi: int | None = 0
            for term in terms:
                a, b = bounds(term, ranges)
                lo = None if lo is None or a is None else lo + a
                hi = None if hi is None or b is None else hi + b
            return lo, hi
        case Mul(factors):
            found: tuple[int | None, int | None] = 1, 1
            for factor in factors:
                found = _product_bounds(found, bounds(factor, ranges))
            return found
        case FloorDiv(num, den):
            a, b = bounds(num, ranges)
            c, d = bounds(den, ranges)
            if c is None or c <= 0:
                return None, None
            # The quotient is nearer to zero for a larger divisor.
            far_low = c if a is not None and a < 0 else d
            far_high = c if b is not None and b >= 0 else d
            low = None if a is None else 0 if far_low is None else a // far_low
            high = None if b is None else -1 if far_high is None else b // far_high
            return low, high
        case Mod(num, den):
            a, b = bounds(num, ranges)
            _, d = bounds(den, ranges)
            tops = [] if d is None else [d - 1]
            if a is not None and a >= 0 and b is not None:
                tops.append(b)
            return 0, min(tops, default=None)
    raise TypeError(f"not an index expression: {x!r}")


def _product_bounds(
    x: tuple[int | None, int | None], y: tuple[int | None, int | None]
) -> tuple[int | None, int | None]:
    (a, b), (c, d) = x, y
    if a is not None and b is not None and c is not None and d is not None:
        corners = (a * c, a * d, b * c, b * d)
        return min(corners), max(corners)
    if a is not None and c is not None and a >= 0 and c >= 0:
        return a * c, None if b is None or d is None else b * d
    for (low, high), (c, d) in ((x, y), (y, x)):
        if low is not None and low == high:  # a number times something half bounded
            ends = (None if c is None else c * low, None if d is None else d * low)
            return ends if low >= 0 else ends[::-1]
    return None, None


def _upper(x: Index, ranges: Ranges) -> Index | None:
    """A symbolic upper bound of ``x`` without variables, or None."""
    match x:
        case Const() | Sym():
            return x
        case Var(axis):
            extent = _extent(axis, ranges)
            return None if extent is None else add(extent, Const(-1))
        case Loaded(_, extent) | Inside(_, extent):
            return add(extent, Const(-1))
        case Add(terms):
            tops = [_upper(term, ranges) for term in terms]
            return None if None in tops else add(*(t for t in tops if t is not None))
        case Mul(factors):
            if not has_var(x):
                return x
            if type(factors[0]) is Const and factors[0].value < 0:
                low, _ = bounds(_scaled(-factors[0].value, _split(x)[1]), ranges)
                return None if low is None else const(-low)
            lows = [bounds(factor, ranges)[0] for factor in factors]
            if any(low is None or low < 0 for low in lows):
                return None
            tops = [_upper(factor, ranges) for factor in factors]
            return None if None in tops else mul(*(t for t in tops if t is not None))
        case FloorDiv(num, den):
            if not has_var(x):
                return x
            top = _upper(num, ranges)
            return None if top is None or has_var(den) else floordiv(top, den)
        case Mod(num, den):
            return None if has_var(den) else add(den, Const(-1))
    return None


def in_range(x: Index, extent: Index, ranges: Ranges = _NO_RANGES) -> bool:
    """Whether ``0 <= x < extent`` can be proved."""
    low, high = bounds(x, ranges)
    if low is None or low < 0:
        return False
    if high is not None and type(extent) is Const:
        return high < extent.value
    top = _upper(x, ranges)
    if top is None:
        return False
    slack, _ = bounds(sub(sub(extent, ONE), top))
    return slack is not None and slack >= 0


def inside(x: Index, extent: Index, ranges: Ranges) -> Index:
    """``x`` where a mask tells that ``0 <= x < extent``."""
    return x if in_range(x, extent, ranges) else Inside(x, extent)


def leaves(x: Index) -> list[Index]:
    """The numbers, symbols, variables and loaded positions in ``x``, from left to right."""
    found: list[Index] = []
    waiting = [x]
    while waiting:
        part = waiting.pop()
        if type(part) is Add:
            waiting += part.terms[::-1]
        elif type(part) is Mul:
            waiting += part.factors[::-1]
        elif type(part) is FloorDiv or type(part) is Mod:
            waiting += part.den, part.num
        elif type(part) is Inside:
            waiting.append(part.num)
        else:
            found.append(part)
    return found


def has_var(x: Index) -> bool:
    """Whether any iteration variable occurs in ``x``."""
    return not _VARY.isdisjoint(map(type, leaves(x)))


def variables(x: Index, into: set[int] | None = None) -> set[int]:
    """The axes of all iteration variables in ``x``, and those that its loaded positions follow."""
    found: set[int] = set() if into is None else into
    for leaf in leaves(x):
        if type(leaf) is Var:
            found.add(leaf.axis)
        elif type(leaf) is Loaded:
            found.update(leaf.axes)
    return found


def symbols(x: Index, into: set[str] | None = None) -> set[str]:
    """The names of all size symbols in ``x``."""
    found: set[str] = set() if into is None else into
    if type(x) is not Const:  # as most sizes are
        found.update([symbol.name for symbol in symbol_nodes([x])])
    return found


def symbol_nodes(expressions: Iterable[Index]) -> list[Sym]:
    """All size symbols in ``expressions``, once each, by name."""
    found: dict[str, Sym] = {}
    waiting = list(expressions)
    while waiting:
        for leaf in leaves(waiting.pop()):
            if type(leaf) is Sym:
                found[leaf.name] = leaf
            elif type(leaf) is Loaded:
                waiting.append(leaf.extent)
    return [found[name] for name in sorted(found)]


def coefficient(x: Index, axis: int) -> Index | None:
    """The stride of ``x`` along ``axis``: None when ``x`` is not affine in that variable."""
    total: list[Index] = []
    for term in x.terms if type(x) is Add else (x,):
        if type(term) is Var:
            if term.axis == axis:
                total.append(ONE)
        elif type(term) is Mul:
            hits = [f for f in term.factors if type(f) is Var and f.axis == axis]
            rest = [f for f in term.factors if not (type(f) is Var and f.axis == axis)]
            if len(hits) > 1 or any(axis in variables(f) for f in rest):
                return None
            if hits:
                total.append(product(rest))
        elif axis in variables(term):
            return None
    return add(*total) if total else ZERO


# ------------------------------------------------------------------------------ transformation


def loaded(x: Index) -> list[Loaded]:
    """The loaded positions in ``x``, once each, in order."""
    return list(dict.fromkeys(leaf for leaf in leaves(x) if type(leaf) is Loaded))


def substitute(
    x: Index,
    mapping: Mapping[int, Index],
    ranges: Ranges = _NO_RANGES,
    positions: Mapping[int, Index] | None = None,
    plain: bool = False,
) -> Index:
    """Replace variables by expressions; ``ranges`` are those of the *new* variables.

    ``positions`` are replacements of loaded positions, by SSA value; without one they stay and
    follow the new axes. What is ``plain`` has forgotten what masks tell.
    """

    def go(part: Index) -> Index:
        return substitute(part, mapping, ranges, positions, plain)

    match x:
        case Var(axis):
            return mapping.get(axis, x)
        case Const() | Sym():
            return x
        case Add(terms):
            return add(*map(go, terms))
        case Mul(factors):
            return mul(*map(go, factors))
        case FloorDiv(num, den):
            return floordiv(go(num), go(den), ranges)
        case Mod(num, den):
            return mod(go(num), go(den), ranges)
        case Loaded(value, extent, axes):
            if positions is not None and value in positions:
                return positions[value]
            follows: set[int] = set()
            for axis in axes:
                variables(mapping.get(axis, var(axis)), follows)
            return Loaded(value, extent, tuple(sorted(follows)))
        case Inside(num, extent):
            return go(num) if plain else inside(go(num), extent, ranges)
    raise TypeError(f"not an index expression: {x!r}")


def evaluate(x: Index, point: Mapping[int, Any] | Sequence[Any], values: Mapping[str, int]) -> Any:
    """The value of ``x`` where variable ``i`` is ``point[i]``: an int, or a tensor of many."""
    match x:
        case Const(value):
            return value
        case Sym(name):
            return values[name]
        case Var(axis):
            return point[axis]
        case Add(terms):
            total = evaluate(terms[0], point, values)
            for term in terms[1:]:
                total = total + evaluate(term, point, values)
            return total
        case Mul(factors):
            total = evaluate(factors[0], point, values)
            for factor in factors[1:]:
                total = total * evaluate(factor, point, values)
            return total
        case FloorDiv(num, den):
            return evaluate(num, point, values) // evaluate(den, point, values)
        case Mod(num, den):
            return evaluate(num, point, values) % evaluate(den, point, values)
        case Loaded():
            raise IndexError(f"{x} is only known to a running kernel")
    raise TypeError(f"not an index expression: {x!r}")


def render(
    x: Index,
    var_name: Callable[[int], str] = lambda axis: f"i{axis}",
    sym_name: Callable[[str], str] = lambda name: name,
    div: str = "//",
    floored: tuple[str, ...] | None = None,
    value_name: Callable[[int], str] = lambda value: f"at(v{value})",
) -> str:
    """``x`` as infix text; give ``div="/"`` for C.

    Args:
        x: the expression; one from ``proof.settled`` where the operators truncate.
        var_name: text for an iteration variable, by axis.
        sym_name: text for a size symbol, by name.
        div: the operator for floor division of non-negative integers.
        floored: the functions for floor division and remainder of other integers, then, if they
            are others, those of sizes alone; None where the operators themselves do that.
        value_name: text for a loaded position, by SSA value.
    """

    def go(node: Index, level: int) -> str:
        match node:
            case Const(value):
                return str(value) if value >= 0 else f"({value})"
            case Sym(name):
                return sym_name(name)
            case Var(axis):
                return var_name(axis)
            case Loaded(value):
                return value_name(value)
            case Inside(num):
                return go(num, level)
            case Add(terms):
                strided_first = sorted(terms, key=lambda t: (type(t) is Const, type(t) is not Mul))
                text = " + ".join(go(t, 1) for t in strided_first)
                return f"({text})" if level > 1 else text
            case Mul(factors):
                text = " * ".join(go(f, 2) for f in factors)
                return f"({text})" if level > 2 else text
            case FloorDiv(num, den, True) | Mod(num, den, True) if floored is not None:
                names = floored if has_var(node) else floored[-2:]
                name = names[type(node) is Mod]
                return f"{name}({go(num, 0)}, {go(den, 0)})"
            case FloorDiv(num, den):
                return f"({go(num, 2)} {div} {go(den, 3)})"
            case Mod(num, den):
                return f"({go(num, 2)} % {go(den, 3)})"
        raise TypeError(f"not an index expression: {node!r}")

    return go(x, 0)
