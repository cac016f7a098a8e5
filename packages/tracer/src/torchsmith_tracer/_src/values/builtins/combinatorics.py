"""``itertools.product``, ``permutations`` and ``combinations``: the real classes, over positions.

Their steps run no code of the program's once the pools are read, so the real iterator tells which
positions come next, and its ``__reduce__`` and ``__setstate__`` are used as they are.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor, method
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.containers import TupleValue
from torchsmith_tracer._src.values.iterators import Counted, advanced

_MOST = 1_000_000  # rows that are remembered


class CombinatoricValue(Counted):
    """``cls(*pools, *rest)``. ``rows`` are the positions that have been asked for so far, from
    ``state`` on, which ``__setstate__`` was given last."""

    __slots__ = ("cls", "host", "pools", "rest", "rows", "state")

    def __init__(self, cls: type, pools: Sequence[TupleValue], *rest: object) -> None:
        super().__init__(0)
        self.cls = cls
        self.pools = pools
        self.rest = rest
        self.start(None)

    def start(self, state: object) -> None:
        """Start again from ``state``."""
        self.state = state
        self.rows: list[tuple[int, ...]] = []
        self.host = self.at(0)

    def at(self, steps: int) -> Iterator[Any]:
        """A real iterator over positions after ``steps`` steps."""
        pools = [range(len(pool.items)) for pool in self.pools]
        return _at(self.cls, pools, self.rest, self.state, steps)

    def step(self, tx: Trace) -> Value | None:
        if self.index == len(self.rows):
            if (row := next(self.host, None)) is None:
                return None
            if len(self.rows) == _MOST:
                raise Unsupported("too-large-to-fold", what=f"{self.cls.__name__} of many items")
            self.rows.append(row)
        row = self.rows[self.index]
        self.move(tx, self.index + 1)
        pools = self.pools if len(self.pools) == len(row) else [self.pools[0]] * len(row)
        return TupleValue([pool.items[i] for pool, i in zip(pools, row, strict=True)])

    def reconstruct(self, cg: Emitter) -> str:
        state = map(cg.const, (self.rest, self.state, self.index))
        return cg.call(_at, cg.bound(self.cls), cg.tuple_of(self.pools), *state)


def _at(
    cls: Any, pools: Sequence[object], rest: Sequence[object], state: object, steps: int
) -> Iterator[Any]:
    made = cls(*pools, *rest)
    if state is not None:
        quietly(made.__setstate__, state)
    return advanced(made, steps)


def quietly(fn: Any, *args: object) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return fn(*args)


def _pool(tx: Trace, value: Value) -> TupleValue:
    return value if type(value) is TupleValue else TupleValue(tx.interp.unpack(value))


@constructor(itertools.product)
def _product(tx: Trace, *iterables: Value, repeat: Value = ConstantValue(1)) -> Value:  # noqa: B008
    times = tx.interp.index(repeat)
    if times < 0:
        raise tx.interp.error(ValueError, "repeat argument cannot be negative")
    if times * len(iterables) > _MOST:
        raise tx.interp.error(OverflowError, "repeat argument too large")
    return CombinatoricValue(itertools.product, [_pool(tx, it) for it in iterables] * times)


@constructor(itertools.permutations)
def _permutations(tx: Trace, iterable: Value, r: Value = NONE) -> Value:
    pool = _pool(tx, iterable)
    length = len(pool.items) if tx.interp.is_none(r) else tx.interp.concrete(r)
    if not isinstance(length, int):
        raise tx.interp.error(TypeError, "Expected int as r")
    if length < 0:
        raise tx.interp.error(ValueError, "r must be non-negative")
    return CombinatoricValue(itertools.permutations, [pool], length)


def _combinations(cls: type) -> None:
    @constructor(cls)
    def make(tx: Trace, iterable: Value, r: Value) -> Value:
        pool = _pool(tx, iterable)
        length = tx.interp.index(r)
        if length < 0:
            raise tx.interp.error(ValueError, "r must be non-negative")
        return CombinatoricValue(cls, [pool], length)


def warn_of_pickling() -> None:
    """Nothing, where a real iterator is made again; traced code warns as those of C do."""


builtin(warn_of_pickling)(lambda tx: tx.interp.fold(lambda: itertools.count().__reduce__()[2:]))


def _reduce(tx: Trace, self: Value, /) -> Value:
    it: Any = self.base_value()
    _, args, *state = tx.interp.hosted(it.at(it.index).__reduce__)
    ended = args == ((),) or (it.pools and not args)
    pools = [TupleValue([])] if ended else list(it.pools)
    made = [*pools, *(tx.interp.const(a) for a in args[len(pools) :])]
    rest = [tx.interp.const(s) for s in state]
    return TupleValue([tx.interp.type_of(self), TupleValue(made), *rest])


def _setstate(tx: Trace, self: Value, state: Value, /) -> Value:
    it: Any = self.base_value()
    tx.interp.hosted(it.at(0).__reduce__)  # warns like this
    known = tx.interp.concrete(state)
    old, at = it.state, it.index
    tx.interp.fold(_at, it.cls, [range(len(p.items)) for p in it.pools], it.rest, known, 0)
    tx.journal.record(lambda: it.start(old))
    it.start(known)
    if at:
        it.move(tx, 0)
    return NONE


_combinations(itertools.combinations)
_combinations(itertools.combinations_with_replacement)
for _name in ("product", "permutations", "combinations", "combinations_with_replacement"):
    method(getattr(itertools, _name), "__reduce__")(_reduce)
    method(getattr(itertools, _name), "__setstate__")(_setstate)
