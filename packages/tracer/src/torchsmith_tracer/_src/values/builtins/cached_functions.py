"""Calls of ``functools.lru_cache`` wrappers: what the cache holds is a fact, and the body repeats
the call, so that hits, misses and the order of entries are eager's.

What the cache does not hold yet is computed while tracing, by the real call: that is this call's
one, so the body leaves it out the first time. A function that raises then is run once more, when
the instruction is run natively. Where effects come before the call, the function is traced for its
result instead, and the real call takes its place among them.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torchsmith_guards import GuardKind

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import exists
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.python_instances import NewObjectValue

WRAPPER = functools._lru_cache_wrapper
_LITERALS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype))
Cached = Any  # typeshed makes the wrapper generic, the interpreter does not


class _Missing:
    """What ``peek`` gives for a call that is not in the cache."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()


@dataclass(slots=True, eq=False)
class Again:
    """Repeats a call of a cached function for its effects on the cache.

    Attributes:
        done: the call has been made already, once.
    """

    function: Cached
    kwargs: Mapping[str, object]
    done: bool

    def __call__(self, *args: Any) -> None:
        if self.done:
            self.done = False
        else:
            self.function(*args, **self.kwargs)


class Later(Again):
    """A call that the cache may lack: it does what the function does, too."""

    __slots__ = ()


def peek(wrapper: Cached, args: Sequence[object], kwargs: Mapping[str, object]) -> object:
    """The cached result of a call, or ``MISSING``; neither counts nor moves the entry."""
    parameters = wrapper.cache_parameters()
    held = gc.get_referents(wrapper)
    own = vars(wrapper)
    table = next(t for t in held if type(t) is dict and t is not own)
    for key in _keys(held, args, kwargs, typed=parameters["typed"]):
        entry = table.get(key, MISSING)
        if entry is MISSING or parameters["maxsize"] is None:
            return entry
        # The links of a bounded cache are opaque; each is visited as key, result, type.
        link = type(entry)
        for at in range(2, len(held)):
            if held[at] is link and type(held[at - 2]) is type(key) and held[at - 2] == key:
                return held[at - 1]
    return MISSING


def _keys(
    held: Sequence[object], args: Sequence[object], kwargs: Mapping[str, object], *, typed: bool
) -> list[object]:
    """The key of a call; the mark between positional and keyword arguments is the wrapper's own."""
    if not kwargs and not typed and len(args) == 1 and type(args[0]) in (int, str):
        return [args[0]]
    key: tuple[object, ...] = tuple(args)
    if kwargs:
        mark = next((o for o in held if type(o) is object), None)
        key += (mark, *(part for item in kwargs.items() for part in item))
    if typed:
        key += tuple(map(type, args)) + tuple(map(type, kwargs.values()))
    return [key]


