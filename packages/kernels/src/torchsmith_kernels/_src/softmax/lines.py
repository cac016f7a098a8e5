"""What the softmax kernels share: lines of elements, and masks over them.

The softmax runs over ``count`` elements of each of ``lines`` lines. A line is a row, whose elements
are adjacent, or with ``COLUMNS`` a column: ``inner`` columns lie side by side, so that its elements
are ``inner`` apart. A program holds a tile of ``LINES`` lines by ``BLOCK`` elements.
"""

from __future__ import annotations

import triton.language as tl

from torchsmith_kernels._src.jit import jit

LOG2_E = tl.constexpr(1.4426950408889634)


@jit
def exponential(x: tl.tensor) -> tl.tensor:
    """``exp(x)`` without the care for results below 2**-126, half of the work; they become 0."""
    return tl.exp2(x * LOG2_E)


@jit
def own_lines(lines: tl.tensor, LINES: tl.constexpr, WIDE: tl.constexpr) -> tl.tensor:
    """The lines of this program, and which of them exist."""
    first = tl.program_id(0)
    if WIDE:
        first = first.to(tl.int64)
    line = first * LINES + tl.arange(0, LINES)
    return line, line < lines


@jit
def line_base(
    line: tl.tensor,
    count: tl.tensor,
    inner: tl.tensor,
    stride: tl.tensor,
    COLUMNS: tl.constexpr,
) -> tl.tensor:
    """Where lines start; rows are ``stride`` apart, columns lie in a contiguous tensor."""
    if COLUMNS:
        return (line // inner).to(tl.int64) * (count.to(tl.int64) * inner) + line % inner
    else:
        return line.to(tl.int64) * stride


@jit
def position(base: tl.tensor, n: tl.tensor, inner: tl.tensor, COLUMNS: tl.constexpr) -> tl.tensor:
    """Offsets of elements ``n`` of lines that start at ``base``."""
    if COLUMNS:
        return base[:, None] + (n * inner)[None, :]
    else:
        return base[:, None] + n[None, :]


@jit
def read(
    pointer: tl.tensor, inside: tl.tensor, CHECKED: tl.constexpr, POLICY: tl.constexpr
) -> tl.tensor:
    """What lies at ``pointer``; zero where a place is ``CHECKED`` and not ``inside``."""
    if CHECKED:
        return tl.load(pointer, inside, other=0, eviction_policy=POLICY)
    else:
        return tl.load(pointer, eviction_policy=POLICY)


@jit
def write(
    pointer: tl.tensor,
    value: tl.tensor,
    inside: tl.tensor,
    CHECKED: tl.constexpr,
    POLICY: tl.constexpr,
) -> None:
    """Stores ``value`` in the type of ``pointer``."""
    value = value.to(pointer.dtype.element_ty)
    if CHECKED:
        tl.store(pointer, value, inside, eviction_policy=POLICY)
    else:
        tl.store(pointer, value, eviction_policy=POLICY)


@jit
def mask_base(
    line: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    MASK: tl.constexpr,
) -> tl.tensor:
    """Where the mask's lines start: a line's number is split into three indices."""
    if MASK == 0:
        return line
    else:
        outer = line // size2
        offset = (line % size2).to(tl.int64) * stride2 + (outer % size1).to(tl.int64) * stride1
        return offset + (outer // size1).to(tl.int64) * stride0


@jit
def masked(
    mask: tl.tensor,
    start: tl.tensor,
    step: tl.tensor,
    n: tl.tensor,
    inside: tl.tensor,
    STEP: tl.constexpr,
    CHECKED: tl.constexpr,
) -> tl.tensor:
    """The mask's values; along a line they are the same (0), adjacent (1) or elsewhere (2)."""
    if STEP == 0:
        place = start[:, None] + (n * 0)[None, :]
    elif STEP == 1:
        place = start[:, None] + n[None, :]
    else:
        place = start[:, None] + (n * step)[None, :]
    return read(mask + place, inside, CHECKED, "")
