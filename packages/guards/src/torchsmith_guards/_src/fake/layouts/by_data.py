"""Rules of operators whose places in a tensor data decides about.

Torch would give each such part numbers of its own, of which nothing is known. Here they follow from
the arguments, so that equal parts have equal sizes, and parts of one tensor fit together. Unlike
the other rules these ask the environment: they may make guards and runtime asserts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from torchsmith_guards._src.fake.layouts.base import (
    PLAIN_DTYPES,
    Effect,
    Entry,
    Layout,
    is_dense,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.shapes import expr as ex
from torchsmith_guards._src.shapes import relation as rel
from torchsmith_guards._src.shapes.env import ShapeEnv
from torchsmith_guards._src.shapes.nodes import SymExpr
from torchsmith_guards._src.shapes.queries import expr_of, hint_of

aten = torch.ops.aten
_ZERO, _ONE = ex.const(0), ex.const(1)
_END = 2**63 - 1  # which Python writes for an end that is left out
_Rule = TypeVar("_Rule", bound=Callable[..., Layout])
_RULES: dict[object, Entry] = {}


def data_rule(func: object) -> Entry | None:
    """The rule of an operator where there are numbers that only data determines."""
    return _RULES.get(func)


def _rule(func: object, effect: Effect) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES[func] = Entry(function, effect, PLAIN_DTYPES | {torch.complex64, torch.complex128})
        return function

    return register


def _environment(*numbers: Any) -> ShapeEnv | None:
    """That of a number that only data determines, if one is."""
    for n in numbers:
        if isinstance(n, torch.SymInt) and hint_of(n) is None:
            return n.node.shape_env  # type: ignore[no-any-return]
    return None


def _decide(env: ShapeEnv, op: str, left: SymExpr, right: SymExpr) -> SymExpr:
    """One or zero, or an expression of data that is either."""
    condition = rel.relate(op, left, right)
    known = env.static_truth(condition)
    if known is None and env.hint_of(condition) is not None:  # type: ignore[arg-type]
        known = env.evaluate_condition(condition)
    found = rel.indicator(condition if known is None else known)
    assert found is not None, "ints are compared"
    return env.named(found)


def _place(env: ShapeEnv, at: Any, extent: SymExpr) -> SymExpr:
    """Where a bound lies along an axis: counted from its end if negative, and never beyond it."""
    if type(at) is int and at >= _END:
        return extent
    place = expr_of(at)
    place = ex.add(place, ex.mul(extent, _decide(env, "<", place, _ZERO)))
    if _decide(env, "<=", _ZERO, place) is not _ONE:
        place = ex.maximum(place, _ZERO)
    return place if _decide(env, "<=", place, extent) is _ONE else ex.minimum(place, extent)


def slice_bounds(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> tuple[Any, Any, Any] | None:
    """Where a slice begins and ends, neither negative nor beyond what there is, and its length.

    Returns:
        None where data does not decide, or the slice is wrong.
    """
    rank = x.dim()
    env = _environment(x.shape[dim], start, end, step) if -rank <= dim < rank else None
    if env is None:
        return None
    extent, pace = expr_of(x.shape[dim]), expr_of(step)
    if not env.require(rel.relate("<=", _ONE, pace)):
        return None
    key = (
        expr_of(0 if start is None else start),
        expr_of(_END if end is None else end),
        pace,
        extent,
    )
    found = env.parts.get(key)
    if found is None:
        first = env.size_of(_place(env, 0 if start is None else start, extent))
        begin, stop = expr_of(first), _place(env, _END if end is None else end, extent)
        if _decide(env, "<=", begin, stop) is not _ONE:
            stop = ex.maximum(stop, begin)
        length: Any = env.size_of(ex.sub(stop, begin))
        if pace is not _ONE:
            rounded = ex.sub(ex.add(expr_of(length), pace), _ONE)
            length = env.size_of(ex.floordiv(rounded, pace))
        found = first, first + length * step, length
        env.know_part(key, found)
        env.know_part((begin, expr_of(found[1]), pace, extent), found)
    return found


def place_of(x: torch.Tensor, dim: int, index: Any) -> Any:
    """Where an index that data decides about lies, counted from the front; None for others."""
    rank = x.dim()
    env = _environment(x.shape[dim], index) if -rank <= dim < rank else None
    if env is None:
        return None
    extent, at = expr_of(x.shape[dim]), expr_of(index)
    if not env.require(rel.relate("<=", ex.neg(extent), at)):
        return None
    if not env.require(rel.relate("<", at, extent)):
        return None
    return env.size_of(ex.add(at, ex.mul(extent, _decide(env, "<", at, _ZERO))))


@_rule(aten.slice.Tensor, Effect.VIEW)
def _slice(
    x: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Layout:
    bounds = slice_bounds(x, dim, start, end, step)
    unsure_if(bounds is None)
    first, _, length = bounds  # type: ignore[misc]
    size, stride = list(x.shape), list(x.stride())
    offset = x.storage_offset() + first * stride[dim]
    size[dim], stride[dim] = length, stride[dim] * step
    return size, stride, x.dtype, x.device, offset


@_rule(aten.select.int, Effect.VIEW)
def _select(x: torch.Tensor, dim: int, index: Any) -> Layout:
    place = place_of(x, dim, index)
    unsure_if(place is None)
    size, stride = list(x.shape), list(x.stride())
    offset = x.storage_offset() + place * stride[dim]
    del size[dim], stride[dim]
    return size, stride, x.dtype, x.device, offset


def _with_part(view: _Rule) -> Callable[..., Layout]:
    """The rule of an operator that puts what may be another tensor's part where ``view`` is."""

    def scattered(x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any) -> Layout:
        unsure_if(not same_sizes(view(x, *where, **named)[0], source.shape))
        unsure_if(not is_dense(x.shape, x.stride()))
        return x.shape, x.stride(), x.dtype, x.device, 0

    return scattered


_rule(aten.slice_scatter.default, Effect.FRESH)(_with_part(_slice))
_rule(aten.select_scatter.default, Effect.FRESH)(_with_part(_select))
