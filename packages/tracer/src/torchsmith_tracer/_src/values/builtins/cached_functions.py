"""Calls of ``functools.lru_cache`` wrappers: what the cache holds is a fact, and the body repeats
the call, so that hits, misses and the order of entries are eager's.

What the cache does not hold yet is computed while tracing, by the real call: that is this call's
one, so the body leaves it out the first time. A function that raises then breaks the graph: no
cache keeps an exception. Where effects come before the call, or numbers among its arguments vary,
the function is traced for its result instead, the real call takes its place among the effects, and
a guard asks whether the cache has the same result for the numbers of a call. A result that is an
object must be the cache's own: the real call is made while tracing if it gives what tracing gives,
so that what came before makes no difference.
"""

from __future__ import annotations

import functools
import gc
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import torch
import torchsmith_guards as guards

from torchsmith_tracer._src.breaks.signals import ObservedException, Unsupported
from torchsmith_tracer._src.effects.journal import exists
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.builtins.registry import method
from torchsmith_tracer._src.values.constants import ConstantValue
from torchsmith_tracer._src.values.containers import ListValue, TupleValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer._src.values.mappings import DictValue
from torchsmith_tracer._src.values.python_instances import NewObjectValue
from torchsmith_tracer._src.values.sizes import SizeValue
from torchsmith_tracer._src.values.symnum import SymNumValue

WRAPPER = functools._lru_cache_wrapper
_LITERALS = frozenset((type(None), bool, int, float, complex, str, bytes, torch.dtype))
_MOST = 1000  # numbers that a result has been compared for
Cached = Any  # typeshed makes the wrapper generic, the interpreter does not
Entry = Callable[[], object]
Known = Mapping[str, object]


MISSING = object()  # what ``entry`` gives for a call that is not in the cache


@dataclass(slots=True, eq=False)
class Again:
    """Repeats a call of a cached function for its effects on the cache.

    Attributes:
        done: the call has been made already, once.
    """

    function: Cached
    kwargs: Known
    done: bool = False

    def __call__(self, *args: Any) -> None:
        if self.done:
            self.done = False
        else:
            self.function(*args, **self.kwargs)


@dataclass(slots=True, eq=False)
class Later(Again):
    """A call that the cache may lack: it does what the function does, too.

    Attributes:
        key: the arguments, with formulas in place of numbers that vary.
        of: these numbers in the call under way, by the names in ``key``.
    """

    key: tuple[object, ...] = ()
    of: threading.local = field(default_factory=threading.local)

    def shared(self) -> object:
        """The result where that is one object for all callers."""
        args = _filled(self.key, vars(self.of))
        found = entry(self.function, args, self.kwargs)()
        if found is MISSING:
            found, self.done = self.function(*args, **self.kwargs), True
        return found


def _raised(wrapper: Cached, error: BaseException) -> Callable[[Any], Any]:
    """Tells what to call for a function whose first call, made while tracing, raised ``error``."""
    errors = [error]

    def again(*args: object, **kwargs: object) -> None:
        raise errors.pop()

    return lambda f: again if errors and getattr(f, "__func__", f) is wrapper else f


#: By wrapper and key: equal calls ask one and the same function, also in another compile.
_ENTRIES: WeakValueDictionary[Hashable, Entry] = WeakValueDictionary()


