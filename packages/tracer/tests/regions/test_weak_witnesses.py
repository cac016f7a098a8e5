"""Weak references, which programs can ask, see no object live longer for having been compiled."""

import contextlib
import gc
import types
import weakref

import pytest
import torch
import torchsmith_tracer

# What each program has; ``key`` is what its weak references watch.
SETUP = """
import collections, contextlib, functools, gc, types, weakref
class Key:
    v = 3
key = Key()
weak = weakref.WeakKeyDictionary({key: 5})
every = weakref.WeakSet([key])
by_name = weakref.WeakValueDictionary({"k": key})
module = types.ModuleType("made")
module.key = key
exec("def q(): return key.v + r()\\ndef r(): return 1", vars(module))
def read(): return key.v + len(weak) + sum(weak.values()) + weak.get(key, 7) + (key in every)
def inner_functions():
    def inner(held=key): return held.v + recursive(1)
    def recursive(n): return recursive(0) if n else key.v
    return inner
def produces():
    yield key.v
    yield read
def decorator(f):
    @functools.wraps(f)
    def wrapped(n): return f(n) + key.v
    return wrapped
@decorator
def decorated(n): return n and decorated(n - 1)
@contextlib.contextmanager
def context():
    yield key
class Owner:
    p = property(lambda self: key.v)
    def m(self): return read() + Owner.c()
    @classmethod
    def c(cls): return key.v + len(cls.__name__)
class Node: pass
def ring():
    a, b = Node(), Node()
    a.o, b.o, a.k = b, a, key
    return a
"""
BODIES = [
    "return x + read()",
    "return x + sum([read() for _ in range(2)])",
    "return x + len(by_name) + by_name['k'].v + weakref.ref(key)().v",
    "return x + inner_functions()()",
    "return x + sum(1 for _ in produces())",
    "return x + decorated(2) + Owner().m() + Owner().p",
    "return x + module.q() + eval('key.v + read()')",
    "return x + ring().o.o.k.v",
    "y = x + read(); gc.isenabled(); return y + read() + key.v",
    "raise ValueError(x + read())",
    "d = {'k': key}; d['d'] = d; return x + d['d']['k'].v + functools.partial(read)()",
    "with context() as k: return x + k.v + read()",
    "return f(x, n - 1) + 1 if n else x + read()",
]


@pytest.fixture
def _no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def program(body):
    module = types.ModuleType("watched")
    exec(f"{SETUP}\ndef f(x, n=2):\n    {body}\n", vars(module))
    return module


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.usefixtures("_no_collector")
def test_a_compile_leaves_no_cycle_that_holds_objects(body):
    made = program(body)
    run = torchsmith_tracer.compile(made.f, backend="eager")
    for _ in range(2):  # the second compile, for another key, as well
        x = torch.ones(1)
        held = [weakref.ref(made.key), weakref.ref(x)]
        with contextlib.suppress(ValueError):
            run(x)
        del x
        made.key = made.module.key = made.Key()
        assert [ref() for ref in held] == [None, None]
        assert len(made.weak) == len(made.every) == len(made.by_name) == 0
        made.weak[made.key] = 5
        made.every.add(made.key)
        made.by_name["k"] = made.key


@pytest.mark.usefixtures("_no_collector")
def test_a_failed_compile_leaves_no_cycle():
    def backend(gm, example_inputs):
        raise ValueError

    made = program("return x + read()")
    held = weakref.ref(made.key)
    with pytest.raises(torchsmith_tracer.errors.BackendError):
        torchsmith_tracer.compile(made.f, backend=backend)(torch.ones(1))
    made.key = made.module.key = None
    assert held() is None
