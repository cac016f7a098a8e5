"""Reduction lowerings, and the composite norms and softmaxes that a graph may still hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops import index as ix
from torchsmith_fx_backend._src.loops.body import Point, Value
from torchsmith_fx_backend._src.loops.ir import Op, ReduceOp, ScanOp
from torchsmith_fx_backend._src.loops.registry import Reduction, argument, register

aten = torch.ops.aten
Emit = Callable[[Point], Sequence[Value]]


def _rank(node: fx.Node) -> int:
    (source, *_) = node.args
    assert isinstance(source, fx.Node)
    return int(source.meta["val"].dim())


def _dims(position: int | None) -> Callable[[fx.Node], tuple[int, ...]]:
    """Reduced dimensions from an argument; all of them when it is None or an empty list."""

    def dims(node: fx.Node) -> tuple[int, ...]:
        rank = _rank(node)
        value = None if position is None else argument(node, position, "dim")
        if isinstance(value, int):
            return (value % rank,) if rank else ()
        if isinstance(value, (list, tuple)) and value:
            return tuple(sorted({int(d) % rank for d in value})) if rank else ()
        return tuple(range(rank))

    return dims


def _count(p: Point) -> Value:
    """The number of reduced elements, as a float value of the computation's dtype."""
    total = p.body.numel(p.body.reduced or ())
    return p.body.index_value(total)


def _plain(op: ReduceOp, *targets: object, position: int | None) -> None:
    def emit(p: Point) -> Sequence[Value]:
        return (p.body.reduce(op, p.read_input(p.output_dtype(0))),)

    for target in targets:
        register(target, Reduction(_dims(position), emit))


_plain(ReduceOp.SUM, aten.sum.default, position=None)
_plain(ReduceOp.SUM, aten.sum.dim_IntList, position=1)
_plain(ReduceOp.MAX, aten.amax.default, position=1)
_plain(ReduceOp.MIN, aten.amin.default, position=1)
_plain(ReduceOp.MAX, aten.max.default, position=None)
_plain(ReduceOp.MIN, aten.min.default, position=None)
_plain(ReduceOp.PROD, aten.prod.default, position=None)
_plain(ReduceOp.PROD, aten.prod.dim_int, position=1)


def _boolean(op: ReduceOp, packet: object) -> None:
    def emit(p: Point) -> Sequence[Value]:
        x = p.read_input(None)
        x = x if x.dtype is torch.bool else x.ne(0)
        return (p.body.reduce(op, x).cast(p.output_dtype(0)),)

    for overload, position in (("default", None), ("dim", 1), ("dims", 1)):
        target = getattr(packet, overload, None)
        if target is not None:
            register(target, Reduction(_dims(position), emit))


_boolean(ReduceOp.ANY, aten.any)
_boolean(ReduceOp.ALL, aten.all)
_boolean(ReduceOp.ANY, aten._is_any_true)
_boolean(ReduceOp.ALL, aten._is_all_true)


def _mean_of(p: Point, x: Value) -> Value:
    return p.body.reduce(ReduceOp.SUM, x) / _count(p).cast(x.dtype)


def _argument(op: ReduceOp) -> Emit:
    return lambda p: (p.body.reduce(op, p.read_input_rounded()),)


register(aten.argmax.default, Reduction(_dims(1), _argument(ReduceOp.ARGMAX)))
register(aten.argmin.default, Reduction(_dims(1), _argument(ReduceOp.ARGMIN)))


def _with_index(best: ReduceOp | ScanOp, where: ReduceOp | ScanOp) -> Emit:
    def emit(p: Point) -> Sequence[Value]:
        x = p.read_input_rounded()
        return _walked(p, best, x), _walked(p, where, x)

    return emit


def _walked(p: Point, op: ReduceOp | ScanOp, x: Value) -> Value:
    return p.body.scan(op, x) if isinstance(op, ScanOp) else p.body.reduce(op, x)


for _target, _best, _where in (
    (aten.max.dim, ReduceOp.MAX, ReduceOp.ARGMAX),
    (aten.min.dim, ReduceOp.MIN, ReduceOp.ARGMIN),
):
    register(_target, Reduction(_dims(1), _with_index(_best, _where), (False, False), several=True))


# ----------------------------------------------------------------------------------- scans


def _has_rows(node: fx.Node) -> bool:
    value = node.args[0].meta["val"]  # type: ignore[union-attr]
    return value.dim() > 0 and value.dtype is not torch.bool


def _scan(op: ScanOp) -> Emit:
    def emit(p: Point) -> Sequence[Value]:
        x = p.read_input(p.output_dtype(0))
        if op is ScanOp.SUM and p.output_dtype(0).is_floating_point:
            x = x + 0.0  # eager starts from zero, so that no sum is -0.0
        return (p.body.scan(op, x),)

    return emit


_ranked = lambda node: _rank(node) > 0

for _target, _kind in (
    (aten.cumsum.default, ScanOp.SUM),
    (aten.cumprod.default, ScanOp.PROD),
    (aten.logcumsumexp.default, ScanOp.LOGSUMEXP),
):
    register(_target, Reduction(_dims(1), _scan(_kind), (True,), applies=_ranked, cost=6))

