"""Lowerings of pooling over small windows and of patches: each point reads a few others."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.rules.gradients import rows_alone
from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import (
    Coords,
    Reduction,
    argument,
    in_threads,
    lowering,
    register,
)
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError

aten = torch.ops.aten

MOST_TAPS = 16  # points of a window that are read one after the other; aten takes larger ones
MOST_PATCHES = 32  # the same of patches that a pixel is in, which would be stored otherwise


def _pair(value: object, default: int = 0) -> tuple[int, int]:
    given = value if isinstance(value, (list, tuple)) else (value,)
    numbers = [n for n in given if isinstance(n, int)]
    if not numbers or len(numbers) < len(given):
        return default, default
    return numbers[0], numbers[-1]


def _kernel(node: fx.Node, place: int = 1) -> tuple[int, int]:
    return _pair(argument(node, place, "kernel_size"))


def _stride(node: fx.Node, place: int = 1) -> tuple[int, int]:
    """That of a window whose kernel is argument ``place``."""
    given = argument(node, place + 1, "stride")
    return _pair(given) if given else _kernel(node, place)


def _few_taps(node: fx.Node) -> bool:
    high, wide = _kernel(node)
    return 0 < high * wide <= MOST_TAPS


def _within(p: Point, *places: tuple[Index, Index]) -> Value:
    """Whether places lie within their sizes: literally true where they are known to."""
    mask = p.body.literal(True, torch.bool)
    for place, size in places:
        if not ix.in_range(place, size, p.body.sizes):
            number = p.body.index_value(place)
            mask = mask & (number >= 0) & (number < p.body.index_value(size))
    return mask


def _starts(
    windows: Sequence[Index], stride: tuple[int, int], padding: tuple[int, int]
) -> list[Index]:
    """Where windows begin in the image, along each side."""
    return [
        ix.sub(ix.mul(window, ix.const(by)), ix.const(before))
        for window, by, before in zip(windows, stride, padding)
    ]


def _taps(
    p: Point, source: fx.Node, padding: tuple[int, int], dilation: tuple[int, int]
) -> Iterator[tuple[Value, Index, Index, Value]]:
    """Each point of a window: whether it lies within, where, and its value."""
    sizes = p.body.graph.info(source).shape[-2:]
    starts = _starts(p.at[-2:], _stride(p.node), padding)
    for steps in itertools.product(*map(range, _kernel(p.node))):
        y, x = (
            ix.add(start, ix.const(step * by)) for start, step, by in zip(starts, steps, dilation)
        )
        mask, at = _within(p, (y, sizes[0]), (x, sizes[1])), (*p.at[:-2], y, x)
        yield mask, y, x, p.body.masked(mask, lambda at=at: p.at_of(source, at))  # type: ignore[misc]


def _or_zero(
    p: Point, places: Sequence[tuple[Index, Index]], read: Callable[[Coords], Value]
) -> Value:
    """``read`` of the places where all lie within their sizes, and zero where one does not."""
    mask, inside = _within(p, *places), tuple(ix.inside(*each, p.body.sizes) for each in places)
    return mask.where(p.body.masked(mask, lambda: read(inside)), 0)


def _settings(p: Point, first: int) -> list[tuple[int, int]]:
    """Kernel, dilation, padding and stride of patches, from argument ``first`` on."""
    given: list[Any] = [p.node.args[k] for k in range(first, first + 4)]
    if any(type(n) is not int for numbers in given for n in numbers):
        raise UnrepresentableError(f"patches of {given}")
    return list(map(_pair, given))


def _across(size: Index, kernel: int, dilation: int, padding: int, stride: int) -> Index:
    """How many patches begin along one side of an image."""
    span = ix.add(size, ix.const(2 * padding - dilation * (kernel - 1) - 1))
    return ix.add(ix.floordiv(span, ix.const(stride)), ix.ONE)


@lowering(aten.im2col.default, cost=12, moves=True)
def patches(p: Point) -> Value:
    source = p.operand()
    sizes, ranges = p.body.graph.info(source).shape[-2:], p.body.sizes
    kernel, dilation, padding, stride = settings = _settings(p, 1)
    *outer, row, column = p.at
    wide = _across(sizes[1], *(pair[1] for pair in settings))
    taps, across = ix.const(kernel[0] * kernel[1]), ix.const(kernel[1])
    tap = ix.mod(row, taps, ranges)
    firsts = ix.floordiv(column, wide, ranges), ix.mod(column, wide, ranges)
    steps = ix.floordiv(tap, across, ranges), ix.mod(tap, across, ranges)
    places = []
    for d, (first, step) in enumerate(zip(firsts, steps)):
        start = ix.sub(ix.mul(first, ix.const(stride[d])), ix.const(padding[d]))
        places.append(ix.add(start, ix.mul(step, ix.const(dilation[d]))))
    outer.append(ix.floordiv(row, taps, ranges))
    return _or_zero(p, [*zip(places, sizes)], lambda at: p.at_of(source, (*outer, *at)))


@lowering(aten.col2im.default, cost=40, moves=True, window=True)
def folded(p: Point) -> Value:
    """What the patches hold of a pixel, summed in the library's order."""
    source, ranges, settings = p.operand(), p.body.sizes, _settings(p, 2)
    (high, wide), dilations, _, strides = settings
    few = math.prod(-(-n // by) for n, by in zip(settings[0], strides)) <= MOST_PATCHES
    if not few or any(1 not in each for each in zip(dilations, strides)):
        raise UnrepresentableError(f"sums of patches {settings}")
    *outer, channel, _, _ = p.at
    sides: list[list[tuple[tuple[Index, Index], ...]]] = []
    for d in (-2, -1):
        kernel, dilation, padding, stride = side = [pair[d] for pair in settings]
        place, by = ix.add(p.at[d], ix.const(padding)), ix.const(stride)
        last, tap = ix.floordiv(place, by, ranges), ix.mod(place, by, ranges)
        patch = [ix.sub(last, ix.const(n * dilation)) for n in range(-(-kernel // stride))]
        step = [ix.add(tap, ix.const(n * stride)) for n in range(len(patch))]
        sizes = _across(p.shape[d], *side), ix.const(kernel)
        sides.append([tuple(zip(places, sizes)) for places in zip(patch, step)])

    def read(at: Coords) -> Value:
        y, i, x, j = at
        row = ix.add(ix.mul(ix.add(ix.mul(channel, ix.const(high)), i), ix.const(wide)), j)
        return p.at_of(source, (*outer, row, ix.add(ix.mul(y, sides[1][0][0][1]), x)))

    pairs = [*itertools.product(*sides)]
    if in_threads(p.node.meta["val"]):
        pairs.reverse()
    zero = p.body.literal(0, compute_dtype(p.dtype))  # which has no sign then
    return functools.reduce(operator.add, (_or_zero(p, (*y, *x), read) for y, x in pairs), zero)


def _max_pool(p: Point) -> Sequence[Value]:
    """As aten: the first of equals, but the last of several NaN."""
    source = p.operand()
    dtype = p.body.graph.info(source).dtype
    padding = _pair(argument(p.node, 3, "padding", 0))
    dilation = _pair(argument(p.node, 4, "dilation", 1), 1)
    width = p.body.graph.info(source).shape[-1]
    lowest = -torch.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    best: Value | None = None
    where = seen = p.body.literal(True, torch.bool)
    for inside, y, x, value in _taps(p, source, padding, dilation):
        value = inside.where(value.rounded(dtype), lowest)
        place = p.body.index_value(ix.add(ix.mul(y, width), x))
        if best is None:
            best, where, seen = value, place, inside
            continue
        wins = value > best
        if dtype.is_floating_point:
            wins = wins | value.test(Op.ISNAN)
        where = ((wins | seen.negated()) & inside).where(place, where)
        # Not by ``wins``: this is plain vector code where nobody wants the positions.
        best = value.op(Op.MAXIMUM, best)
        seen = seen | inside
    assert best is not None
    return best, where


register(
    aten.max_pool2d_with_indices.default,
    Reduction(
        lambda node: (),
        _max_pool,
        (True, True),
        several=True,
        walks=None,
        window=True,
        applies=_few_taps,
        cost=30,
    ),
)


def _rows_alone(node: fx.Node) -> bool:
    x, weight, _, *settings = node.args
    return rows_alone(x.meta["val"], weight.meta["val"], *settings)  # type: ignore[union-attr]


@lowering(aten.convolution.default, cost=20, applies=_rows_alone, window=True)
def convolution_of_rows(p: Point) -> Value:
    source, weight, bias = p.operand(), p.operand(1), p.arg(2, "bias")
    settings: Any = p.node.args[3:]
    (by,), (before,), (apart,), *_, groups = settings
    size = p.body.graph.info(source).shape[-1]
    *outer, row, x = p.at
    each = ix.const(weight.meta["val"].shape[0] // groups)
    outer.append(ix.floordiv(row, each, p.body.sizes))
    terms = [p.at_of(bias, (row,))] if isinstance(bias, fx.Node) else []
    for tap in range(weight.meta["val"].shape[2]):
        place = ix.add(ix.mul(x, ix.const(by)), ix.const(tap * apart - before))
        factor = p.at_of(weight, (row, ix.ZERO, ix.const(tap)))

        def product(at: Coords, factor: Value = factor) -> Value:
            return p.at_of(source, (*outer, *at)) * factor

        terms.append(_or_zero(p, [(place, size)], product))  # also of an infinite weight
    return functools.reduce(operator.add, terms)


_AVERAGE = (
    "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override"
)  # fmt: skip


def _divisor(
    p: Point, starts: Sequence[Index], sizes: Sequence[Index], dtype: torch.dtype, first: int
) -> Value | int:
    """By what the sum of a window that begins at ``starts`` is divided: the points of the image,
    or of the image and what surrounds it, that it has. The kernel is argument ``first``."""
    given: list[Any] = [argument(p.node, first + k, name) for k, name in enumerate(_AVERAGE)]
    kernel, _, padding, ceils, includes, override = given
    kernel, padding = _pair(kernel), _pair(0 if padding is None else padding)
    if isinstance(override, int):
        return override
    if includes is not False and not ceils:
        return kernel[0] * kernel[1]
    counts = []
    for start, size, length, around in zip(starts, sizes, kernel, padding):
        last = ix.add(size, ix.const(0 if includes is False else around))
        ends = p.body.index_value(ix.add(start, ix.const(length)))
        begins = p.body.index_value(start)
        begins = begins.op(Op.MAXIMUM, 0) if includes is False else begins
        counts.append(ends.op(Op.MINIMUM, p.body.index_value(last)) - begins)
    return (counts[0] * counts[1]).cast(dtype)


def _rows_of_channels(value: torch.Tensor) -> bool:
    """Whether a CPU walks the channels of a pixel: aten's loops over these are vectors, too."""
    row = value.dim() == 4 and type(value.stride(1)) is int and value.stride(1) == 1
    return row and not in_threads(value)


def _averages_few(node: fx.Node) -> bool:
    value, ceils = node.meta["val"], argument(node, 4, "ceil_mode", False)
    alike = value.dtype.is_floating_point and not (ceils and _rows_of_channels(value))
    return _few_taps(node) and alike


@lowering(aten.avg_pool2d.default, cost=20, moves=True, applies=_averages_few, window=True)
def avg_pool(p: Point) -> Value:
    source = p.operand()
    padding = _pair(argument(p.node, 3, "padding", 0))
    taps = _taps(p, source, padding, (1, 1))
    total = functools.reduce(operator.add, (mask.where(value, 0) for mask, _, _, value in taps))
    starts = _starts(p.at[-2:], _stride(p.node), padding)
    return total / _divisor(p, starts, p.body.graph.info(source).shape[-2:], total.dtype, 1)


def _windows_of_a_point(node: fx.Node) -> tuple[int, int]:
    """How many windows a point of the image is in at most, along each side."""
    kernel, stride = _kernel(node, 2), _stride(node, 2)
    return -(-kernel[0] // max(stride[0], 1)), -(-kernel[1] // max(stride[1], 1))


def _in_few_windows(node: fx.Node) -> bool:
    """Where aten adds to the points of a window one by one, on a CPU, it is faster than a loop over
    the points but where neighbours in memory are in windows one element apart, or in one."""
    given: Any = node.args[2:5]
    if any(type(n) is not int for numbers in given for n in numbers):
        return False
    value, count = node.meta["val"], math.prod(_windows_of_a_point(node))
    few = MOST_TAPS
    if not in_threads(value):
        apart = _stride(node, 2) == (1, 1) and not _rows_of_channels(value)
        few = few if apart else 1
    return 0 < count <= few and bool(value.dtype.is_floating_point)


def _sum_over_windows(p: Point, read: Callable[[Index, Index], Value]) -> Value:
    """The sum of what ``read`` gives of each window that has the point, in the order of these."""
    sizes, ranges = p.body.graph.info(p.operand()).shape[-2:], p.body.sizes
    settings = _kernel(p.node, 2), _stride(p.node, 2), _pair(p.node.args[4])
    sides: list[list[tuple[tuple[Index, Index], ...]]] = []
    for d, (count, length, by, around) in enumerate(zip(_windows_of_a_point(p.node), *settings)):
        place = ix.add(p.at[d - 2], ix.const(around))
        last, tap = (f(place, ix.const(by), ranges) for f in (ix.floordiv, ix.mod))
        steps = [(ix.sub(last, ix.const(n)), ix.const(n * by)) for n in reversed(range(count))]
        sides.append([((w, sizes[d]), (ix.add(tap, n), ix.const(length))) for w, n in steps])
    zero = p.body.literal(0, compute_dtype(p.dtype))
    terms = (
        _or_zero(p, (*y, *x), lambda at: read(at[0], at[2])) for y, x in itertools.product(*sides)
    )
    return functools.reduce(operator.add, terms, zero)


@lowering(
    aten.avg_pool2d_backward.default, cost=25, moves=True, applies=_in_few_windows, window=True
)
def avg_pool_gradient(p: Point) -> Value:
    stride, padding = _stride(p.node, 2), _pair(p.node.args[4])

    def read(*window: Index) -> Value:
        value = p.at_of(p.operand(), (*p.at[:-2], *window))
        starts = _starts(window, stride, padding)
        return value / _divisor(p, starts, p.shape[-2:], value.dtype, 2)

    return _sum_over_windows(p, read)


def _greatest_in_threads(node: fx.Node) -> bool:
    few = in_threads(node.meta["val"]) and _in_few_windows(node)
    return few and _pair(node.args[5]) == (1, 1)


@lowering(
    aten.max_pool2d_with_indices_backward.default,
    cost=25,
    moves=True,
    applies=_greatest_in_threads,
    window=True,
)
def max_pool_gradient(p: Point) -> Value:
    """What the windows give whose greatest point this is."""
    here = p.body.index_value(ix.add(ix.mul(p.at[-2], p.shape[-1]), p.at[-1]))

    def read(*window: Index) -> Value:
        at = (*p.at[:-2], *window)
        return p.at_of(p.operand(7), at).eq(here).where(p.at_of(p.operand(), at), 0)

    return _sum_over_windows(p, read)
