"""Lowerings of operators that make tensors from nothing, and of those that move elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import Coords, Geometry, lowering
from torchsmith_fx_backend._src.loops.views import scalar, slice_first, wrapped

aten = torch.ops.aten
prims = torch.ops.prims


def _fill(value: int | Callable[[Point], object], *ops: object) -> None:
    @lowering(*ops, creation=True)
    def emit(p: Point) -> Value:
        return p.element(value(p) if callable(value) else value)


_fill(0, aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
_fill(1, aten.ones.default, aten.ones_like.default, aten.new_ones.default)
_fill(lambda p: p.arg(1, "fill_value"), aten.full.default, aten.full_like.default)
_fill(lambda p: p.arg(2, "fill_value"), aten.new_full.default)
_fill(lambda p: p.arg(0), aten.scalar_tensor.default)
_fill(lambda p: p.arg(1, "value"), aten.fill.Scalar)


lowering(
    aten.empty_strided.default,
    creation=True,
    applies=lambda node: all(u.target is aten.copy.default for u in node.users),  # which reads none
)(lambda p: p.element(0))


def _numbers(value: object) -> float | int | None:
    return value if isinstance(value, (int, float)) else None


def _ramp(p: Point, start: object, step: object) -> Value:
    """``start + step * i`` in the node's dtype."""
    (x,) = p.at
    first, stride = _numbers(start), _numbers(step)
    if isinstance(first, float) or isinstance(stride, float) or p.dtype.is_floating_point:
        dtype = torch.float64 if p.dtype is torch.float64 else compute_dtype(p.dtype)
        wide = p.body.index_value(x).cast(dtype)
        return (wide * p.read(step, dtype) + p.read(start, dtype)).cast(compute_dtype(p.dtype))
    place = ix.add(scalar(start), ix.mul(scalar(step), x))
    return p.body.index_value(place).cast(compute_dtype(p.dtype))


def _integral(node: fx.Node) -> bool:
    """Float ramps stay with aten: it steps in double precision and chunks, bit for bit."""
    numbers = [a for a in node.args if not isinstance(a, fx.Node)]
    return all(isinstance(a, int) for a in numbers)


for _target, _emit in (
    (aten.arange.default, lambda p: _ramp(p, 0, 1)),
    (aten.arange.start, lambda p: _ramp(p, p.arg(0), 1)),
    (aten.arange.start_step, lambda p: _ramp(p, p.arg(0), p.arg(2, "step", 1))),
):
    lowering(_target, creation=True, applies=_integral)(_emit)
lowering(prims.iota.default, creation=True)(
    lambda p: _ramp(p, p.node.kwargs["start"], p.node.kwargs["step"])
)


@lowering(aten.eye.default, aten.eye.m, creation=True)
def eye(p: Point) -> Value:
    row, column = (p.body.index_value(x) for x in p.at)
    return row.eq(column).cast(compute_dtype(p.dtype))


# ------------------------------------------------------------------------------- triangles


def _triangle(op: object, test: Op) -> None:
    @lowering(op, cost=2)
    def emit(p: Point) -> Value:
        x = p.read(p.node.args[0], p.dtype)
        row, column = p.at[-2:]
        shift = p.body.index_value(column) - p.body.index_value(row)
        return shift.test(test, p.read(p.arg(1, "diagonal", 0), torch.int64)).where(x, 0)


_triangle(aten.tril.default, Op.LE)
_triangle(aten.triu.default, Op.GE)


# ------------------------------------------------------------------- elements from elsewhere


def _moved(at: Coords, dim: int, x: Index) -> Coords:
    return (*at[:dim], x, *at[dim + 1 :])


def _one_dtype(node: fx.Node) -> bool:
    tensors = [a for a in node.all_input_nodes if isinstance(a.meta.get("val"), torch.Tensor)]
    device = node.meta["val"].device
    return all(t.meta["val"].device == device for t in tensors)


@lowering(aten.cat.default, cost=3, moves=True, applies=_one_dtype)
def cat(p: Point) -> Value:
    pieces = p.arg(0, "tensors")
    assert isinstance(pieces, (list, tuple))
    infos = {a: p.body.graph.info(a) for a in pieces}
    # A one-dimensional empty tensor is allowed beside tensors of any rank, and counts for nothing.
    used = [a for a in pieces if len(infos[a].shape) == len(p.at) and ix.ZERO not in infos[a].shape]
    dim = p.dim(1)
    return _concatenate(p, used, [infos[a].shape[dim] for a in used], dim)


def _concatenate(p: Point, pieces: list[fx.Node], sizes: list[Index], dim: int) -> Value:
    if len(pieces) == 1:
        value = p.at_of(pieces[0], p.at)
        return p.convert(value, p.body.graph.info(pieces[0]).dtype, p.dtype)
    x = p.at[dim]
    place = p.body.index_value(x)
    starts: list[Index] = [ix.ZERO]
    for size in sizes:
        starts.append(ix.add(starts[-1], size))
    below = [place < p.body.index_value(end) for end in starts[1:-1]]
    values: list[Value] = []
    for number, arg in enumerate(pieces):
        mask = below[number] if number < len(below) else below[-1].negated()
        if 0 < number < len(below):
            mask = mask & below[number - 1].negated()
        values.append(_masked(p, mask, arg, _moved(p.at, dim, ix.sub(x, starts[number]))))
    return _first_of(below, values)


def _masked(p: Point, mask: Value, source: fx.Node, at: Coords) -> Value:
    """The element of ``source`` at ``at``, read where the mask is true, in the node's dtype."""
    value = p.body.masked(mask, lambda: p.at_of(source, at))
    return p.convert(value, p.body.graph.info(source).dtype, p.dtype)


