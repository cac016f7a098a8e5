"""Lowerings of operators that read where the values of other tensors say."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value, compute_dtype
from torchsmith_fx_backend._src.loops.index import Index
from torchsmith_fx_backend._src.loops.ir import Fault, Op, ReduceOp
from torchsmith_fx_backend._src.loops.proof import at_least
from torchsmith_fx_backend._src.loops.registry import (
    Coords,
    Reduction,
    argument,
    lowering,
    register,
)
from torchsmith_fx_backend._src.loops.sizes import UnrepresentableError

aten = torch.ops.aten

OUT_OF_SELF = Fault("IndexError", "index out of range in self")
INTEGERS = (torch.int64, torch.int32)


def out_of_bounds(error: str, dim: int) -> Fault:
    """What advanced indexing (an ``IndexError``) and ``gather`` (a ``RuntimeError``) raise."""
    text = f"index {{index}} is out of bounds for dimension {dim} with size {{size}}"
    return Fault(error, text)


def looked_up(
    p: Point, index: fx.Node, at: Coords, extent: Index, fault: Fault | None, wrap: bool = False
) -> Index:
    """The position in ``0 .. extent-1`` that ``index`` holds at ``at``.

    Raises:
        UnrepresentableError: there is no position, or perhaps none.
    """
    if not at_least(extent, 1):
        raise UnrepresentableError(f"a position among {extent}")
    return p.body.position(p.at_of(index, at), extent, fault, wrap)


def _tensor(node: fx.Node, position: int) -> torch.Tensor:
    arg = node.args[position]
    assert isinstance(arg, fx.Node)
    value = arg.meta["val"]
    assert isinstance(value, torch.Tensor)
    return value


@lowering(
    aten.embedding.default,
    cost=4,
    moves=True,
    applies=lambda node: _tensor(node, 1).dtype in INTEGERS,
)
def embedding(p: Point) -> Value:
    weight, index = p.operand(), p.operand(1)
    rows = p.body.graph.info(weight).shape[0]
    row = looked_up(p, index, p.at[:-1], rows, OUT_OF_SELF)
    return p.at_of(weight, (row, p.at[-1]))


def _some_dims(node: fx.Node) -> bool:
    source, index = _tensor(node, 0), _tensor(node, 2)
    return source.dim() > 0 and index.dim() > 0 and index.dtype in INTEGERS


def _operands(p: Point) -> tuple[fx.Node, fx.Node, int, Index]:
    """Source, index, dimension and its size, of an operator with these first arguments."""
    source, dim, index = p.operand(), p.node.args[1], p.operand(2)
    d = int(dim) % len(p.at)  # type: ignore[arg-type]
    return source, index, d, p.body.graph.info(source).shape[d]


@lowering(aten.index_select.default, cost=4, moves=True, applies=_some_dims)
def index_select(p: Point) -> Value:
    source, index, d, size = _operands(p)
    x = looked_up(p, index, (p.at[d],), size, OUT_OF_SELF)
    return p.at_of(source, (*p.at[:d], x, *p.at[d + 1 :]))


@lowering(aten.gather.default, cost=4, moves=True, applies=_some_dims)
def gather(p: Point) -> Value:
    source, index, d, size = _operands(p)
    x = looked_up(p, index, p.at, size, out_of_bounds("RuntimeError", d))
    return p.at_of(source, (*p.at[:d], x, *p.at[d + 1 :]))


# ------------------------------------------------------------------------ advanced indexing


def indexed_dims(indices: Sequence[object]) -> dict[int, fx.Node]:
    """The dimensions that are indexed by tensors, with those."""
    return {d: i for d, i in enumerate(indices) if isinstance(i, fx.Node)}


def by_integers(node: fx.Node) -> bool:
    """Whether advanced indexing goes by integers alone."""
    indices = node.args[1]
    assert isinstance(indices, (list, tuple))
    found = indexed_dims(indices).values()
    return bool(found) and all(i.meta["val"].dtype in INTEGERS for i in found)


def broadcast_rank(p: Point, indices: Sequence[fx.Node]) -> int:
    """The number of dimensions that index tensors have together."""
    return max(len(p.body.graph.info(i).shape) for i in indices)


def indexed(p: Point, shape: Coords, indices: Sequence[object], at: Coords) -> Coords:
    """Coordinates in a tensor of ``shape`` behind ``at`` of what advanced indexing takes from it.

    The dimensions of the index tensors stand where the first of them does when they are
    neighbours, and first of all otherwise.
    """
    chosen = indexed_dims(indices)
    dims = list(chosen)
    rank = broadcast_rank(p, list(chosen.values()))
    adjacent = dims == list(range(dims[0], dims[0] + len(dims)))
    start = dims[0] if adjacent else 0
    common = at[start : start + rank]
    rest = iter((*at[:start], *at[start + rank :]))
    out: list[Index] = []
    for d, size in enumerate(shape):
        index = chosen.get(d)
        if index is None:
            out.append(next(rest))
            continue
        own = p.body.graph.info(index).shape
        there = tuple(ix.ZERO if n == ix.ONE else x for n, x in zip(own, common[rank - len(own) :]))
        out.append(looked_up(p, index, there, size, out_of_bounds("IndexError", d), wrap=True))
    return tuple(out)


@lowering(aten.index.Tensor, aten._unsafe_index.Tensor, cost=5, moves=True, applies=by_integers)
def index_tensor(p: Point) -> Value:
    source, indices = p.node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(indices, (list, tuple))
    shape = p.body.graph.info(source).shape
    return p.at_of(source, indexed(p, shape, indices, p.at))


# --------------------------------------------------------------------------- sorted rows


def _found(p: Point, sorted_row: fx.Node, keys: fx.Node) -> Value:
    """How many entries of the row come before a key, by bisection: the same steps everywhere."""
    key = p.at_of(keys, p.at).rounded(p.body.graph.info(keys).dtype)
    right = _right(p.node)
    shape = p.body.graph.info(sorted_row).shape
    length = shape[-1]
    assert type(length) is ix.Const
    lead = p.at[: len(shape) - 1]
    found = p.body.literal(0, torch.int64)
    step = 1 << (length.value.bit_length() - 1)
    while step:
        tried = found + step
        row = p.body.position(tried - 1, length)
        entry = p.at_of(sorted_row, (*lead, row))
        entry = entry.rounded(p.body.graph.info(sorted_row).dtype)
        after = (entry > key) if right else (entry >= key)  # a key that is NaN comes after all
        before = after.negated() & (tried <= length.value)
        found = before.where(tried, found)
        step //= 2
    return found.cast(p.dtype)


def _searched(row: int, keys: int) -> Callable[[fx.Node], bool]:
    """Whether a row of known length is searched for keys of its own dtype, without more ado."""

    def applies(node: fx.Node) -> bool:
        if not all(isinstance(node.args[n], fx.Node) for n in (row, keys)):
            return False
        given, wanted = _tensor(node, row), _tensor(node, keys)
        plain = node.kwargs.get("sorter") is None and type(given.shape[-1]) is int
        known = given.dtype == wanted.dtype and given.dtype is not torch.bool
        fits = given.dim() == 1 or node.target is not aten.bucketize.Tensor
        return plain and known and fits and given.shape[-1] > 0 and _right(node) is not None

    return applies


def _right(node: fx.Node) -> bool | None:
    """Whether entries that equal the key come before it; None where the arguments disagree."""
    side, right = node.kwargs.get("side"), bool(node.kwargs.get("right", False))
    if side is None:
        return right
    return None if right and side == "left" else side == "right"


@lowering(aten.bucketize.Tensor, cost=60, applies=_searched(1, 0))
def bucketize(p: Point) -> Value:
    return _found(p, p.operand(1), p.operand())


@lowering(aten.searchsorted.Tensor, cost=60, applies=_searched(0, 1))
def searchsorted(p: Point) -> Value:
    return _found(p, p.operand(), p.operand(1))


# ---------------------------------------------------------------- losses that check their input

_OUT_OF_TARGETS = Fault("IndexError", "Target {index} is out of bounds.")
_NO_PROBABILITY, _NO_TARGET = (
    Fault("RuntimeError", f"all elements of {name} should be between 0 and 1")
    for name in ("input", "target")
)
_NONE, _MEAN = 0, 1


def _every(node: fx.Node) -> tuple[int, ...]:
    return tuple(range(_tensor(node, 1).dim()))


def _probabilities(node: fx.Node) -> bool:
    """A loss on a CPU, of one number and without weights: one check for all elements."""
    x, target = _tensor(node, 0), _tensor(node, 1)
    weight, reduction = (argument(node, n, name) for n, name in ((2, "weight"), (3, "reduction")))
    wide = x.dtype in (torch.float32, torch.float64) and target.dtype is x.dtype
    return wide and x.device.type == "cpu" and weight is None and reduction != _NONE


def _binary_cross_entropy(p: Point) -> Sequence[Value]:
    """Eager's formula. Checks of all elements, unlike such of each, let vectors be."""
    x, target = p.at_of(p.operand(), p.at), p.at_of(p.operand(1), p.at)
    hit, missed = (v.op(Op.MAXIMUM, -100.0) for v in (x.op(Op.LOG), (-x).op(Op.LOG1P)))
    loss = p.body.reduce(ReduceOp.SUM, (target - 1) * missed - target * hit)
    for value, fault in ((x, _NO_PROBABILITY), (target, _NO_TARGET)):
        outside = p.body.reduce(ReduceOp.ANY, ((value >= 0) & (value <= 1)).negated())
        checked = p.body.index_value(p.body.position(outside, ix.ONE, fault))
        loss = loss + checked.cast(loss.dtype)
    count = p.body.index_value(p.body.numel(p.body.reduced or ())).cast(loss.dtype)
    return (loss / count if argument(p.node, 3, "reduction", _MEAN) == _MEAN else loss,)


