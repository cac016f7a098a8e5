"""``functools``, ``bisect``, ``heapq``, functions of ``itertools`` and the ``operator`` getters."""

from __future__ import annotations

import _heapq
import bisect
import collections
import functools
import itertools
import operator
from collections.abc import Callable
from typing import cast

from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.builtins import twins_itertools
from torchsmith_tracer._src.values.builtins.python_versions import (
    PYTHON_BISECT,
    PYTHON_FUNCTOOLS,
    PYTHON_HEAPQ,
    PYTHON_OPERATOR,
)
from torchsmith_tracer._src.values.builtins.registry import builtin, constructor, method, traced
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.construction import make_twin
from torchsmith_tracer._src.values.python_instances import ObjectValue

# --- functools ---------------------------------------------------------------------------------


@method(functools.partial, "__call__")
def _call_partial(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    func = self.getattr(tx, "func")
    first = tx.interp.unpack(self.getattr(tx, "args"))
    known = tx.interp.keywords(self.getattr(tx, "keywords"))
    return func.call(tx, [*first, *args], {**known, **kwargs})


@builtin(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(tx: Trace, mapping: Value, iterable: Value, /) -> Value:
    for item in tx.interp.each(iterable):
        getter = mapping.getattr(tx, "get")
        count = tx.interp.call(getter, [item, ConstantValue(0)])
        mapping.setitem(tx, item, tx.interp.binary("add", count, ConstantValue(1)))
    return NONE


# --- existing objects of classes whose new objects are twins -------------------------------------


def _existing(cls: type, call: str) -> None:
    """Calling one that was found goes through a new one with what it shows of its state."""

    def implementation(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
        assert isinstance(self, ObjectValue)
        assert self.source is not None, "an existing object has a source"
        state = tx.world.computed(self.obj, self.source, "__reduce__", called=True)
        kind, parts, *_ = tx.interp.unpack(state)
        return tx.interp.call(kind, tx.interp.unpack(parts)).call(tx, args, kwargs)

    method(cls, call)(implementation)


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    _existing(_cls, "__call__")


# --- functions replaced by Python of the same behaviour, which is traced ------------------------


_KEY = type(functools.cmp_to_key(max))


@builtin(functools.cmp_to_key)
def _cmp_to_key(tx: Trace, mycmp: Value) -> Value:
    return make_twin(tx, _KEY, [mycmp], {})


constructor(_KEY)(lambda tx, *args, **kwargs: tx.interp.fold(_KEY))  # refuses
builtin(functools.reduce)(traced(PYTHON_FUNCTOOLS["reduce"]))
builtin(operator.call)(traced(PYTHON_OPERATOR["call"]))
builtin(itertools.tee)(traced(twins_itertools.tee))


def _heap_function(name: str) -> None:
    replacement = cast("Callable[..., object]", PYTHON_HEAPQ[name])
    place = "argument 1" if replacement.__code__.co_argcount > 1 else "argument"

    def implementation(tx: Trace, heap: Value, /, *args: Value) -> Value:
        if not issubclass(heap.python_type(), list):
            raise tx.interp.error(TypeError, f"{name}() {place} must be list, not {heap.type_name}")
        return tx.builder.wrap_new(replacement).call(tx, [heap, *args], {})

    builtin(getattr(_heapq, name))(implementation)


def _bisection(name: str) -> None:
    replacement = cast("Callable[..., object]", PYTHON_BISECT[name])

    def implementation(tx: Trace, a: Value, /, *args: Value, **kwargs: Value) -> Value | None:
        if a.python_type() not in (list, tuple):
            return None
        return tx.builder.wrap_new(replacement).call(tx, [a, *args], kwargs)

    builtin(getattr(bisect, name))(implementation)


for _name in ("bisect_left", "bisect_right"):
    _bisection(_name)
for _name in ("heappush", "heappop", "heapreplace", "heappushpop", "heapify"):
    _heap_function(_name)
for _name in ("_heappop_max", "_heapreplace_max", "_heapify_max"):
    _heap_function(_name)


method(itertools.chain, "from_iterable")(traced(twins_itertools.chain_from_iterable))
