"""Lowerings of operators that write where the values of other tensors say.

Each walks what is written (the source, or the index) and says where a point goes. What is written
into is a copy that the graph holds already (see ``passes.ScatterTargets``). On the CPU points that
meet follow each other as in eager mode. Elsewhere eager mode does not say which of them stays, nor
in which order sums are taken, unless deterministic algorithms are asked for.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, Written, compute_dtype
from torchsmith_fx_backend._src.loops.gathers import (
    INTEGERS,
    by_integers,
    indexed,
    indexed_dims,
    looked_up,
    out_of_bounds,
)
from torchsmith_fx_backend._src.loops.ir import Fault, StoreMode
from torchsmith_fx_backend._src.loops.registry import Coords, Scatter, argument, register
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError, estimate, size_index
from torchsmith_fx_backend._src.loops.values import GraphValues

aten = torch.ops.aten
_PUTS = (aten.index_put.default, aten._unsafe_index_put.default)
REDUCING = (aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_reduce.two)

MOST_MEETING = 64  # points, one after the other, that a thread of a GPU walks
ADDED_AT_ONCE = (torch.float32, torch.float64, torch.int32, torch.int64)  # by a GPU's memory
_REDUCES = {
    "sum": StoreMode.ADD,
    "add": StoreMode.ADD,
    "prod": StoreMode.MUL,
    "multiply": StoreMode.MUL,
    "amax": StoreMode.MAX,
    "amin": StoreMode.MIN,
}


def takes_alone(node: fx.Node) -> bool:
    """Whether a call's first argument has no other user, and is none of the other arguments."""
    target = node.args[0]
    assert isinstance(target, fx.Node)
    others: list[fx.Node] = []
    fx.node.map_arg((node.args[1:], node.kwargs), others.append)
    return list(target.users) == [node] and target not in others


