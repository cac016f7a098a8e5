"""What the softmax kernels share: lines of elements, and masks over them.

The softmax runs over ``count`` elements of each of ``lines`` lines. A line is a row, whose elements
are adjacent, or with ``COLUMNS`` a column: ``inner`` columns lie side by side, so that its elements
are ``inner`` apart. A program holds a tile of ``LINES`` lines by ``BLOCK`` elements.

What belongs together is passed as a named tuple, either of run-time values or, as ``Variant``, of
constants: Triton makes tensors of constants in tuples that are assigned or returned, unless the
whole tuple is declared to be a ``tl.constexpr``.
"""

from __future__ import annotations

from typing import NamedTuple

import triton.language as tl

from torchsmith_kernels._src.jit import jit

LOG2_E = tl.constexpr(1.4426950408889634)


@jit
def exponential(x: tl.tensor) -> tl.tensor:
    """``exp(x)`` without the care for results below 2**-126, half of the work; they become 0."""
    return tl.exp2(x * LOG2_E)


class Variant(NamedTuple):
    """What kernels are compiled for.

    Attributes:
        LOG: whether results are logarithms.
        COLUMNS: whether lines are columns.
        WIDE: whether offsets within a line take 64 bits.
        LINES: lines per tile.
        BLOCK: elements of each line per tile.
        MASK: whether there is no mask (0), a boolean (1) or an added one (2).
        STEP: whether its values along a line are the same (0), adjacent (1) or elsewhere (2).
        TAIL: whether the last block of a line may be partial.
        STAGES: how far loops load ahead.
    """

    LOG: tl.constexpr
    COLUMNS: tl.constexpr
    WIDE: tl.constexpr
    LINES: tl.constexpr
    BLOCK: tl.constexpr
    MASK: tl.constexpr = 0
    STEP: tl.constexpr = 0
    TAIL: tl.constexpr = False
    STAGES: tl.constexpr = 1


class Lines(NamedTuple):
    """The lines of a program: their numbers, which of them exist, and what they have in common."""

    line: tl.tensor
    exists: tl.tensor
    count: tl.tensor
    inner: tl.tensor


class View(NamedTuple):
    """A tensor as lines: where they start, and how far apart the elements of columns are."""

    pointer: tl.tensor
    base: tl.tensor
    inner: tl.tensor


class Mask(NamedTuple):
    """A mask, where lines start in it, and how far apart its values along a line are."""

    pointer: tl.tensor | None
    start: tl.tensor
    step: tl.tensor


class Part(NamedTuple):
    """Elements ``first`` to ``last`` of the lines that exist."""

    exists: tl.tensor
    first: tl.tensor
    last: tl.tensor


class Tile(NamedTuple):
    """Elements ``n`` of lines, and which of them there are."""

    n: tl.tensor
    inside: tl.tensor


@jit
def own_lines(lines: tl.tensor, count: tl.tensor, inner: tl.tensor, VARIANT: tl.constexpr) -> Lines:
    """The lines of this program."""
    first = tl.program_id(0)
    if VARIANT.WIDE:
        first = first.to(tl.int64)
    line = first * VARIANT.LINES + tl.arange(0, VARIANT.LINES)
    return Lines(line, line < lines, count, inner)


@jit
def part_of(own: Lines, split: tl.tensor, length: tl.tensor) -> Part:
    """Part number ``split`` of the lines; each part has ``length`` elements."""
    first = split * length
    return Part(own.exists, first, tl.minimum(first + length, own.count))


@jit
def view(pointer: tl.tensor, own: Lines, stride: tl.tensor, VARIANT: tl.constexpr) -> View:
    """A tensor whose rows are ``stride`` apart, or with ``COLUMNS`` a contiguous one."""
    if VARIANT.COLUMNS:
        outer = (own.line // own.inner).to(tl.int64)
        base = outer * (own.count.to(tl.int64) * own.inner) + own.line % own.inner
    else:
        base = own.line.to(tl.int64) * stride
    return View(pointer, base, own.inner)


@jit
def mask_start(
    line: tl.tensor,
    size1: tl.tensor,
    size2: tl.tensor,
    stride0: tl.tensor,
    stride1: tl.tensor,
    stride2: tl.tensor,
    VARIANT: tl.constexpr,
) -> tl.tensor:
    """Where the mask's lines start: a line's number is split into three indices."""
    if VARIANT.MASK == 0:
        return line
    else:
        outer = line // size2
        offset = (line % size2).to(tl.int64) * stride2 + (outer % size1).to(tl.int64) * stride1
        return offset + (outer // size1).to(tl.int64) * stride0


@jit
def whole_lines(own: Lines, VARIANT: tl.constexpr) -> Tile:
    """The tile of all elements."""
    n = tl.arange(0, VARIANT.BLOCK)
    inside = own.exists[:, None] & (n < own.count)[None, :]
    if VARIANT.WIDE:
        n = n.to(tl.int64)
    return Tile(n, inside)


@jit
def block_at(start: tl.tensor, part: Part, VARIANT: tl.constexpr) -> Tile:
    """The tile of the elements from ``start`` on."""
    n = start + tl.arange(0, VARIANT.BLOCK)
    return Tile(n, part.exists[:, None] & (n < part.last)[None, :])


@jit
def whole_end(part: Part, VARIANT: tl.constexpr) -> tl.tensor:
    """Where the last whole block ends."""
    length = tl.maximum(part.last - part.first, 0)
    return part.first + length // VARIANT.BLOCK * VARIANT.BLOCK


@jit
def places(tensor: View, tile: Tile, VARIANT: tl.constexpr) -> tl.tensor:
    """Pointers to the elements of a tile."""
    if VARIANT.COLUMNS:
        return tensor.pointer + (tensor.base[:, None] + (tile.n * tensor.inner)[None, :])
    else:
        return tensor.pointer + (tensor.base[:, None] + tile.n[None, :])


@jit
def load(
    pointer: tl.tensor, inside: tl.tensor, CHECKED: tl.constexpr, POLICY: tl.constexpr
) -> tl.tensor:
    """What lies at ``pointer``; zero where a place is ``CHECKED`` and not ``inside``."""
    if CHECKED:
        return tl.load(pointer, inside, other=0, eviction_policy=POLICY)
    else:
        return tl.load(pointer, eviction_policy=POLICY)


@jit
def store(
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
def read(
    tensor: View, tile: Tile, VARIANT: tl.constexpr, CHECKED: tl.constexpr, POLICY: tl.constexpr
) -> tl.tensor:
    """A tile of a tensor."""
    return load(places(tensor, tile, VARIANT), tile.inside, CHECKED, POLICY)


@jit
def read_mask(mask: Mask, tile: Tile, VARIANT: tl.constexpr, CHECKED: tl.constexpr) -> tl.tensor:
    """The mask's values."""
    if VARIANT.STEP == 0:
        place = mask.start[:, None] + (tile.n * 0)[None, :]
    elif VARIANT.STEP == 1:
        place = mask.start[:, None] + tile.n[None, :]
    else:
        place = mask.start[:, None] + (tile.n * mask.step)[None, :]
    return load(mask.pointer + place, tile.inside, CHECKED, "")
