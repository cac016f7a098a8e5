"""Lowerings of resampling: each point is a sum of points around a place in another image.

Along an axis a place is known from its number (``upsample_*``), or another tensor says it
(``grid_sampler_2d``). Weights of points are products of weights along the axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.index import Const, Index
from torchsmith_fx_backend._src.loops.ir import Op
from torchsmith_fx_backend._src.loops.registry import argument, in_threads, lowering
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError

aten = torch.ops.aten

_SCALES = ("scales_d", "scales_h", "scales_w")
# Along one axis, points and their weights.
_Taps = Sequence[tuple[Index, Value]]


def _scale(given: object, size: Index, out: Index) -> float | None:
    """Source points per result point, as aten computes it; None where sizes are symbolic."""
    if isinstance(given, (int, float)) and given > 0:
        return 1.0 / given
    if type(size) is Const and type(out) is Const:
        return size.value / out.value
    return None


def _axes(p: Point, rank: int, first: int) -> list[tuple[Index, Index, Index, object]]:
    """For each axis that is resampled: the point, sizes before and after, and the scale that is
    given by the arguments from ``first`` on."""
    sizes = p.body.graph.info(p.operand()).shape[-rank:]
    names = ("scales",) if rank == 1 else _SCALES[-rank:]
    scales = [p.arg(first + n, name) for n, name in enumerate(names)]
    return list(zip(p.at[-rank:], sizes, p.shape[-rank:], scales))


def _sum(p: Point, source: fx.Node, outer: Sequence[Index], taps: Sequence[_Taps]) -> Value:
    """The weighted points of ``source``, the last axis first."""
    if not taps:
        return p.at_of(source, tuple(outer))
    terms = [weight * _sum(p, source, (*outer, at), taps[1:]) for at, weight in taps[0]]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


# --------------------------------------------------------------------------- nearest


def _nearest(
    p: Point, x: Index, size: Index, out: Index, given: object, shift: float, plane: bool
) -> Index:
    scale = _scale(given, size, out)
    if plane and not shift:  # whatever the scale is
        scale = 1.0 if size == out else 0.5 if out == ix.mul(ix.const(2), size) else scale
    if not shift and scale in (1.0, 0.5):
        return x if scale == 1.0 else ix.floordiv(x, ix.const(2), p.body.sizes)
    if scale is None or type(size) is not Const or type(out) is not Const:
        raise UnrepresentableError(f"nearest of {size} for {out}")
    places = torch.floor((torch.arange(out.value, dtype=torch.float32) + shift) * scale).long()
    places = places.clamp(max=size.value - 1)
    times = out.value // size.value
    if out.value % size.value == 0 and torch.equal(places, torch.arange(out.value) // times):
        return ix.floordiv(x, ix.const(times), p.body.sizes)
    place = (p.body.index_value(x).cast(torch.float32) + shift) * scale
    return p.body.position(place.op(Op.FLOOR), size)


def _copies(node: fx.Node) -> bool:
    """Whether this is a copy of points; on a CPU aten is faster where places are no quotients, but
    for planes by the usual operator."""
    value, before = node.meta["val"], argument(node, 0, "self").meta["val"]
    if not (value.dtype.is_floating_point or value.dtype is torch.uint8):
        return False
    if node.target is aten.upsample_nearest2d.default or in_threads(value):
        return True
    sizes = zip(value.shape[2:], before.shape[2:])
    return all(type(n) is type(m) is int and m and n % m == 0 for n, m in sizes)


def _nearest_of(rank: int, shift: float) -> Callable[[Point], Value]:
    def lower(p: Point) -> Value:
        places = (_nearest(p, *axis, shift, rank == 2) for axis in _axes(p, rank, 2))
        return p.at_of(p.operand(), (*p.at[:-rank], *places))

    return lower


for _rank in (1, 2, 3):
    for _name, _shift in (("upsample_nearest", 0.0), ("_upsample_nearest_exact", 0.5)):
        _op = getattr(aten, f"{_name}{_rank}d").default
        lowering(_op, cost=4, moves=True, window=True, applies=_copies)(_nearest_of(_rank, _shift))


# --------------------------------------------------------------------------- lines and cubics


def _place(
    p: Point, x: Index, size: Index, out: Index, given: object, corners: bool, dtype: torch.dtype
) -> Value:
    """Where a result point lies between source points; may be below zero."""
    if type(size) is not Const or type(out) is not Const:
        raise UnrepresentableError(f"points of {size} between those of {out}")
    number = p.body.index_value(x).cast(dtype)
    if corners:
        return number * ((size.value - 1) / (out.value - 1) if out.value > 1 else 0.0)
    scale = _scale(given, size, out) or 0.0
    if size == out and p.node.meta["val"].device.type == "cpu":
        scale = 1.0  # its kernel copies, whatever the scale is
    return (number + 0.5) * scale - 0.5


def _between(p: Point, place: Value, size: Index) -> _Taps:
    """The two source points around a place, with their weights."""
    place = place.op(Op.MAXIMUM, 0.0)
    whole = place.op(Op.FLOOR)
    weight = (place - whole).op(Op.MINIMUM, 1.0)
    return [
        (p.body.position(whole, size), 1.0 - weight),
        (p.body.position(whole + 1.0, size), weight),
    ]


def _cubic(p: Point, place: Value, size: Index) -> _Taps:
    """The four source points around a place, as a cubic weighs them that bends by -0.75."""
    assert type(size) is Const
    whole = place.op(Op.FLOOR)
    t = place - whole
    bend = -0.75

    def near(x: Value) -> Value:
        return ((bend + 2) * x - (bend + 3)) * x * x + 1.0

    def far(x: Value) -> Value:
        return ((bend * x - 5 * bend) * x + 8 * bend) * x - 4 * bend

    weights = (far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t))
    last = float(size.value - 1)
    points = ((whole + float(n)).op(Op.MAXIMUM, 0.0).op(Op.MINIMUM, last) for n in range(-1, 3))
    return [(p.body.position(at, size), weight) for at, weight in zip(points, weights)]


def _walks_channels(node: fx.Node) -> bool:
    """Whether neighbours in memory share their source points, or run in threads of their own.

    On a CPU the loop would compute positions along each row of a plane again; aten does not, and
    is faster for volumes (0.7 was measured).
    """
    value = node.meta["val"]
    row = value.dim() < 5 and type(value.stride(1)) is int and value.stride(1) == 1
    return bool(value.dtype.is_floating_point) and (in_threads(value) or row)


def _smooth(rank: int, taps_of: Callable[[Point, Value, Index], _Taps]) -> Callable[[Point], Value]:
    def lower(p: Point) -> Value:
        corners, dtype = bool(p.arg(2, "align_corners", False)), compute_dtype(p.dtype)
        taps = [taps_of(p, _place(p, *axis, corners, dtype), axis[1]) for axis in _axes(p, rank, 3)]
        return _sum(p, p.operand(), p.at[:-rank], taps)

    return lower


for _op, _rank, _taps, _cost in (
    (aten.upsample_linear1d.default, 1, _between, 10),
    (aten.upsample_bilinear2d.default, 2, _between, 20),
    (aten.upsample_trilinear3d.default, 3, _between, 40),
    (aten.upsample_bicubic2d.default, 2, _cubic, 100),
):
    lowering(_op, cost=_cost, moves=True, applies=_walks_channels, window=True)(
        _smooth(_rank, _taps)
    )


# --------------------------------------------------------------------------- places in a tensor

_BILINEAR, _NEAREST = range(2)
_ZEROS, _BORDER = range(2)


def _sampled(node: fx.Node) -> bool:
    """Whether threads run for each point, and outside there are zeros or the border."""
    image, grid = (argument(node, n, name).meta["val"] for n, name in enumerate(("input", "grid")))
    alike = image.dtype is grid.dtype and image.dtype.is_floating_point
    known = all(type(n) is int for n in image.shape[-2:])
    kind, outside = argument(node, 2, "interpolation_mode"), argument(node, 3, "padding_mode")
    shown = kind in (_BILINEAR, _NEAREST) and outside in (_ZEROS, _BORDER)
    return alike and known and shown and in_threads(image)


@lowering(aten.grid_sampler_2d.default, cost=60, moves=True, applies=_sampled, window=True)
def grid_sample(p: Point) -> Value:
    image, grid = p.operand(), p.operand(1)
    batch, channel, row, column = p.at
    corners, border = bool(p.arg(4, "align_corners")), p.arg(3, "padding_mode") == _BORDER
    axes: list[tuple[Value, Index, float]] = []
    for axis, size in zip((1, 0), p.body.graph.info(image).shape[-2:]):
        assert type(size) is Const
        last, n = float(size.value - 1), size.value
        at = p.at_of(grid, (batch, row, column, ix.const(axis)))
        place = (at + 1.0) * (last / 2) if corners else ((at + 1.0) * float(n) - 1.0) / 2.0
        if border:  # NaN is there as zero
            place = (place >= 0.0).where(place, 0.0).op(Op.MINIMUM, last)
        axes.append((place, size, last))

    def read(whole: Sequence[Value], weight: Value | float) -> Value:
        """The point at these whole places times ``weight``, or zero outside."""
        inside, at = p.body.literal(True, torch.bool), []
        for place, (_, size, last) in zip(whole, axes):
            inside = inside & (place >= 0.0) & (place <= last)
            at.append(p.body.position(place.op(Op.MAXIMUM, 0.0).op(Op.MINIMUM, last), size))
        found = p.body.masked(inside, lambda: p.at_of(image, (batch, channel, *at)))
        return inside.where(found * weight, 0)

    if p.arg(2, "interpolation_mode") == _NEAREST:
        return read([place.op(Op.ROUND) for place, _, _ in axes], 1.0)
    (y, x) = (place for place, _, _ in axes)
    top, left = y.op(Op.FLOOR), x.op(Op.FLOOR)
    down, across = y - top, x - left
    bottom, right = top + 1.0, left + 1.0
    return (
        read((top, left), (1.0 - across) * (1.0 - down))
        + read((top, right), across * (1.0 - down))
        + read((bottom, left), (1.0 - across) * down)
        + read((bottom, right), across * down)
    )