def entry(wrapper: Cached, args: Sequence[object], kwargs: Known) -> Entry:
    """A function that gives the cached result of a call, or ``MISSING``; it neither counts as a
    call nor moves the entry."""
    parameters = wrapper.cache_parameters()
    held, own = gc.get_referents(wrapper), vars(wrapper)
    table = next(t for t in held if type(t) is dict and t is not own)  # for good: it is cleared
    key = _key(held, args, kwargs, parameters["typed"])
    if (made := _ENTRIES.get((id(wrapper), key))) is not None:
        return made
    known: tuple[object, int, object] = (MISSING, 0, MISSING)

    def cached() -> object:
        nonlocal known
        found = table.get(key, MISSING)
        if found is MISSING or parameters["maxsize"] is None:
            return found
        # A bounded cache is visited as key, result, type of a link; only a miss changes a link.
        misses = wrapper.cache_info().misses
        if known[0] is found and known[1] == misses:
            return known[2]
        held = gc.get_referents(wrapper)
        links = (i for i in range(2, len(held)) if held[i] is type(found))
        same = (i for i in links if type(held[i - 2]) is type(key) and held[i - 2] == key)
        result = next((held[i - 1] for i in same), MISSING)
        if not any(isinstance(o, torch.Tensor) for o in (result, *gc.get_referents(result))):
            known = (found, misses, result)  # what is large is not kept alive
        return result

    cached.__module__, cached.__qualname__ = wrapper.__module__, f"{_name(wrapper)}.cached"
    _ENTRIES[id(wrapper), key] = cached
    return cached


def _key(held: Sequence[object], args: Sequence[object], kwargs: Known, typed: bool) -> Hashable:
    """The key of a call; the mark between positional and keyword arguments is the wrapper's own."""
    if not kwargs and not typed and len(args) == 1 and type(args[0]) in (int, str):
        return args[0]
    key: tuple[object, ...] = tuple(args)
    if kwargs:
        mark = next((o for o in held if type(o) is object), None)
        key += (mark, *(part for item in kwargs.items() for part in item))
    if typed:
        key += tuple(map(type, args)) + tuple(map(type, kwargs.values()))
    return key


@method(WRAPPER, "__call__")
def _call_cached(tx: Trace, self: Value, /, *args: Value, **kwargs: Value) -> Value:
    wrapper = getattr(self, "obj", None)
    if not isinstance(wrapper, WRAPPER):  # made by traced code: its cache is as new
        raise Unsupported("opaque-call", what=self.describe())
    if any(isinstance(a, NewObjectValue) and _by_identity(tx, a.cls) for a in args):
        return _first_call(tx, wrapper, args, kwargs)
    named = {k: tx.interp.concrete(v) for k, v in kwargs.items()}
    if self.source is not None:
        tx.builder.guard(self.source, guards.GuardKind.ID, wrapper, "a cached function was called")
    if any(map(_varies, args)):
        marks = tx.checkpoint()
        try:
            if (found := _call_traced(tx, wrapper, args, kwargs, named)) is not None:
                return found
        except Unsupported:  # it is called with the numbers of this call
            tx.rollback(marks)
    given = [_host(tx, a, wrapper) for a in args]
    cached = entry(wrapper, given, named)
    done = cached() is MISSING
    if done:
        if not has_room(wrapper, 1):
            raise Unsupported("opaque-call", what=f"{_name(wrapper)}, whose cache lacks this call")
        if _pending(tx):
            marks = tx.checkpoint()
            early = partial(tx.interp.hosted, wrapper.__wrapped__, *given, **named)
            found = _call_traced(tx, wrapper, args, kwargs, named, early)
            if found is not None:
                return found
            tx.rollback(marks)
        try:
            wrapper(*given, **named)
        except BaseException as e:
            if isinstance(e, RecursionError) or guards.is_interruption(e):
                raise
            raised = _raised(wrapper, e.with_traceback(e.__traceback__ and e.__traceback__.tb_next))
            kind = type(e).__name__
            raise Unsupported("op-failed", what=_name(wrapper), error=kind, callee=raised) from None
        if cached() is MISSING:
            raise Unsupported("opaque-call", what=f"{_name(wrapper)}, which keeps no result")
    result = tx.world.query(cached)
    tx.journal.call_later(Again(wrapper, named, done), *args)
    return result


def has_room(wrapper: Cached, calls: int) -> bool:
    """Whether a cache can take some more results; a full one loses what a trace relies on."""
    info = wrapper.cache_info()
    return info.maxsize is None or info.currsize + calls <= info.maxsize