def _value(node: fx.Node, position: int) -> torch.Tensor | None:
    arg = node.args[position]
    value = arg.meta.get("val") if isinstance(arg, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def _scatter_rule(
    space: Callable[[GraphValues, fx.Node], Coords],
    emit: Callable[[Point], Written],
    applies: Callable[[fx.Node], bool],
) -> Scatter:
    return Scatter(space, emit, lambda node: applies(node) and _parallel(node))


def _parallel(node: fx.Node) -> bool:
    """Whether points that meet, and so follow each other, leave enough parallel work."""
    target = _value(node, 0)
    assert target is not None
    if target.device.type == "cpu" or (_keeps_one(node) and not _ordered(target.device)):
        return True
    if in_any_order(node) and target.dtype in ADDED_AT_ONCE:
        return True
    if node.target in _PUTS:
        indices = node.args[1]
        assert isinstance(indices, (list, tuple))
        most = max(i.meta["val"].numel() for i in indexed_dims(indices).values())
    else:
        index, dim = _value(node, 2), node.args[1]
        assert index is not None and isinstance(dim, int)
        most = index.shape[dim if index.dim() > 1 else 0]
    try:
        return estimate(size_index(most)) <= MOST_MEETING
    except UnrepresentableError:
        return False


def _keeps_one(node: fx.Node) -> bool:
    """Whether the value of one of the points that meet stays."""
    if node.target in _PUTS:
        return not argument(node, 3, "accumulate", False)
    known = (aten.index_copy.default, aten.scatter.src, aten.scatter.value)
    return node.target in (*known, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)


def _adds(node: fx.Node) -> bool:
    """Whether the values of points that meet are added up."""
    if node.target in _PUTS:
        return bool(argument(node, 3, "accumulate", False))
    if node.target in REDUCING:
        return _REDUCES.get(str(argument(node, 4, "reduce"))) is StoreMode.ADD
    return node.target in (aten.index_add.default, aten.scatter_add.default)


def in_any_order(node: fx.Node) -> bool:
    """Whether eager mode adds up what meets, and does not say in which order."""
    target = _value(node, 0)
    return target is not None and _adds(node) and not _ordered(target.device)


def _ordered(device: torch.device) -> bool:
    """Whether eager mode says which value stays."""
    return device.type == "cpu" or torch.are_deterministic_algorithms_enabled()


def _like(position: int) -> Callable[[GraphValues, fx.Node], Coords]:
    """The index space of an operand."""

    def space(graph: GraphValues, node: fx.Node) -> Coords:
        walked = node.args[position]
        assert isinstance(walked, fx.Node)
        return graph.info(walked).shape

    return space


def _kept(p: Point) -> StoreMode:
    """How the values of points that meet are told apart when only one can stay."""
    ordered = _ordered(p.body.graph.info(p.node).device)
    return StoreMode.LAST if ordered else StoreMode.SET


def _added(p: Point) -> StoreMode:
    at_once = p.dtype in ADDED_AT_ONCE and in_any_order(p.node)
    return StoreMode.SUM if at_once else StoreMode.ADD


def _source(p: Point, source: object) -> Value:
    """What a point of the walked space writes: a number, or that element of a tensor."""
    if isinstance(source, fx.Node) and p.body.graph.info(source).shape:
        return p.convert(p.at_of(source, p.at), p.body.graph.info(source).dtype, p.dtype)
    return p.read(source, p.dtype)


# ------------------------------------------------------------------------- along a dimension


def _along(p: Point, at: Coords, fault: str, name: str = "", wrap: bool = False) -> Coords:
    """``p.at`` with the coordinate of the call's dimension taken from its index at ``at``."""
    d = p.dim(1)
    known = out_of_bounds(fault, d)
    known = Fault(known.error, name + known.message)
    x = looked_up(p, p.operand(2), at, p.shape[d], known, wrap)
    return (*p.at[:d], x, *p.at[d + 1 :])


def _has_dims(node: fx.Node) -> bool:
    """Whether target and index have dimensions, and the index is one of integers."""
    target, index = _value(node, 0), _value(node, 2)
    if target is None or index is None:
        return False
    return target.dim() > 0 and index.dim() > 0 and index.dtype in INTEGERS


def _one_dtype(node: fx.Node) -> bool:
    source = _value(node, 3)
    target = _value(node, 0)
    return _has_dims(node) and (source is None or target is None or source.dtype == target.dtype)


def _index_add(p: Point) -> Written:
    at = _along(p, (p.at[p.dim(1)],), "RuntimeError")
    value = _source(p, p.node.args[3])
    alpha = argument(p.node, 4, "alpha", 1)
    if alpha != 1:
        value = value * p.read(alpha, p.dtype)
    return Written(value, at, _added(p))


def _index_copy(p: Point) -> Written:
    at = _along(p, (p.at[p.dim(1)],), "IndexError", "index_copy_(): ")
    return Written(_source(p, p.node.args[3]), at, _kept(p))


def _has_rows(node: fx.Node) -> bool:
    """Whether the source has the dimensions of the target, as all but scalars do."""
    source, target = _value(node, 3), _value(node, 0)
    known = _one_dtype(node) and source is not None and target is not None
    return known and source.dim() == target.dim()  # type: ignore[union-attr]


register(aten.index_add.default, _scatter_rule(_like(3), _index_add, _has_rows))
register(aten.index_copy.default, _scatter_rule(_like(3), _index_copy, _has_rows))


def _filled(graph: GraphValues, node: fx.Node) -> Coords:
    target, dim, index = node.args[:3]
    assert isinstance(target, fx.Node) and isinstance(dim, int) and isinstance(index, fx.Node)
    shape = list(graph.info(target).shape)
    shape[dim % len(shape)] = graph.info(index).shape[0]
    return tuple(shape)


def _index_fill(p: Point) -> Written:
    at = _along(p, (p.at[p.dim(1)],), "IndexError", wrap=True)
    return Written(p.read(p.node.args[3], p.dtype), at, _kept(p))


for _target in (aten.index_fill.int_Scalar, aten.index_fill.int_Tensor):
    register(_target, _scatter_rule(_filled, _index_fill, _has_dims))


def _scatter(p: Point) -> Written:
    reduce = argument(p.node, 4, "reduce")
    mode = _added(p) if _adds(p.node) else _kept(p) if reduce is None else _REDUCES[str(reduce)]
    return Written(_source(p, p.node.args[3]), _along(p, p.at, "RuntimeError"), mode)


def _reduces(node: fx.Node) -> bool:
    """Whether the reduction is one that stores do, starting from what is there."""
    known = argument(node, 4, "reduce") in _REDUCES
    return known and argument(node, 5, "include_self", True) is True and _one_dtype(node)


for _target in (aten.scatter.src, aten.scatter.value):
    register(_target, _scatter_rule(_like(2), _scatter, _one_dtype))
for _target in REDUCING:
    register(_target, _scatter_rule(_like(2), _scatter, _reduces))


def _scatter_add(p: Point) -> Written:
    at = _along(p, p.at, "RuntimeError")
    return Written(_source(p, p.node.args[3]), at, _added(p))


register(aten.scatter_add.default, _scatter_rule(_like(2), _scatter_add, _one_dtype))


# ------------------------------------------------------------------------ advanced indexing


def _put_space(graph: GraphValues, node: fx.Node) -> Coords:
    """The shape of what the indices take from the target."""
    target, indices = node.args[:2]
    assert isinstance(target, fx.Node) and isinstance(indices, (list, tuple))
    shape = graph.info(target).shape
    chosen = indexed_dims(indices)
    dims = list(chosen)
    common: list[ix.Index] = []
    for index in chosen.values():
        own = graph.info(index).shape
        common = [ix.ONE] * (len(own) - len(common)) + common
        for d, size in enumerate(own, start=len(common) - len(own)):
            if size not in (common[d], ix.ONE) and common[d] != ix.ONE:
                raise UnrepresentableError(f"sizes {size} and {common[d]}")
            common[d] = size if common[d] == ix.ONE else common[d]
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    start = dims[0] if adjacent else 0
    rest = [size for d, size in enumerate(shape) if d not in chosen]
    return (*rest[:start], *common, *rest[start:])


def _put(p: Point) -> Written:
    _, indices, values = p.node.args[:3]
    assert isinstance(indices, (list, tuple)) and isinstance(values, fx.Node)
    value = p.read(values, p.dtype)
    at = indexed(p, p.shape, indices, p.at)
    mode = _added(p) if _adds(p.node) else _kept(p)
    return Written(value.cast(compute_dtype(p.dtype)), at, mode)


def _puts(node: fx.Node) -> bool:
    target, values = _value(node, 0), _value(node, 2)
    same = target is not None and values is not None and target.dtype == values.dtype
    return same and by_integers(node)


for _target in _PUTS:
    register(_target, _scatter_rule(_put_space, _put, _puts))
