"""Lowerings of pooling over small windows and of patches: each point reads a few others."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import (
    Reduction,
    argument,
    lowering,
    register,
)

aten = torch.ops.aten

MOST_TAPS = 16  # points of a window that are read one after the other; aten takes larger ones


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


def _within(p: Point, *places: tuple[Index, Index]) -> list[Value]:
    """What tells whether places lie within their sizes; nothing where they are known to."""
    tests: list[Value] = []
    for place, size in places:
        if not ix.in_range(place, size, p.body.sizes):
            number = p.body.index_value(place)
            tests += [number >= 0, number < p.body.index_value(size)]
    return tests


def _taps(
    p: Point, source: fx.Node, padding: tuple[int, int], dilation: tuple[int, int]
) -> Iterator[tuple[Value | None, Index, Index, Callable[[], Value]]]:
    """Each point of a window: whether it lies within (None: always), where, and its value."""
    sizes = p.body.graph.info(source).shape[-2:]
    stride, kernel = _stride(p.node), _kernel(p.node)
    starts = [
        ix.sub(ix.mul(x, ix.const(by)), ix.const(before))
        for x, by, before in zip(p.at[-2:], stride, padding)
    ]
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            y, x = (
                ix.add(start, ix.const(step * by))
                for start, step, by in zip(starts, (i, j), dilation)
            )
            tests = _within(p, (y, sizes[0]), (x, sizes[1]))
            mask = functools.reduce(operator.and_, tests) if tests else None
            at = (*p.at[:-2], y, x)
            yield mask, y, x, lambda at=at: p.at_of(source, at)  # type: ignore[misc]


def _or_zero(p: Point, tests: Sequence[Value], read: Callable[[], Value]) -> Value:
    """``read()`` where all tests are true, and zero elsewhere."""
    if not tests:
        return read()
    mask = functools.reduce(operator.and_, tests)
    return mask.where(p.body.masked(mask, read), 0)


def _known_patches(node: fx.Node) -> bool:
    """Whether the image has known sizes, and the patches have."""
    image = argument(node, 0, "self").meta["val"]
    numbers = (*image.shape[-2:], *(n for k in range(1, 5) for n in node.args[k]))  # type: ignore[union-attr]
    return all(type(n) is int for n in numbers)


@lowering(aten.im2col.default, cost=12, moves=True, applies=_known_patches)
def patches(p: Point) -> Value:
    source = p.operand()
    sizes, ranges = p.body.graph.info(source).shape[-2:], p.body.sizes
    kernel, dilation, padding, stride = (_pair(p.node.args[k]) for k in range(1, 5))
    *outer, row, column = p.at
    image = argument(p.node, 0, "self").meta["val"]
    span = image.shape[-1] + 2 * padding[1] - dilation[1] * (kernel[1] - 1) - 1
    wide = ix.const(span // stride[1] + 1)
    taps, across = ix.const(kernel[0] * kernel[1]), ix.const(kernel[1])
    tap = ix.mod(row, taps, ranges)
    firsts = ix.floordiv(column, wide, ranges), ix.mod(column, wide, ranges)
    steps = ix.floordiv(tap, across, ranges), ix.mod(tap, across, ranges)
    places = []
    for d, (first, step) in enumerate(zip(firsts, steps)):
        start = ix.sub(ix.mul(first, ix.const(stride[d])), ix.const(padding[d]))
        places.append(ix.add(start, ix.mul(step, ix.const(dilation[d]))))
    at = (*outer, ix.floordiv(row, taps, ranges), *places)
    return _or_zero(p, _within(p, *zip(places, sizes)), lambda: p.at_of(source, at))


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
    for mask, y, x, read in _taps(p, source, padding, dilation):
        value = (read() if mask is None else p.body.masked(mask, read)).rounded(dtype)
        inside = p.body.literal(True, torch.bool) if mask is None else mask
        value = inside.where(value, lowest)
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


MOST_OF_ROW = 8  # taps of a convolution over rows


def _each_channel_alone(node: fx.Node) -> bool:
    """Whether a convolution walks each row with few weights of its own, and no matrix product."""
    x, weight = (argument(node, k, "").meta["val"] for k in range(2))
    transposed, groups = argument(node, 6, "transposed"), argument(node, 8, "groups")
    numbers = [n for k in (3, 4, 5) for n in argument(node, k, "")]
    return (
        x.dim() == weight.dim() == 3
        and not transposed
        and weight.shape[:2] == (groups, 1)
        and type(weight.shape[2]) is int
        and weight.shape[2] <= MOST_OF_ROW
        and x.dtype.is_floating_point
        and x.dtype == weight.dtype
        and all(type(n) is int for n in numbers)
    )


@lowering(aten.convolution.default, cost=20, applies=_each_channel_alone, window=True)
def convolution_of_rows(p: Point) -> Value:
    source, weight, bias = p.operand(), p.operand(1), p.arg(2, "bias")
    (by,), (before,), (apart,) = (argument(p.node, k, "") for k in (3, 4, 5))
    size = p.body.graph.info(source).shape[-1]
    *row, x = p.at
    total = p.at_of(bias, (row[-1],)) if isinstance(bias, fx.Node) else None
    for tap in range(weight.meta["val"].shape[2]):
        place = ix.add(ix.mul(x, ix.const(by)), ix.const(tap * apart - before))
        read = functools.partial(p.at_of, source, (*row, place))
        value = _or_zero(p, _within(p, (place, size)), read)
        product = value * p.at_of(weight, (row[-1], ix.ZERO, ix.const(tap)))
        total = product if total is None else total + product
    assert total is not None
    return total


def _plain_average(node: fx.Node) -> bool:
    floating = bool(node.meta["val"].dtype.is_floating_point)
    return _few_taps(node) and floating and not argument(node, 4, "ceil_mode", False)


@lowering(aten.avg_pool2d.default, cost=20, moves=True, applies=_plain_average, window=True)
def avg_pool(p: Point) -> Value:
    source = p.operand()
    padding = _pair(argument(p.node, 3, "padding", 0))
    high, wide = _kernel(p.node)
    divisor = argument(p.node, 6, "divisor_override")
    total: Value | None = None
    count: Value | None = None
    for mask, _, _, read in _taps(p, source, padding, (1, 1)):
        value = read() if mask is None else p.body.masked(mask, read)
        number = p.body.literal(1, value.dtype) if mask is None else mask.cast(value.dtype)
        if mask is not None:
            value = mask.where(value, 0)
        total = value if total is None else total + value
        count = number if count is None else count + number
    assert total is not None and count is not None
    if isinstance(divisor, int):
        return total / divisor
    if argument(p.node, 5, "count_include_pad", True):
        return total / (high * wide)
    return total / count