def _call_traced(
    tx: Trace,
    wrapper: Cached,
    args: Args,
    kwargs: Kwargs,
    named: Known,
    early: Callable[[], object] | None = None,
) -> Value | None:
    """The result from tracing the function, of a call that takes its place among the effects.

    Returns:
        None for an object that ``early``, which does what the function does, gives as well: what
        the program has changed so far makes no difference.

    Raises:
        Unsupported: the result is not made of literals and numbers; or the function has other
            effects than calls, or such as tell who has called it.
    """
    journal, env, what = tx.journal, tx.graph.shape_env, f"{_name(wrapper)}, which is cached"
    symbols: set[guards.Symbol] = set()
    key = tuple([_pattern(tx, a, symbols, wrapper) for a in args])
    later = Later(wrapper, named, key=key)
    for same, found in journal.results.items():
        if (same.function, same.key, same.kwargs) == (wrapper, key, named):
            journal.call_later(same, *args)
            return found
    mark, before, alone = journal.checkpoint(), len(journal.effects), journal.watch is None
    result, suits = _traced(tx, wrapper, args, kwargs)
    try:
        pattern = _pattern(tx, result, symbols)
    except Unsupported:
        if early and alone and suits and len(journal.effects) == before:
            with suppress(ObservedException):
                if _equals(tx, result, early()):
                    return None
        raise
    result = _found(result, guards.CallSource(guards.PinnedSource(later.shared)))
    journal.rollback(mark)
    waiting = [e[0] for e in journal.effects if isinstance(e, tuple)]
    room = 1 + sum(type(call) is Later and call.function is wrapper for call in waiting)
    changes = _changes(pattern)
    seen: dict[tuple[object, ...], tuple[Entry, object, str]] = {}

    def agrees(**numbers: Any) -> bool:
        vars(later.of).update(numbers)
        now = tuple(numbers.values())
        if now not in seen:
            if len(seen) > _MOST:
                seen.clear()
            seen[now] = entry(wrapper, _filled(key, numbers), named), MISSING, ""
        cached, same, text = seen[now]
        found = cached()
        if found is MISSING:
            return bool(symbols) or has_room(wrapper, room)
        if found is not same or (changes and repr(found) != text):
            if (text := repr(found)) != repr(_filled(pattern, numbers)):
                return False
            seen[now] = cached, found, text
        return True

    names = {} if env is None else env.bindings
    bound = tuple((s.name, names[s.name]) for s in symbols if s.name in names)
    question = guards.Question(agrees, frozenset(symbols))
    if not suits or len(bound) < len(symbols) or not question.evaluate(env.hints if env else {}):
        raise Unsupported("opaque-call", what=what)
    relation = guards.ShapeRelation(question, bound)
    tx.builder.guard(
        guards.SHAPES, guards.GuardKind.SHAPE, relation, "what a cached function returns"
    )
    journal.results[later] = result
    journal.record(journal.results.popitem)
    journal.call_later(later, *args)
    return result


def _traced(tx: Trace, wrapper: Cached, args: Args, kwargs: Kwargs) -> tuple[Value, bool]:
    """What tracing the function gives, and whether it has no other effects than calls that do not
    tell who has called it."""
    journal = tx.journal
    outer = [(f.info.code.co_filename, f.line) for f in tx.frames]
    before, nodes = len(journal.effects), len(tx.graph.graph.nodes)
    older = {*journal.mutated, *(v for table in journal.attrs.values() for v in table.values())}
    outside, journal.watch = journal.watch, []
    try:
        result = tx.builder.wrap_new(wrapper.__wrapped__).call(tx, args, kwargs)
    except ObservedException as e:
        raise Unsupported("opaque-call", what=f"{_name(wrapper)}, which is cached") from e
    finally:
        changed, journal.watch = journal.watch, outside
    made = [n.meta.get("example_value") for n in list(tx.graph.graph.nodes)[nodes:]]
    suits = not any(v in older or exists(v) for v in changed)
    suits = suits and not any(isinstance(m, torch.Tensor) for m in made)
    for call in journal.effects[before:]:
        parts = call if isinstance(call, tuple) else ()  # else: a value that makes others
        known = [a.value for a in parts if isinstance(a, ConstantValue)]
        tells = any(type(a) is str and (a, b) in outer for a, b in pairwise(known))
        suits = suits and bool(parts) and not tells
    return result, suits


