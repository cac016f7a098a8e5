"""Views as maps between index spaces; no view ever becomes work of its own inside a kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.index import Const, Index, Ranges
from torchsmith_fx_backend._src.loops.proof import at_least
from torchsmith_fx_backend._src.loops.registry import Coords, Geometry, View, argument, register
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError, size_index

aten = torch.ops.aten


def reshape(at: Coords, source: Coords, target: Coords, axes: Ranges) -> Coords:
    """Coordinates of ``source`` shape as coordinates of ``target`` shape, same row-major order.

    Dimensions are matched in the smallest groups of equal product, so that a reshape that only
    splits or merges neighbours brings no division across the others.
    """
    if ix.ZERO in (*source, *target):
        return (ix.ZERO,) * len(target)  # there is no element to find
    src = [(size, x) for size, x in zip(source, at) if size != ix.ONE]
    dst = [(i, size) for i, size in enumerate(target) if size != ix.ONE]
    out: list[Index] = [ix.ZERO] * len(target)
    i = j = 0
    while i < len(src) and j < len(dst):
        if src[i][0] == dst[j][1]:
            out[dst[j][0]] = src[i][1]
            i, j = i + 1, j + 1
            continue
        a, b = i + 1, j + 1
        left, right = src[i][0], dst[j][1]
        while left != right and (a < len(src) or b < len(dst)):
            if b >= len(dst) or (a < len(src) and _take_left(left, right)):
                left = ix.mul(left, src[a][0])
                a += 1
            else:
                right = ix.mul(right, dst[b][1])
                b += 1
        _regroup(src[i:a], dst[j:b], out, axes)
        i, j = a, b
    return tuple(out)


def _take_left(left: Index, right: Index) -> bool:
    """Whether the left product is the smaller one (a guess when sizes are symbolic)."""
    if type(left) is Const and type(right) is Const:
        return left.value < right.value
    quotient = ix.floordiv(left, right)
    return type(quotient) is ix.FloorDiv


def _regroup(
    src: Sequence[tuple[Index, Index]],
    dst: Sequence[tuple[int, Index]],
    out: list[Index],
    axes: Ranges,
) -> None:
    flat: Index = ix.ZERO
    for size, x in src:
        flat = ix.add(ix.mul(flat, size), x)
    inner: Index = ix.ONE
    for place, (position, size) in enumerate(reversed(dst)):
        x = ix.floordiv(flat, inner, axes)
        out[position] = x if place == len(dst) - 1 else ix.mod(x, size, axes)
        inner = ix.mul(inner, size)


# ------------------------------------------------------------------------------- kinds of views


def _view(pull: object, push: object, *ops: object) -> None:
    for op in ops:
        register(op, View(pull, push))  # type: ignore[arg-type]


def _same(g: Geometry, at: Coords) -> Coords:
    return at


def _never(g: Geometry, at: Coords) -> Coords | None:
    return at if g.base == g.shape else None


def _none(g: Geometry, at: Coords) -> Coords | None:
    return None


_view(_same, _same, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
_view(_same, _same, aten.lift.default, aten.lift_fresh.default, aten.positive.default)
_view(
    lambda g, at: reshape(at, g.shape, g.base, g.axes),
    lambda g, at: reshape(at, g.base, g.shape, g.axes),
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_alias.default,
    aten.flatten.using_ints,
    aten.unflatten.int,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
)


def _order(g: Geometry) -> list[int]:
    """For a permutation: the base dimension behind each dimension of the view."""
    rank = len(g.base)
    order = list(range(rank))
    match g.node.target:
        case aten.permute.default:
            return [int(d) % rank for d in g.arg(1, "dims")]
        case aten.t.default:
            return order[::-1]
        case _:
            a, b = g.dim(1, "dim0"), g.dim(2, "dim1")
            if rank:
                order[a], order[b] = order[b], order[a]
            return order


def _permute_pull(g: Geometry, at: Coords) -> Coords:
    out: list[Index] = [ix.ZERO] * len(at)
    for place, source in enumerate(_order(g)):
        out[source] = at[place]
    return tuple(out)


_view(
    _permute_pull,
    lambda g, at: tuple(at[d] for d in _order(g)),
    aten.permute.default,
    aten.transpose.int,
    aten.t.default,
)


def _expand_pull(g: Geometry, at: Coords) -> Coords:
    skip = len(at) - len(g.base)
    return tuple(
        ix.ZERO if size == ix.ONE else x for size, x in zip(g.base, at[skip:], strict=True)
    )


def _expand_push(g: Geometry, at: Coords) -> Coords | None:
    skip = len(g.shape) - len(g.base)
    if any(size != ix.ONE for size in g.shape[:skip]) or g.shape[skip:] != g.base:
        return None
    return (ix.ZERO,) * skip + at


_view(_expand_pull, _expand_push, aten.expand.default, aten.broadcast_to.default)


def slice_first(start: object, end: object, step: object, size: Index, count: Index) -> Index:
    """The non-negative start of a slice that takes ``count`` of ``size`` elements.

    Raises:
        UnrepresentableError: the sign of ``start`` decides, and it is not known.
    """
    index = ix.ZERO if start is None else scalar(start)
    low, high = ix.bounds(index)
    if low is not None and low >= 0:
        return index
    if high is not None and high < 0:
        wrapped = ix.add(index, size)
        if at_least(wrapped, 0):
            return wrapped
        if at_least(ix.mul(ix.const(-1), wrapped), 0):
            return ix.ZERO
    open_end = end is None or (type(end) is int and end >= _NO_END)
    if step == 1 and open_end:
        return ix.sub(size, count)
    raise UnrepresentableError(f"a slice from {index} of {size}")


_NO_END = (1 << 63) - 1


def wrapped(value: object, size: Index) -> Index:
    """A position as a non-negative index.

    Raises:
        UnrepresentableError: its sign is not known.
    """
    index = scalar(value)
    low, high = ix.bounds(index)
    if low is not None and low >= 0:
        return index
    if high is not None and high < 0:
        return ix.add(index, size)
    raise UnrepresentableError(f"position {index} of {size}")


def scalar(value: object) -> Index:
    """An int, ``SymInt`` or node that holds one, as an index."""
    return size_index(value.meta["val"] if isinstance(value, fx.Node) else value)


def _slice_pull(g: Geometry, at: Coords) -> Coords:
    dim, step = g.dim(1), g.arg(4, "step", 1)
    first = slice_first(g.arg(2, "start"), g.arg(3, "end"), step, g.base[dim], g.shape[dim])
    x = ix.add(first, ix.mul(scalar(step), at[dim]))
    return (*at[:dim], x, *at[dim + 1 :])


_view(_slice_pull, _never, aten.slice.Tensor)


def _select_pull(g: Geometry, at: Coords) -> Coords:
    dim = g.dim(1)
    x = wrapped(g.arg(2, "index"), g.base[dim])
    return (*at[:dim], x, *at[dim:])


def _select_push(g: Geometry, at: Coords) -> Coords | None:
    dim = g.dim(1)
    return (*at[:dim], *at[dim + 1 :]) if g.base[dim] == ix.ONE else None


_view(_select_pull, _select_push, aten.select.int)


def _diagonal_pull(g: Geometry, at: Coords) -> Coords:
    offset = int(g.arg(1, "offset", 0))
    first, second = g.dim(2, "dim1", 0), g.dim(3, "dim2", 1)
    along = at[-1]
    rest = iter(at[:-1])
    out = [ix.ZERO if d in (first, second) else next(rest) for d in range(len(g.base))]
    out[first] = ix.add(along, ix.const(max(-offset, 0)))
    out[second] = ix.add(along, ix.const(max(offset, 0)))
    return tuple(out)


_view(_diagonal_pull, _none, aten.diagonal.default)


def _unfold_pull(g: Geometry, at: Coords) -> Coords:
    if not g.base:
        return ()
    dim, step = g.dim(1, "dimension"), scalar(g.arg(3, "step"))
    x = ix.add(ix.mul(step, at[dim]), at[-1])
    return (*at[:dim], x, *at[dim + 1 : -1])


_view(_unfold_pull, _none, aten.unfold.default)


# ------------------------------------------------- one piece of a split, as getitem takes it out


def split_pull(g: Geometry, at: Coords) -> Coords:
    """Coordinates in the split tensor for ``getitem(split, k)``; ``g.node`` is the getitem."""
    parent, number = g.node.args
    assert isinstance(parent, fx.Node) and isinstance(number, int)
    unbound = parent.target is aten.unbind.int
    dim = int(argument(parent, 1 if unbound else 2, "dim", 0)) % len(g.base)
    if unbound:
        return (*at[:dim], ix.const(number), *at[dim:])
    start: Index = ix.ZERO
    pieces = parent.meta["val"]
    for piece in pieces[: number % len(pieces)]:
        start = ix.add(start, size_index(piece.shape[dim]))
    return (*at[:dim], ix.add(at[dim], start), *at[dim + 1 :])


SPLITS = frozenset(
    {
        aten.split.Tensor,
        aten.split_with_sizes.default,
        aten.unbind.int,
        aten.chunk.default,
        aten.unsafe_split.Tensor,
        aten.unsafe_split_with_sizes.default,
        aten.unsafe_chunk.default,
        aten.tensor_split.sections,
        aten.split.sizes,
    }
)
PIECE = View(split_pull, lambda g, at: None)
