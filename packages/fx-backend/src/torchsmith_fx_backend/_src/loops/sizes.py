"""Sizes, strides and dtypes of graph values as index expressions.

The only place that looks into symbolic integers: those of ``torchsmith_guards``, and those of
torch's own tracer when this backend runs under ``torch.compile(backend="smith")``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torchsmith_guards
from torch import fx

from torchsmith_fx_backend._src.loops.index import (
    Const,
    Index,
    Sym,
    add,
    const,
    evaluate,
    floordiv,
    mod,
    mul,
    product,
    symbols,
)

TYPICAL_SIZE = 512  # stands in for a symbolic size where only an estimate is wanted


class UnrepresentableError(Exception):
    """A size is no sum, product, quotient or remainder; its node must stay with aten."""


@dataclass(frozen=True, slots=True)
class Info:
    """What a graph value looks like in eager: its layout, with sizes as index expressions."""

    shape: tuple[Index, ...]
    stride: tuple[Index, ...]
    offset: Index
    dtype: torch.dtype
    device: torch.device

    def read_on(self, device: torch.device) -> bool:
        """Whether a kernel on ``device`` can read it: one element on a CPU is handed in at launch,
        as eager does."""
        return self.device == device or (self.device.type == "cpu" and not self.shape)

    @property
    def numel(self) -> Index:
        return product(self.shape)

    @property
    def reach(self) -> Index:
        """How many elements lie between the first and the last, both included."""
        if all(type(n) is Const for n in (*self.shape, *self.stride)):
            return const(self._static_reach())
        if const(0) in self.shape:
            return const(0)
        steps = (mul(add(n, const(-1)), step) for n, step in zip(self.shape, self.stride))
        return add(const(1), *steps)

    def _static_reach(self) -> int:
        total = 1
        for size, step in zip(self.shape, self.stride):
            if size.value == 0:  # type: ignore[attr-defined]
                return 0
            total += (size.value - 1) * step.value  # type: ignore[attr-defined]
        return total

    def bytes(self) -> int:
        """Size in bytes; an estimate where sizes are symbolic."""
        return estimate(self.numel) * self.dtype.itemsize

    def dense(self) -> bool:
        """Whether the strides are a permutation of contiguous ones, with no gap or overlap."""
        dims = [
            (step, count, size, stride)
            for step, count, size, stride in zip(*self._numbers(), self.shape, self.stride)
            if size != const(1)
        ]
        expected: Index = const(1)
        for _, _, size, stride in sorted(dims, key=lambda d: d[:2]):
            if stride != expected:
                return False
            expected = mul(expected, size)
        return True

    def overlapping(self) -> bool:
        """Whether several elements may share one place; an estimate where sizes are symbolic."""
        return overlapping(zip(*self._numbers()))

    def _numbers(self) -> tuple[list[int], list[int]]:
        """Strides and sizes, with symbols at one size at which there are elements, if there is."""
        for typical in (TYPICAL_SIZE, TYPICAL_SIZE >> 4, 8, 2):  # 96 // n is zero at most of them
            counts = [estimate(n, typical) for n in self.shape]
            if all(counts):
                break
        return [estimate(n, typical) for n in self.stride], counts


def overlapping(axes: Iterable[tuple[int, int]]) -> bool:
    """Whether several elements of a tensor may share one place, by stride and size of each axis."""
    reach = 0  # how far the axes of smaller strides go
    for stride, size in sorted(axes):
        if size > 1:
            if stride <= reach:
                return True
            reach += stride * (size - 1)
    return False


def estimate(x: Index, typical: int = TYPICAL_SIZE) -> int:
    """The value of a size expression, with every symbol at a typical size."""
    if type(x) is Const:
        return x.value
    for size in (typical, TYPICAL_SIZE << 12, TYPICAL_SIZE << 24):
        with contextlib.suppress(ZeroDivisionError):  # some divisors are zero at smaller sizes
            return int(evaluate(x, (), dict.fromkeys(symbols(x), size)))
    return TYPICAL_SIZE


def size_index(value: object, place: bool = False) -> Index:
    """An int or ``SymInt`` as an index expression; ``place``: it is a stride or an offset, which
    matter only where there are elements.

    Raises:
        UnrepresentableError: the expression has no index form (``min``, ``max``, ...).
    """
    if type(value) is int:
        return const(value)
    if isinstance(value, torch.SymInt):
        node = value.node
        if isinstance(node, torchsmith_guards.SymNode):
            # A guard may have made a symbol equal to a number since this size was computed; what
            # data decides keeps its name: the check that it is equal compares it with another.
            expr = torchsmith_guards.expr_of(value)
            if torchsmith_guards.hint_of(value) is not None:
                expr = node.shape_env.simplify(expr)
            if not isinstance(expr, torchsmith_guards.Symbol) and _known_one(value):
                return const(1)
            return _from_guards(expr, place)
        inner = getattr(node, "expr", None)
        sympy = sys.modules.get("sympy")  # takes half a second to import, and is torch's alone
        if sympy is not None and isinstance(inner, sympy.Basic):
            ranges = getattr(getattr(node, "shape_env", None), "var_to_range", {})
            return _from_sympy(inner, ranges, place)
        return _from_guards(torchsmith_guards.expr_of(value), place)
    if isinstance(value, int):
        return const(int(value))
    raise UnrepresentableError(f"not an integer size: {value!r}")


def _known_one(value: torch.SymInt) -> bool:
    """Whether a guard says that a size is one, on which broadcasting depends."""
    equal = value == 1
    if not isinstance(equal, torch.SymBool):
        return bool(equal)
    return bool(equal.node.statically_known_true(__file__, 0))


def _from_guards(x: object, place: bool) -> Index:
    args = [_from_guards(part, place) for part in getattr(x, "parts", tuple)()]
    match type(x).__name__:
        case "Const" if isinstance(x.value, int):  # type: ignore[attr-defined]
            return const(int(x.value))  # type: ignore[attr-defined]
        case "Symbol":
            return Sym(x.name, _number(x.lo), _number(x.hi))  # type: ignore[attr-defined]
    return _combined(x, args, place)


def _combined(x: object, args: list[Index], place: bool) -> Index:
    """The expression ``x``, whose parts are ``args``; ours and sympy's are named alike."""
    match type(x).__name__:
        case "Add":
            return add(*args)
        case "Mul":
            return mul(*args)
        case "FloorDiv" | "CleanDiv" | "IntTrueDiv":
            return floordiv(args[0], args[1])
        case "Mod" | "PythonMod":
            return mod(args[0], args[1])
        case "Max" if place:
            return _at_least_one(args)
    raise UnrepresentableError(str(x))