for _target, _best_scan, _where_scan in (
    (aten.cummax.default, ScanOp.MAX, ScanOp.ARGMAX),
    (aten.cummin.default, ScanOp.MIN, ScanOp.ARGMIN),
):
    _emit = _with_index(_best_scan, _where_scan)
    register(
        _target, Reduction(_dims(1), _emit, (True, True), several=True, applies=_has_rows, cost=6)
    )


# -------------------------------------------------------------------------------- variance


def _floating(node: fx.Node) -> bool:
    """Whether the operand is of real numbers; eager refuses others, or computes in its own way."""
    operand: Any = node.args[0]
    return bool(operand.meta["val"].is_floating_point())


def _nansum(p: Point) -> Sequence[Value]:
    x = p.read_input(p.output_dtype(0))
    return (p.body.reduce(ReduceOp.SUM, x.test(Op.ISNAN).where(0.0, x)),)


register(aten.nansum.default, Reduction(_dims(1), _nansum, applies=_floating))


def _moments(p: Point, x: Value) -> tuple[Value, Value]:
    """Variance and mean, in two passes over the row: exact where one pass would cancel."""
    mean = _mean_of(p, x)
    centred = x - mean
    return _mean_of(p, centred * centred), mean


# --------------------------------------------------------------------------------- softmax


def _softmax(p: Point) -> Sequence[Value]:
    x = p.read_input(p.output_dtype(0))
    shifted = (x - p.body.reduce(ReduceOp.MAX, x)).op(Op.EXP)
    return (shifted / p.body.reduce(ReduceOp.SUM, shifted),)


def _log_softmax(p: Point) -> Sequence[Value]:
    x = p.read_input(p.output_dtype(0))
    shifted = x - p.body.reduce(ReduceOp.MAX, x)
    return (shifted - p.body.reduce(ReduceOp.SUM, shifted.op(Op.EXP)).op(Op.LOG),)


for _target in (aten._softmax.default, aten.softmax.int):
    register(_target, Reduction(_dims(1), _softmax, (True,), applies=_floating, cost=20))
for _target in (aten._log_softmax.default, aten.log_softmax.int):
    register(_target, Reduction(_dims(1), _log_softmax, (True,), applies=_floating, cost=30))


def _safe_softmax(p: Point) -> Sequence[Value]:
    """Softmax whose rows without any finite entry are zero instead of NaN."""
    (value,) = _softmax(p)
    x = p.read_input(p.output_dtype(0))
    empty = p.body.reduce(ReduceOp.ALL, x.eq(float("-inf")))
    return (empty.where(0.0, value),)


register(aten._safe_softmax.default, Reduction(_dims(1), _safe_softmax, (True,), cost=24))


# ----------------------------------------------------------------------------------- norms


def _norm_dims(node: fx.Node) -> tuple[int, ...]:
    shape = node.args[1]
    assert isinstance(shape, (list, tuple))
    rank = _rank(node)
    return tuple(range(rank - len(shape), rank))


def _scaled(p: Point, y: Value, position: int, name: str, op: Op) -> Value:
    arg = p.arg(position, name)
    if not isinstance(arg, fx.Node):
        return y
    at = p.at[len(p.at) - len(p.body.graph.info(arg).shape) :]
    at = tuple(ix.ZERO if s == ix.ONE else x for s, x in zip(p.body.graph.info(arg).shape, at))
    return y.op(op, p.at_of(arg, at).cast(y.dtype))


def _layer_norm(p: Point) -> Sequence[Value]:
    x = p.read_input(p.output_dtype(0))
    variance, mean = _moments(p, x)
    eps = p.arg(4, "eps", 1e-5)
    rstd = (variance + p.read(eps, x.dtype)).op(Op.RSQRT)
    y = _scaled(p, (x - mean) * rstd, 2, "weight", Op.MUL)
    return _scaled(p, y, 3, "bias", Op.ADD), mean, rstd


register(
    aten.native_layer_norm.default,
    Reduction(_norm_dims, _layer_norm, (True, False, False), several=True, cost=20),
)


def _rms_norm(p: Point) -> Sequence[Value]:
    x = p.read_input(p.output_dtype(0))
    eps = p.arg(3, "eps")
    if eps is None:
        eps = torch.finfo(x.dtype).eps
    rstd = (_mean_of(p, x * x) + p.read(eps, x.dtype)).op(Op.RSQRT)
    return _scaled(p, x * rstd, 2, "weight", Op.MUL), rstd


register(
    aten._fused_rms_norm.default,
    Reduction(_norm_dims, _rms_norm, (True, False), several=True, cost=16),
)


def _vector_norm_kind(node: fx.Node) -> bool:
    return argument(node, 1, "ord", 2) in (1, 2, float("inf"), float("-inf"))


def _vector_norm(p: Point) -> Sequence[Value]:
    order = p.arg(1, "ord", 2)
    x = p.read_input(p.output_dtype(0))
    if order == 2:
        return (p.body.reduce(ReduceOp.SUM, x * x).op(Op.SQRT),)
    size = x.op(Op.ABS)
    if order == 1:
        return (p.body.reduce(ReduceOp.SUM, size),)
    return (p.body.reduce(ReduceOp.MAX if order == float("inf") else ReduceOp.MIN, size),)


register(
    aten.linalg_vector_norm.default,
    Reduction(_dims(2), _vector_norm, applies=_vector_norm_kind, cost=6),
)
