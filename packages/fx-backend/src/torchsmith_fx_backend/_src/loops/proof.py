"""What can be proved about index expressions, for all points of an iteration space at once.

``index.bounds`` works with numbers. Here an expression is a polynomial over its variables,
symbols, quotients and remainders (*atoms*). Each atom is written as its lower bound plus something
non-negative; an expression whose coefficients are then all non-negative is non-negative. What
spoils that is a negative monomial; a *relation* ``r >= 0`` in which the same monomial is negative
is subtracted to cancel it (``size - 1 - i >= 0`` for a variable, for instance).

A body only runs in a non-empty iteration space, so every extent is at least one.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import (
    ONE,
    Add,
    Const,
    FloorDiv,
    Index,
    Loaded,
    Mod,
    Mul,
    Sym,
    Var,
)

Extents = tuple[Index, ...]
_Monomial = tuple[Index, ...]  # atoms, sorted; none for the constant
_Polynomial = dict[_Monomial, int]
_DEEPEST = 8  # relations that are subtracted one after the other ...
_MOST_STEPS = 60  # ... and in all
_MOST_LIFTS = 3
_NESTED = 3  # proofs about the parts of quotients, one inside the other


@lru_cache(maxsize=1 << 14)
def at_least(
    x: Index,
    least: int,
    extents: Extents = (),
    facts: tuple[Index, ...] = (),
    nested: int = _NESTED,
) -> bool:
    """Whether ``x >= least`` is proved.

    Args:
        x: the expression.
        least: a number.
        extents: how far each variable runs; it starts at zero.
        facts: further expressions that are known not to be negative.
        nested: how many proofs about parts of the expression may lie inside one another.
    """
    low, _ = ix.bounds(x, extents)
    if low is not None and low >= least:
        return True
    if not facts and not ix.symbols(x) and type(x) is not Add:
        return False
    start = _polynomial(ix.sub(x, ix.const(least)))
    return _prove(start, extents, facts, _DEEPEST, [_MOST_STEPS], nested)


def _polynomial(x: Index) -> _Polynomial:
    found: _Polynomial = {}
    for term in x.terms if type(x) is Add else (x,):
        factors = term.factors if type(term) is Mul else (term,)
        scale = 1
        atoms = []
        for factor in factors:
            if type(factor) is Const:
                scale *= factor.value
            else:
                atoms.append(factor)
        key = tuple(sorted(atoms, key=ix.order))
        found[key] = found.get(key, 0) + scale
    return {key: scale for key, scale in found.items() if scale}


def _prove(
    p: _Polynomial,
    extents: Extents,
    facts: tuple[Index, ...],
    depth: int,
    budget: list[int],
    nested: int,
) -> bool:
    budget[0] -= 1
    if _plainly(p, extents, nested):
        return True
    if not depth or budget[0] < 0:
        return False
    atoms = dict.fromkeys(atom for key in p for atom in key)
    worst = [key for key, scale in p.items() if scale < 0]
    for relation in _relations(list(atoms), extents, facts, nested):
        negative = [key for key, scale in relation.items() if scale < 0]
        for key in worst:
            for inner in negative:
                rest = _without(key, inner) if inner or not key else None
                if rest is None or any(_low(a, extents, nested) < 0 for a in rest):
                    continue
                times = -(-p[key] // relation[inner])
                less = dict(p)
                for other, scale in relation.items():
                    place = tuple(sorted((*other, *rest), key=ix.order))
                    less[place] = less.get(place, 0) - times * scale
                less = {k: scale for k, scale in less.items() if scale}
                if _prove(less, extents, facts, depth - 1, budget, nested):
                    return True
    return False


def _without(key: _Monomial, part: _Monomial) -> _Monomial | None:
    rest = list(key)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


_UNKNOWN = -(1 << 62)


def _low(atom: Index, extents: Extents, nested: int) -> int:
    """A lower bound of an atom, at least ``_UNKNOWN``."""
    low, _ = ix.bounds(atom, extents)
    best = _UNKNOWN if low is None else low
    match atom:
        case Sym():
            for extent in extents:  # ``s0 - 3`` elements are at least one
                if type(extent) is Add and len(extent.terms) == 2 and atom in extent.terms:
                    last = extent.terms[-1]
                    if type(last) is Const:
                        best = max(best, 1 - last.value)
        case FloorDiv(num, den) if best < 0 and nested:
            deeper = nested - 1
            if at_least(num, 0, extents, (), deeper) and at_least(den, 1, extents, (), deeper):
                best = 0
    return best


def _plainly(p: _Polynomial, extents: Extents, nested: int) -> bool:
    """Whether all coefficients are non-negative once each atom is its bound plus the rest."""
    shifted: _Polynomial = {}
    for key, scale in p.items():
        parts: _Polynomial = {(): scale}
        for atom in key:
            low = _low(atom, extents, nested)
            if low == _UNKNOWN:
                _, high = ix.bounds(atom, extents)
                if high is None:
                    return False
                base, sign = high, -1
            else:
                base, sign = low, 1
            more: _Polynomial = {}
            for done, value in parts.items():
                more[done] = more.get(done, 0) + value * base
                longer = (*done, atom)
                more[longer] = more.get(longer, 0) + value * sign
            parts = more
        for done, value in parts.items():
            place = tuple(sorted(done, key=ix.order))
            shifted[place] = shifted.get(place, 0) + value
    return all(scale >= 0 for scale in shifted.values())


def _relations(
    atoms: list[Index], extents: Extents, facts: tuple[Index, ...], nested: int
) -> Iterator[_Polynomial]:
    """Expressions that are never negative, as far as they concern ``atoms``."""
    for atom in atoms:
        top = limit(atom, extents, nested)
        if top is not None:
            yield _polynomial(ix.sub(top, atom))
        if type(atom) is not FloorDiv or not nested:
            continue
        if at_least(atom.den, 1, extents, (), nested - 1):
            rest = ix.sub(atom.num, ix.mul(atom.den, atom))
            yield _polynomial(rest)
            yield _polynomial(ix.sub(ix.sub(atom.den, ONE), rest))
    for fact in facts:
        yield _polynomial(fact)
    for extent in extents:
        if type(extent) is Add or type(extent) is FloorDiv:
            yield _polynomial(ix.sub(extent, ONE))


def limit(x: Index, extents: Extents, nested: int = _NESTED) -> Index | None:
    """An upper bound of an atom that is no longer the atom itself, or None."""
    _, high = ix.bounds(x, extents)
    if high is not None:
        return ix.const(high)
    match x:
        case Var(axis):
            return ix.sub(extents[axis], ONE) if axis < len(extents) else None
        case Loaded(_, extent):
            return ix.sub(extent, ONE)
        case FloorDiv(num, den) if nested and ix.has_var(num) and not ix.has_var(den):
            if not at_least(den, 1, extents, (), nested - 1):
                return None
            top = _top(num, extents, nested - 1)
            return None if top is None else _quotient(top, den, extents, nested - 1)
        case Mod(num, den):
            return ix.sub(den, ONE)
    return None


def _top(x: Index, extents: Extents, nested: int) -> Index | None:
    """An upper bound of a sum without variables, each term by itself."""
    total: list[Index] = []
    for key, scale in _polynomial(x).items():
        ends: list[Index] = [ix.const(scale)]
        for atom in key:
            if not ix.has_var(atom):
                ends.append(atom)
            elif (low := _low(atom, extents, nested)) < 0:
                return None
            else:
                end = limit(atom, extents, nested) if scale > 0 else ix.const(low)
                if end is None:
                    return None
                ends.append(end)
        if any(map(ix.has_var, key)) and any(_low(atom, extents, nested) < 0 for atom in key):
            return None
        total.append(ix.mul(*ends))
    return ix.add(*total)


def _quotient(num: Index, den: Index, extents: Extents, nested: int) -> Index:
    """``num // den``, with ``-1 // n`` known to be ``-1``."""
    quotient = ix.floordiv(num, den)
    parts: list[Index] = []
    for part in quotient.terms if type(quotient) is Add else (quotient,):
        if type(part) is FloorDiv:
            ends = ix.sub(ix.const(-1), part.num), ix.add(part.num, part.den)
            if all(at_least(end, 0, extents, (), nested) for end in ends):
                part = ix.const(-1)
        parts.append(part)
    return ix.add(*parts)