def _at_least_one(args: list[Index]) -> Index:
    """``max(1, n)`` is how torch writes the stride of a contiguous tensor: ``n`` unless empty,
    and then no element is ever addressed."""
    rest = [a for a in args if a != const(1)]
    if len(rest) == 1 and len(args) == 2:
        return rest[0]
    raise UnrepresentableError(f"max of {args}")


def _number(bound: float) -> int | None:
    """A bound as the guards have it: an int, or an infinity."""
    return bound if isinstance(bound, int) else None


def _from_sympy(x: Any, ranges: Mapping[Any, Any], place: bool) -> Index:
    """``ranges`` are the value ranges that torch's own tracer keeps of its symbols."""
    sympy = sys.modules["sympy"]
    if isinstance(x, sympy.Integer):
        return const(int(x))
    if isinstance(x, sympy.Symbol):
        known = ranges.get(x)
        ends = (None, None) if known is None else (known.lower, known.upper)
        low, high = (int(e) if isinstance(e, sympy.Integer) else None for e in ends)
        return Sym(x.name, low, high)
    if isinstance(x, sympy.Pow) and isinstance(x.exp, sympy.Integer) and int(x.exp) > 0:
        return mul(*[_from_sympy(x.base, ranges, place)] * int(x.exp))
    return _combined(x, [_from_sympy(a, ranges, place) for a in x.args], place)


def sizes(values: Iterable[object], place: bool = False) -> tuple[Index, ...]:
    """``size_index`` of each."""
    return tuple(const(v) if type(v) is int else size_index(v, place) for v in values)


def tensor_info(value: torch.Tensor) -> Info:
    """The layout of a (fake) tensor.

    Raises:
        UnrepresentableError: a size has no index form, or the tensor is not strided.
    """
    if value.layout is not torch.strided:
        raise UnrepresentableError(str(value.layout))
    return Info(
        sizes(value.shape),
        sizes(value.stride(), place=True),
        size_index(value.storage_offset(), place=True),
        value.dtype,
        value.device,
    )


def is_tensor(node: object) -> bool:
    """Whether an argument of an fx node is a node with a tensor value."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), torch.Tensor)