@method(WRAPPER, "__call__")
def _call_cached(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    wrapper = getattr(self, "obj", None)
    if not isinstance(wrapper, WRAPPER):  # made by traced code: its cache is as new
        raise Unsupported("opaque-call", what=self.describe())
    if any(isinstance(a, NewObjectValue) and _by_identity(tx, a.cls) for a in args):
        return _first_call(tx, wrapper, args, kwargs)
    given = [_host(tx, a, wrapper) for a in args]
    named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
    if self.source is not None:
        tx.builder.guard(self.source, GuardKind.ID, wrapper, "a cached function was called")
    found = peek(wrapper, given, named)
    done = found is MISSING
    if done:
        if not has_room(wrapper, 1):
            raise Unsupported("opaque-call", what=f"{_name(wrapper)}, whose cache lacks this call")
        if _pending(tx):
            return _call_later(tx, wrapper, args, kwargs, (tuple(given), named))
        tx.interp.fold(lambda: (wrapper(*given, **named), None)[1])
        if peek(wrapper, given, named) is MISSING:
            raise Unsupported("opaque-call", what=f"{_name(wrapper)}, which keeps no result")
    result = tx.world.query(peek, wrapper, tuple(given), named)
    tx.journal.call_later(Again(wrapper, named, done), *args)
    return result


def has_room(wrapper: Cached, calls: int) -> bool:
    """Whether a cache can take some more results; a full one loses what a trace relies on."""
    info = wrapper.cache_info()
    return info.maxsize is None or info.currsize + calls <= info.maxsize


def takes(wrapper: Cached, key: Any, result: object, calls: int) -> bool:
    """Whether a cache holds ``result`` for a call, or lacks it and has room."""
    found = peek(wrapper, *key)
    if found is MISSING:
        return has_room(wrapper, calls)
    return type(found) is type(result) and repr(found) == repr(result)


def _call_later(tx: Trace, wrapper: Cached, args: Args, kwargs: Kwargs, key: Any) -> Value:
    """The result of a call that the cache lacks, from tracing the function.

    Raises:
        Unsupported: the result is no literal; or the function has other effects than calls, or
            such as tell who has called it.
    """
    journal, what = tx.journal, f"{_name(wrapper)}, whose cache lacks this call"
    outer = [(f.info.code.co_filename, f.line) for f in tx.frames]
    mark, ops, before = journal.checkpoint(), tx.graph.op_count, len(journal.effects)
    outside, journal.watch = journal.watch, []
    try:
        pairs = zip(args, key[0], strict=True)  # a number that varies is known in the key
        given = [ConstantValue(o) if type(o) in _LITERALS else a for a, o in pairs]
        result = tx.builder.wrap_new(wrapper.__wrapped__).call(tx, given, kwargs)
    except ObservedException as e:
        raise Unsupported("opaque-call", what=what) from e
    finally:
        changed, journal.watch = journal.watch, outside
    found = tx.interp.try_concrete(result)
    calls = journal.effects[before:]
    suits = type(found) in _LITERALS and not changed and tx.graph.op_count == ops
    for call in calls:
        parts = call if isinstance(call, tuple) else ()  # else: a value that makes others
        known = [a.value for a in parts if isinstance(a, ConstantValue)]
        tells = any(type(a) is str and (a, b) in outer for a, b in pairwise(known))
        suits = suits and bool(parts) and not tells
    journal.rollback(mark)
    waiting = [e[0] for e in journal.effects if isinstance(e, tuple)]
    room = 1 + sum(type(call) is Later and call.function is wrapper for call in waiting)
    if not suits or not tx.interp.truth(tx.world.query(takes, wrapper, key, found, room)):
        raise Unsupported("opaque-call", what=what)
    journal.call_later(Later(wrapper, key[1], False), *args)
    return result


def _by_identity(tx: Trace, kind: type) -> bool:
    """Whether instances are keys by identity: no cache can hold one of the trace's own yet."""
    found = [lookup(tx, kind, name) for name in ("__hash__", "__eq__")]
    return all(f is not None and f.owner is object for f in found)


def _first_call(tx: Trace, wrapper: Cached, args: Args, kwargs: Kwargs) -> Value:
    """The function is traced; where that changes nothing, the real call fills the cache later."""
    before = tx.journal.checkpoint()
    result = tx.builder.wrap_new(wrapper.__wrapped__).call(tx, args, kwargs)
    if tx.journal.checkpoint() == before and tx.interp.known([], kwargs) is not None:
        named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
        tx.journal.call_later(Again(wrapper, named, False), *args)
    return result


def _host(tx: Trace, value: Value, wrapper: Cached) -> object:
    """The object that an argument stands for: a cache looks it up by its hash."""
    known = tx.interp.try_concrete(value)
    if known is not tx.interp.UNKNOWN:
        return known
    obj, source = getattr(value, "obj", None), value.source
    if obj is not None and source is not None and _by_identity(tx, type(obj)):
        tx.builder.guard(source, GuardKind.ID, obj, "an argument of a cached function")
        return obj
    raise Unsupported("opaque-call", what=f"{_name(wrapper)} with {value.describe()}")


_IN_C = type(functools.lru_cache(lambda: None))
method(_IN_C, "__copy__")(lambda tx, self, /: self)
method(_IN_C, "__deepcopy__")(lambda tx, self, memo, /: self)
method(_IN_C, "__reduce__")(lambda tx, self, /: self.getattr(tx, "__qualname__"))


def _pending(tx: Trace) -> bool:
    """Whether traced code before this call has changed something that exists."""
    journal = tx.journal
    changed = (*journal.mutated, *journal.attrs)
    calls = [e for e in journal.effects if not is_cache_hit(e)]
    return bool(calls or tx.graph.mutated or any(map(exists, changed)))


def is_cache_hit(effect: object) -> bool:
    """Whether an effect of the journal only counts a call of a cached function."""
    return isinstance(effect, tuple) and type(effect[0]) is Again


def _name(wrapper: Cached) -> str:
    return getattr(wrapper, "__qualname__", "a cached function")