def _equals(tx: Trace, value: Value, obj: Any) -> bool:
    """Whether traced code has made what ``obj`` is, through and through."""
    kind = type(obj)
    if type(value) in (TupleValue, ListValue):
        items = value.unpack(tx)  # type: ignore[attr-defined]
        same = kind is value.cls and len(obj) == len(items)
        return same and all(map(partial(_equals, tx), items, obj))
    if type(value) is DictValue:
        keys = [tx.interp.concrete(k) for k, _ in value.table.values()]
        same = kind is value.cls and repr(keys) == repr([*obj])
        return same and all(map(partial(_equals, tx), value.values(tx), obj.values()))
    if isinstance(value, NewObjectValue):
        made, held = tx.journal.stores(value), getattr(obj, "__dict__", {})
        same = kind is value.cls and value.storage is None and [*made] == [*held]
        return same and all(map(partial(_equals, tx), made.values(), held.values()))
    known = tx.interp.try_concrete(value)
    return type(known) in _LITERALS and kind is type(known) and repr(obj) == repr(known)


def _pattern(
    tx: Trace, value: Value, symbols: set[guards.Symbol], wrapper: Cached | None = None
) -> Any:
    """An argument of ``wrapper``, or a result, with formulas in place of numbers that vary, whose
    ``symbols`` are noted."""
    if isinstance(value, SymNumValue) and tx.graph.shape_env is not None:
        formula = tx.graph.shape_env.simplify(guards.expr_of(value.sym))
        symbols |= formula.free_symbols
        return formula
    if type(value) in (TupleValue, SizeValue):
        return tuple([_pattern(tx, v, symbols, wrapper) for v in value.unpack(tx)])  # type: ignore[attr-defined]
    if wrapper is not None:
        return _host(tx, value, wrapper)
    if type(value) is ListValue:
        return [_pattern(tx, v, symbols) for v in value.unpack(tx)]
    if type(value) is DictValue and value.cls is dict:
        parts = zip(value.keys(), value.values(tx), strict=True)
        return {tx.interp.concrete(k): _pattern(tx, v, symbols) for k, v in parts}
    found = tx.interp.concrete(value)
    if type(found) not in _LITERALS:
        raise Unsupported("not-constant", what=value.describe())
    return found


def _changes(pattern: Any) -> bool:
    """Whether a result has lists or dicts, of which others may have changed the items."""
    if type(pattern) is tuple:
        return any(map(_changes, pattern))
    return type(pattern) in (list, dict)


def _found(value: Value, source: guards.Source) -> Value:
    """A result, where lists and dicts that the function has made are found at ``source``."""
    if type(value) in (TupleValue, ListValue) and value.source is None:
        items = [_found(v, guards.ItemSource(source, i)) for i, v in enumerate(value.items)]  # type: ignore[attr-defined]
        return ListValue(items, source) if type(value) is ListValue else TupleValue(items)
    if type(value) is DictValue and value.source is None:
        rows = value.table.items()
        table = {
            h: (k, _found(v, guards.ItemSource(source, k.as_constant()))) for h, (k, v) in rows
        }
        return DictValue(table, source)
    return value


def _filled(pattern: Any, numbers: Mapping[str, Any]) -> Any:
    """A pattern with numbers for its symbols."""
    if isinstance(pattern, guards.SymExpr):
        return pattern.evaluate(numbers)
    if isinstance(pattern, dict):
        return {k: _filled(v, numbers) for k, v in pattern.items()}
    if type(pattern) in (list, tuple):
        return type(pattern)([_filled(v, numbers) for v in pattern])
    return pattern


def _varies(value: Value) -> bool:
    items = getattr(value, "items", ()) if type(value) in (TupleValue, SizeValue) else ()
    return isinstance(value, SymNumValue) or any(map(_varies, items))


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
        tx.builder.guard(source, guards.GuardKind.ID, obj, "an argument of a cached function")
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