register(
    aten.binary_cross_entropy.default,
    Reduction(_every, _binary_cross_entropy, applies=_probabilities, cost=30),
)


def _class_numbers(node: fx.Node) -> bool:
    """Whether targets are classes. A loss of each has no sum of weights that could be asked for."""
    alone = node.args[3] != _NONE or all(u.args[1:] == (0,) for u in node.users if u.users)
    return alone and _tensor(node, 1).dtype is torch.int64


def _summed(node: fx.Node) -> tuple[int, ...]:
    return () if node.args[3] == _NONE else _every(node)


def _nll_loss(p: Point) -> Sequence[Value]:
    """The loss and the sum of weights. The probabilities are read where the targets say only."""
    scores, target, weight, reduction = p.node.args[:4]
    assert isinstance(scores, fx.Node) and isinstance(target, fx.Node)
    dtype = compute_dtype(p.output_dtype(0))
    counts = p.at_of(target, p.at).ne(p.read(p.node.args[4], torch.int64))
    shape = p.body.graph.info(scores).shape
    classes = shape[0] if len(shape) == 1 else shape[1]

    def picked() -> tuple[Value, Value]:
        row = looked_up(p, target, p.at, classes, _OUT_OF_TARGETS)
        at = (row,) if len(shape) == 1 else (p.at[0], row, *p.at[1:])
        scale = p.body.literal(1, dtype)
        if isinstance(weight, fx.Node):
            scale = p.at_of(weight, (row,)).cast(dtype)
        return scale, -p.at_of(scores, at).cast(dtype)

    scale, loss = p.body.masked(counts, picked)
    if reduction == _NONE:
        return counts.where(scale * loss, 0), p.body.literal(0, dtype)
    total = p.body.reduce(ReduceOp.SUM, counts.where(scale, 0))
    loss = p.body.reduce(ReduceOp.SUM, counts.where(scale * loss, 0))
    return (loss.op(Op.DIV, total) if reduction == _MEAN else loss), total


for _op in (aten.nll_loss_forward.default, aten.nll_loss2d_forward.default):
    register(
        _op,
        Reduction(
            _summed, _nll_loss, (False, False), several=True, walks=1, applies=_class_numbers
        ),
    )