# ----------------------------------------------------------------------- for machines that truncate


@lru_cache(maxsize=1 << 14)
def settled(x: Index, extents: Extents) -> Index:
    """``x`` for a machine whose division rounds to zero.

    Each quotient and remainder has a numerator that is proved not to be negative (a multiple of
    the divisor is added where that makes it so), or is marked ``floored``.
    """
    match x:
        case FloorDiv(num, den):
            for lifts in range(_MOST_LIFTS):
                lifted = _lifted(num, den, lifts, extents)
                if lifted is not None:
                    times, whole = lifted
                    quotient = FloorDiv(settled(whole, extents), settled(den, extents))
                    return ix.sub(quotient, ix.const(times)) if times else quotient
            return FloorDiv(settled(num, extents), settled(den, extents), True)
        case Mod(num, den):
            for lifts in range(_MOST_LIFTS):
                lifted = _lifted(num, den, lifts, extents)
                if lifted is not None:
                    return Mod(settled(lifted[1], extents), settled(den, extents))
            return Mod(settled(num, extents), settled(den, extents), True)
        case Add(terms):
            parts = tuple(settled(t, extents) for t in terms)
            return x if parts == terms else Add(parts)
        case Mul(factors):
            parts = tuple(settled(f, extents) for f in factors)
            return x if parts == factors else Mul(parts)
    return x


def _lifted(num: Index, den: Index, lifts: int, extents: Extents) -> tuple[int, Index] | None:
    """``num`` plus so many times ``den``, if that is proved not to be negative."""
    if not at_least(den, 1, extents):
        return None
    times = lifts
    if lifts and type(den) is Const:
        low, _ = ix.bounds(num, extents)
        if low is None or lifts > 1:
            return None
        times = -(low // den.value)
    whole = ix.add(num, ix.mul(ix.const(times), den)) if times else num
    return (times, whole) if at_least(whole, 0, extents) else None
