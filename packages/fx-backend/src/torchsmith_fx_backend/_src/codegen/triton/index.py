"""Questions that the Triton printer asks about index expressions, on top of ``loops.index``.

Text for the launcher is plain Python; inside a kernel ``//`` and ``%`` truncate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.ir import IndexValue, Kernel, Load, Store
from torchsmith_fx_backend._src.loops.proof import Extents, settled


def text(index: ix.Index, names: Mapping[str, str]) -> str:
    """A size as text of the launcher, with names for size symbols."""
    return ix.render(index, sym_name=names.__getitem__)


def kernel_text(
    index: ix.Index,
    extents: Extents,
    variables: Mapping[int, str],
    names: Mapping[str, str],
    values: Mapping[int, str] | None = None,
) -> str:
    """``index`` as text of the kernel, with names for iteration variables, size symbols, and the
    SSA values that are positions in it."""
    return ix.render(
        settled(index, extents),
        variables.__getitem__,
        names.__getitem__,
        floored=("ts.floor_divide_int", "ts.modulo_int"),
        value_name=(values or {}).__getitem__,
    )


def step(index: ix.Index, axis: int, values: Mapping[str, int]) -> int | None:
    """How far ``index`` moves per step of ``axis``; None where it is not affine in that axis."""
    stride = ix.coefficient(index, axis)
    if stride is None:
        return None
    try:
        return int(ix.evaluate(stride, (), values))
    except (IndexError, ZeroDivisionError):  # another variable multiplies it; no size fits
        return None


def flatten(
    index: ix.Index, ranges: Sequence[ix.Index], axes: Sequence[int], flat: ix.Var
) -> ix.Index:
    """``index`` over the row-major position within ``axes``, where it walks them as one axis.

    The printer knows that position already; taking it apart and putting it together again would
    hide from Triton that neighbouring lanes read neighbouring elements.
    """
    moving = [axis for axis in axes if ranges[axis] != ix.ONE]
    if len(moving) < 2:
        return index
    stride = ix.coefficient(index, moving[-1])
    if stride is None or stride == ix.ZERO:
        return index
    expected = stride
    for axis in reversed(moving):
        if ix.coefficient(index, axis) != expected:
            return index
        expected = ix.mul(expected, ranges[axis])
    rest = ix.substitute(index, dict.fromkeys(axes, ix.ZERO))
    return ix.add(rest, ix.mul(stride, flat))


def index_expressions(kernel: Kernel) -> Iterator[ix.Index]:
    """Every index expression of a kernel's body, in order."""
    for node in kernel.body:
        if isinstance(node, Load | Store | IndexValue):
            yield node.index


def is_static(kernel: Kernel) -> bool:
    """Whether no extent and no index expression mentions a size symbol."""
    return not any(ix.symbols(index) for index in (*kernel.ranges, *index_expressions(kernel)))


def max_offset_text(kernel: Kernel, names: Mapping[str, str]) -> str:
    """Python text of a bound on every integer that a launch computes as an offset or flat index.

    Signs are ignored, so the bound is a sum of absolute values: exact for the usual non-negative
    strides, merely careful for the rest.
    """
    extents = [f"({text(extent, names)})" for extent in kernel.ranges]

    def bound(node: ix.Index) -> str:
        match node:
            case ix.Const(value):
                return str(abs(value))
            case ix.Sym(name, low):
                return names[name] if low is not None and low >= 0 else f"abs({names[name]})"
            case ix.Var(axis):
                return extents[axis]
            case ix.Loaded(_, extent):
                return bound(extent)
            case ix.Add(terms):
                return f"({' + '.join(bound(term) for term in terms)})"
            case ix.Mul(factors):
                return " * ".join(bound(factor) for factor in factors)
            case ix.FloorDiv(num, den) | ix.Mod(num, den):
                # The numerator is an intermediate result of the same width.
                return f"max({bound(num)}, {bound(den)})"
            case _:
                raise TypeError(f"not an index node: {node!r}")

    bounds = [" * ".join(extents[: kernel.reduce_from]), " * ".join(extents[kernel.reduce_from :])]
    bounds += [bound(settled(index, kernel.ranges)) for index in index_expressions(kernel)]
    return f"max({', '.join(dict.fromkeys(part for part in bounds if part))}, 0)"


def max_offset(kernel: Kernel) -> int | None:
    """That bound as a number for a kernel without size symbols, else None."""
    if not is_static(kernel):
        return None
    # The text is our own arithmetic on literals; evaluating it keeps one definition of the bound.
    return int(eval(max_offset_text(kernel, {}), {"max": max}))
