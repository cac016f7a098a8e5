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


def _kernel(node: fx.Node) -> tuple[int, int]:
    return _pair(argument(node, 1, "kernel_size"))


def _stride(node: fx.Node) -> tuple[int, int]:
    given = argument(node, 2, "stride")
    return _pair(given) if given else _kernel(node)


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


def _taps(
    p: Point, source: fx.Node, padding: tuple[int, int], dilation: tuple[int, int]
) -> Iterator[tuple[Value, Index, Index, Value]]:
    """Each point of a window: whether it lies within, where, and its value."""
    sizes = p.body.graph.info(source).shape[-2:]
    stride, kernel = _stride(p.node), _kernel(p.node)
    starts = [
        ix.sub(ix.mul(x, ix.const(by)), ix.const(before))
        for x, by, before in zip(p.at[-2:], stride, padding)
    ]
    for steps in itertools.product(*map(range, kernel)):
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
    if p.node.meta["val"].device.type != "cpu":
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
        value = _or_zero(p, [(place, size)], lambda at: p.at_of(source, (*outer, *at)))
        terms.append(value * p.at_of(weight, (row, ix.ZERO, ix.const(tap))))
    return functools.reduce(operator.add, terms)


def _plain_average(node: fx.Node) -> bool:
    floating = bool(node.meta["val"].dtype.is_floating_point)
    return _few_taps(node) and floating and not argument(node, 4, "ceil_mode", False)


@lowering(aten.avg_pool2d.default, cost=20, moves=True, applies=_plain_average, window=True)
def avg_pool(p: Point) -> Value:
    source = p.operand()
    padding = _pair(argument(p.node, 3, "padding", 0))
    high, wide = _kernel(p.node)
    divisor = argument(p.node, 6, "divisor_override")
    taps = [*_taps(p, source, padding, (1, 1))]
    total = functools.reduce(operator.add, (mask.where(value, 0) for mask, _, _, value in taps))
    if isinstance(divisor, int):
        return total / divisor
    if argument(p.node, 5, "count_include_pad", True):
        return total / (high * wide)
    return total / functools.reduce(operator.add, (mask.cast(total.dtype) for mask, *_ in taps))
