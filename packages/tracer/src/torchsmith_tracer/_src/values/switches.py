"""Settings of torch's that traced code changes by a function: default dtype, determinism, anomaly
mode, precision, backend flags, kernels of attention.

A change is a node of the graph and happens for real while tracing, so that fake operators and
queries see it. What is still changed at the end is put back inside the graph and put again by
generated code, like an open context.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from torchsmith_tracer._src import torch_private as private
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.emitter import Emitter
from torchsmith_tracer._src.trace import Graph, Trace
from torchsmith_tracer._src.values.base import Args, Kwargs, Value
from torchsmith_tracer._src.values.constants import NONE, ConstantValue
from torchsmith_tracer._src.values.contexts import refuse_watched

Arguments = tuple[object, ...]


class Switch:
    """A setting that traced code has changed and not changed back.

    Attributes:
        put: sets it, called with ``key`` (which of several) and what is to hold.
        before: what held when the trace began.
        now: what is to hold afterwards.
    """

    def __init__(self, put: Callable[..., None], key: Arguments, before: Arguments) -> None:
        self.put, self.key, self.before, self.now = put, key, before, before

    def close_in_graph(self, graph: Graph) -> None:
        graph.add_call("call_function", self.put, self.key + self.before, {}, None)

    def release(self) -> None:
        self.put(*self.key, *self.before)

    def reenter(self, cg: Emitter) -> None:
        cg.effect(self.put, *map(cg.const, self.key + self.now))


def _state(read: Callable[..., object], key: Arguments) -> Arguments:
    found = read(*key)
    return found if isinstance(found, tuple) else (found,)


def _turn(
    tx: Trace, put: Callable[..., None], read: Callable[..., object], key: Arguments, now: Arguments
) -> None:
    refuse_watched(tx)
    graph, old = tx.graph, _state(read, key)
    open_ = [c for c in graph.contexts if isinstance(c, Switch) and (c.put, c.key) == (put, key)]
    switch = open_[0] if open_ else Switch(put, key, old)
    if not open_:
        tx.interp.concrete(ask(tx, read, *key))
        graph.turned.append(switch)
    tx.interp.hosted(put, *key, *now)
    if old == _state(read, key) == (None,):  # a build that lacks it: nothing but a warning
        graph.add_call("call_function", put, key + now, {}, None)
        return
    if _state(read, key) != now:  # refused with a warning, or taken for something else
        put(*key, *old)
        raise Unsupported("torch-state", what=getattr(put, "__name__", "a setting"))
    if now == old:
        return
    graph.record(lambda: put(*key, *old))
    graph.add_call("call_function", put, key + now, {}, None)
    if not open_:
        graph.enter_context(switch)
    tx.journal.assign(switch, "now", now)
    if now == switch.before:
        graph.exit_context(switch)


def switch_handler(
    put: Callable[..., None], read: Callable[..., object]
) -> Callable[[Trace, Args, Kwargs], Value]:
    """The handler of a function that changes a setting: ``read`` tells what ``put`` is to be called
    with so that nothing changes, after the arguments that say which setting it is."""
    own = inspect.signature(put) if isinstance(put, types.FunctionType) else None

    def turn(tx: Trace, args: Args, kwargs: Kwargs) -> Value:
        given = tuple(map(tx.interp.concrete, args))
        named = {name: tx.interp.concrete(value) for name, value in kwargs.items()}
        if own is not None:
            bound = tx.interp.hosted(own.bind, *given, **named)
            bound.apply_defaults()
            given = bound.args
        elif named:
            raise Unsupported("opaque-call", what=f"{put.__name__} with keywords")
        count = private.SWITCH_KEYS.get(put, 0)
        _turn(tx, put, read, given[:count], given[count:])
        return NONE

    return turn


def ask(tx: Trace, fn: Callable[..., object], *args: object) -> Value:
    """``fn(*args)`` for a question about the state of the process, which traced code may have
    changed: the fact about the world is what the answer was before.

    Raises:
        Exception: what ``fn`` raises.
    """
    now = fn(*args)
    with _turned_back(tx):
        asked = tx.world.query(fn, *args)
        if fn(*args) == now:
            return asked
        tx.interp.concrete(asked)
    return ConstantValue(now) if not isinstance(now, list | tuple) else tx.interp.const(now)


@contextmanager
def _turned_back(tx: Trace) -> Iterator[None]:
    """With all settings as they were when the trace began."""
    switches = [c for c in tx.graph.contexts if isinstance(c, Switch)]
    for switch in reversed(switches):
        switch.release()
    try:
        yield
    finally:
        for switch in switches:
            switch.put(*switch.key, *switch.now)