def _first_of(tests: Sequence[Value], values: Sequence[Value]) -> Value:
    """The value of the first test that is true; the last value, which has no test, else."""
    result = values[-1]
    for test, value in zip(reversed(tests), reversed(values[:-1]), strict=True):
        result = test.where(value, result)
    return result


def _few_dims(node: fx.Node) -> bool:
    return int(node.meta["val"].dim()) >= 1


@lowering(aten.stack.default, cost=3, moves=True, applies=_one_dtype)
def stack(p: Point) -> Value:
    pieces = p.arg(0, "tensors")
    assert isinstance(pieces, (list, tuple))
    dim = p.dim(1)
    at = (*p.at[:dim], *p.at[dim + 1 :])
    place = p.body.index_value(p.at[dim])
    if len(pieces) == 1:
        return p.convert(p.at_of(pieces[0], at), p.body.graph.info(pieces[0]).dtype, p.dtype)
    tests = [place.eq(number) for number in range(len(pieces))]
    values = [_masked(p, test, arg, at) for test, arg in zip(tests, pieces)]
    return _first_of(tests[:-1], values)


def _pad_push(g: Geometry, at: Coords) -> Coords | None:
    return at if g.base == g.shape and not any(g.arg(1, "pad")) else None


@lowering(aten.constant_pad_nd.default, cost=3, moves=True, push=_pad_push)
def constant_pad(p: Point) -> Value:
    source, pads = p.operand(), p.node.args[1]
    assert isinstance(pads, (list, tuple))
    shape = p.body.graph.info(source).shape
    at = list(p.at)
    tests: list[Value] = []
    for k in range(0, len(pads), 2):
        dim = len(at) - 1 - k // 2
        before, after = scalar(pads[k]), scalar(pads[k + 1])
        at[dim] = ix.sub(at[dim], before)
        place = p.body.index_value(at[dim])
        if before != ix.ZERO:
            tests.append(place >= 0)
        if after != ix.ZERO:
            tests.append(place < p.body.index_value(shape[dim]))
    if not tests:
        return p.at_of(source, tuple(at))
    mask = functools.reduce(operator.and_, tests)
    value = p.body.masked(mask, lambda: p.at_of(source, tuple(at)))
    return mask.where(value, p.element(p.arg(2, "value", 0)))


def _placed(p: Point, mask: Value, at: Coords) -> Value:
    """The second operand's element at ``at`` where the mask is true, else the first's here."""
    base, source = p.operand(), p.operand(1)
    return mask.where(_masked(p, mask, source, at), p.at_of(base, p.at))


@lowering(aten.slice_scatter.default, cost=4, moves=True, applies=_few_dims)
def slice_scatter(p: Point) -> Value:
    dim = p.dim(2)
    size, count = p.shape[dim], p.body.graph.info(p.operand(1)).shape[dim]
    by = p.arg(5, "step", 1)
    first, step = slice_first(p.arg(3, "start"), p.arg(4, "end"), by, size, count), scalar(by)
    offset = ix.sub(p.at[dim], first)
    place = p.body.index_value(offset)
    mask = (place >= 0) & (place < p.body.index_value(ix.mul(count, step)))
    if step != ix.ONE:
        mask = mask & place.op(Op.MOD, p.body.index_value(step)).eq(0)
    return _placed(p, mask, _moved(p.at, dim, ix.floordiv(offset, step)))


@lowering(aten.select_scatter.default, cost=4, moves=True, applies=_few_dims)
def select_scatter(p: Point) -> Value:
    dim = p.dim(2)
    index = wrapped(p.arg(3, "index"), p.shape[dim])
    mask = p.body.index_value(p.at[dim]).eq(p.body.index_value(index))
    return _placed(p, mask, (*p.at[:dim], *p.at[dim + 1 :]))


def _flipped(g: Geometry, at: Coords) -> Coords:
    out = list(at)
    for dim in g.arg(1, "dims") if at else ():  # a number is turned onto itself
        d = int(dim) % len(out)
        out[d] = ix.sub(ix.sub(g.shape[d], ix.ONE), out[d])
    return tuple(out)


def _same_shape(p: Point) -> Geometry:
    return Geometry(p.node, p.shape, p.shape, p.body.sizes)


lowering(aten.flip.default, moves=True, push=_flipped)(
    lambda p: p.at_of(p.operand(), _flipped(_same_shape(p), p.at))
)


def _rolled(g: Geometry, at: Coords, forward: bool) -> Coords:
    out = list(at)
    for shift, dim in zip(g.arg(1, "shifts"), g.arg(2, "dims"), strict=True):
        d = int(dim) % len(out)
        size, by = g.shape[d], scalar(shift)
        if type(size) is ix.Const and type(by) is ix.Const:
            by = ix.const(by.value % size.value)
        # Both ways the number stays non-negative before the remainder is taken.
        out[d] = ix.mod(ix.add(out[d], by if forward else ix.sub(size, by)), size, g.axes)
    return tuple(out)


@lowering(
    aten.roll.default,
    moves=True,
    applies=lambda n: len(n.args) > 2 and bool(n.args[2]),
    push=lambda g, at: _rolled(g, at, True),
)
def roll(p: Point) -> Value:
    return p.at_of(p.operand(), _rolled(_same_shape(p), p.at, False))


@lowering(aten.repeat.default, moves=True)
def repeat(p: Point) -> Value:
    source = p.operand()
    shape = p.body.graph.info(source).shape
    tail = p.at[len(p.at) - len(shape) :]
    at = tuple(ix.mod(x, size, p.body.sizes) for x, size in zip(tail, shape))
    return p.at_of(source, at)
