"""Integer index expressions: affine sums over iteration ranges, with floor division and modulo.

Own small expressions instead of sympy: they are built and substituted for every load and store of
every kernel, so a node is a tuple-sized frozen object, hash-consed by its constructor functions.
Constructors (``add``, ``mul``, ``floordiv``, ``mod``) return canonical form; the node classes are
never called directly by other modules.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Index:
    """Base of all index nodes. Immutable, hashable, printable as C-like infix text."""


@dataclass(frozen=True, slots=True)
class Const(Index):
    """An integer literal."""

    value: int


@dataclass(frozen=True, slots=True)
class Sym(Index):
    """A size symbol such as ``s0``: an int64 argument of the kernel, constant during a launch."""

    name: str


@dataclass(frozen=True, slots=True)
class Var(Index):
    """Iteration variable number ``axis`` of the kernel; runs over ``0 .. kernel.ranges[axis]-1``."""

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
    """``num // den``; both non-negative in every generated kernel, so C's ``/`` agrees."""

    num: Index
    den: Index


@dataclass(frozen=True, slots=True)
class Mod(Index):
    """``num % den``; both non-negative in every generated kernel, so C's ``%`` agrees."""

    num: Index
    den: Index
