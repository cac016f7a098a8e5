"""After a compile only what the compiled code needs is alive: no argument, module or exception."""

import configparser
import contextlib
import functools
import gc
import threading
import types
import weakref

import pytest
import torch
import torchsmith_tracer
from torch import nn
from torchsmith_tracer import errors


class Box:
    """An object that holds others."""

    def __init__(self, **fields):
        vars(self).update(fields)


def compiled(fn, **options):
    return torchsmith_tracer.compile(fn, **options)


def gb():
    """A graph break."""
    return gc.isenabled()


def plain(b):
    return b.x * 2


def nested(b):
    return b.inner["k"][0].x + b.items[1]


def stores(b):
    b.last = b.x + 1
    b.items.append(b.last)
    return b.last


def broken(b):
    y = b.x + 1
    gb()
    return y * b.x


def calls_method(b):
    gb()
    return b.method(b.x)


def twice(b):
    return b.same[0].x + b.same[1].x if b.same[0] is b.same[1] else b.x


def raising(b):
    y = b.x + 1
    raise ValueError(y.shape)


def failing_op(b):
    return b.x @ torch.ones(77, 78)


def backward(b):
    return (b.x * b.x).sum()


def closes_over(b):
    def inner(y):
        return b.x * y

    gb()
    return inner(b.x)


def make_box(grad):
    x = torch.ones(5, requires_grad=grad)
    inner = Box(x=x)
    box = Box(x=x, inner={"k": [inner]}, items=[x, x + 1], same=[inner, inner])
    box.method = types.MethodType(lambda self, v: v + self.x, box)
    return box


PROGRAMS = [
    plain,
    nested,
    stores,
    broken,
    calls_method,
    twice,
    raising,
    failing_op,
    backward,
    closes_over,
]


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_no_argument_outlives_its_call(program, grad):
    run = compiled(program)
    box = make_box(grad)
    held = [weakref.ref(o) for o in (box, box.x, box.inner["k"][0], box.items[1])]
    try:
        run(box)
    except (ValueError, RuntimeError):
        assert program in (raising, failing_op)
    # The box holds itself through its bound method, so that the collector is needed for it.
    del box
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)
    assert run._torchsmith_region.log.frames


@pytest.mark.parametrize("grad", [False, True])
def test_an_argument_is_freed_with_its_last_reference(grad):
    run = compiled(lambda x, items: x * 2 + items[0])
    x = torch.ones(5, requires_grad=grad)
    held = weakref.ref(x)
    gc.collect()
    gc.disable()
    try:
        run(x, [x])
        del x
        assert held() is None
    finally:
        gc.enable()


def test_recompiles_keep_no_input():
    run = compiled(lambda x: x + 1, dynamic=False)
    held = []
    for size in range(2, 8):
        x = torch.ones(size)
        held.append(weakref.ref(x))
        run(x)
    del x
    assert [ref() for ref in held] == [None] * len(held)
    assert len(run._torchsmith_region.log.frames) == 6


def test_symbolic_sizes_keep_no_input():
    run = compiled(lambda x, n: x.view(-1, n) + x.shape[0], dynamic=True)
    held = []
    for size in (4, 6):
        x = torch.ones(size)
        held.append(weakref.ref(x))
        run(x, 2)
    del x
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_gradients_are_freed():
    run = compiled(lambda p, x: (p * x).sum())
    p = nn.Parameter(torch.ones(3))
    x = torch.ones(3)
    run(p, x).backward()
    held = [weakref.ref(o) for o in (p, p.grad, x)]
    del p, x
    gc.collect()
    assert [ref() for ref in held] == [None] * 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.LayerNorm(3)])
        self.register_buffer("scale", torch.ones(3))
        self.config = Box(k=2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale * self.config.k


class BrokenNet(Net):
    def forward(self, x):
        x = self.layers[0](x)
        gb()
        return self.layers[1](x) * self.scale


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("make", [Net, BrokenNet])
def test_a_module_dies_with_its_compiled_form(make, train):
    net = make()
    run = compiled(net)
    out = run(torch.ones(2, 3))
    if train:
        out.sum().backward()
    tensors = [*net.parameters(), *net.buffers()]
    held = [weakref.ref(o) for o in (net, *net.modules(), *tensors, net.config)]
    held += [weakref.ref(p.grad) for p in net.parameters() if p.grad is not None]
    assert len(held) > 10 or not train
    # Module and compiled form know each other: the collector takes both.
    del net, run, out, tensors
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def test_modules_that_are_arguments_are_not_held():
    run = compiled(lambda m, x: m(x))
    net = Net()
    run(net, torch.ones(2, 3))
    held = [weakref.ref(o) for o in (net, *net.parameters(), net.config)]
    del net
    gc.collect()
    assert [ref() for ref in held] == [None] * len(held)


def test_what_a_compiled_function_closes_over_dies_with_it():
    def make(box):
        def fn(x):
            return x * box.x

        return fn, compiled(fn), [weakref.ref(o) for o in (box, box.x, fn)]

    fn, run, held = make(make_box(True))
    run(torch.ones(5))
    assert all(ref() is not None for ref in held)
    del fn, run
    gc.collect()
    assert [ref() for ref in held] == [None] * 3


def test_functions_made_per_call_are_freed():
    held = []

    @compiled
    def run(x):
        def inner(y):
            return y * x

        gb()
        held.append(weakref.ref(inner))
        return functools.reduce(lambda a, b: a + b, [inner(x)])

    for _ in range(5):
        run(torch.ones(2))
    gc.collect()
    assert [ref() for ref in held] == [None] * 5


def test_a_backend_dies_with_the_compiled_function():
    class Backend:
        def __call__(self, gm, example_inputs):
            assert all(isinstance(x, torch.Tensor) for x in example_inputs)
            return gm.forward

    backend = Backend()
    held = weakref.ref(backend)
    run = compiled(lambda x: x + 1, backend=backend)
    x = torch.ones(2)
    inputs = weakref.ref(x)
    run(x)
    del x
    assert inputs() is None
    del backend, run
    gc.collect()
    assert held() is None


def test_reports_are_data():
    explanation = torchsmith_tracer.explain(broken)(box := make_box(False))
    held = [weakref.ref(box), weakref.ref(box.x)]
    del box
    gc.collect()
    assert [ref() for ref in held] == [None, None]
    assert explanation.graph_count == 2 and explanation.break_count == 1
    assert "gb" in str(explanation)


def test_an_exception_holds_no_more_than_its_traceback():
    run = compiled(raising)
    box = make_box(False)
    held = [weakref.ref(box.x), weakref.ref(box.inner["k"][0])]
    with pytest.raises(ValueError) as info:
        run(box)
    assert info.value.__context__ is None and info.value.__cause__ is None
    del box, info
    gc.collect()
    assert [ref() for ref in held] == [None, None]


@pytest.mark.parametrize("problem", ["raises", "returns None"])
def test_a_failed_compile_holds_nothing(problem):
    def backend(gm, example_inputs):
        if problem == "raises":
            raise ValueError("no")

    run = compiled(plain, backend=backend)
    box = make_box(True)
    held = [weakref.ref(box), weakref.ref(box.x)]
    with pytest.raises(errors.BackendError):
        run(box)
    del box
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def test_a_refused_break_holds_nothing():
    run = compiled(broken, fullgraph=True)
    box = make_box(True)
    held = [weakref.ref(box), weakref.ref(box.x)]
    with pytest.raises(errors.FullGraphError):
        run(box)
    del box
    gc.collect()
    assert [ref() for ref in held] == [None, None]


def _raises_through_a_lock(x, fails, lock=threading.Lock()):  # noqa: B008
    with lock:
        y = x * 2
        if fails:
            raise ValueError("inside")
    return y


def _lacks_an_attribute(x, fails):
    return x * (types.SimpleNamespace() if fails else x).shape[0]


@pytest.mark.parametrize("fn", [_raises_through_a_lock, _lacks_an_attribute])
def test_what_raises_is_freed_at_once(fn):
    run = compiled(fn)
    for fails in (False, True, True):
        x = torch.ones(3)
        held = weakref.ref(x)
        gc.disable()
        try:
            with contextlib.suppress(ValueError, AttributeError):
                run(x, fails)
            del x
            assert held() is None
        finally:
            gc.enable()


def test_no_garbage_is_collected_while_tracing():
    def fn(x):
        for _ in range(1500):
            x = x + 1
        return x

    # The backend is called after the trace, and is not what is watched.
    collections, counting = [], [True]

    def backend(gm, example_inputs):
        counting.clear()
        return gm.forward

    def watch(phase, info):
        if counting and phase == "start":
            collections.append(info["generation"])

    run = compiled(fn, backend=backend)
    gc.collect()
    gc.callbacks.append(watch)
    try:
        run(torch.ones(1))
    finally:
        gc.callbacks.remove(watch)
    # Reading the code and making the body still may collect; the trace makes 100,000 objects.
    assert len(collections) < 20
    assert gc.isenabled()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_as_it_was_after_a_compile(enabled):
    def fails(gm, example_inputs):
        raise ValueError(gc.isenabled())

    if not enabled:
        gc.disable()
    try:
        compiled(lambda x: x + 1)(torch.ones(1))
        assert gc.isenabled() is enabled
        with pytest.raises(errors.BackendError, match=str(enabled)):
            compiled(lambda x: x + 1, backend=fails)(torch.ones(1))
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def layers(x):
    for _ in range(200):
        x = x.sin() * 2
    return x


def layers_around_a_break(x):
    x = layers(x)
    gb()
    return layers(x)


@pytest.mark.parametrize("program", [layers, layers_around_a_break])
@pytest.mark.parametrize("grad", [False, True])
def test_later_calls_make_no_pass_over_what_a_compile_has_made(program, grad):
    function, x = compiled(program, backend="eager"), torch.ones(3, requires_grad=grad)
    expected = program(x)
    torch.testing.assert_close(expected, program(x))  # imports
    gc.collect()
    for _ in range(3):
        torch.testing.assert_close(function(x), expected)
        assert sum(len(gc.get_objects(generation=n)) for n in (0, 1)) < 1000


def _breaks(x):
    y = x * 2
    gb()
    return y + 1


def _breaks_in_a_loop(x):
    def made():
        return x

    for _ in range(2):
        x = x * 2 + made()
        gb()
    return x


def _breaks_in_a_handler(x):
    try:
        y = x * 2
        gb()
    except ValueError:
        return x
    return y


def _branches(x):
    return x + 1 if x.sum() > 0 else x - 1


def _raises(x):
    x.add_(1)
    return {}["k"]


@pytest.mark.parametrize(
    "fn", [_breaks, _breaks_in_a_loop, _breaks_in_a_handler, _branches, _raises]
)
def test_compiled_code_dies_with_its_owner(fn):
    held = []

    def backend(gm, example_inputs):
        held.append(weakref.ref(gm))
        return gm.forward

    run = compiled(fn, backend=backend)
    for _ in range(2):
        with contextlib.suppress(KeyError):
            run(torch.ones(3))
    held.append(weakref.ref(run._torchsmith_region))
    assert len(held) > 1 and all(ref() is not None for ref in held)
    del run
    gc.collect()
    assert not [ref() for ref in held if ref() is not None]


class Carrying(Exception):
    """An exception with a tensor."""

    def __init__(self, x):
        self.x = x


def _raises_again_after_a_break(x):
    try:
        raise Carrying(x * 2)
    except Carrying:
        gb()
        raise


def _raises_from_a_library(x):
    return x * configparser.ConfigParser().getfloat("section", "name")


@pytest.mark.parametrize("fn", [_raises_again_after_a_break, _raises_from_a_library])
def test_exceptions_and_arguments_are_freed_without_the_collector(fn):
    run = compiled(fn)
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            x = torch.ones(3)
            held = [weakref.ref(x)]
            try:
                run(x)
            except Exception as e:
                if isinstance(e, Carrying):
                    held += [weakref.ref(e), weakref.ref(e.x)]
            del x
            assert not [ref() for ref in held if ref() is not None]
    finally:
        gc.enable()


def _dead_after_a_break(x, keep, alive):
    y = x + 1
    keep(y)
    z = y * 2
    keep(z)
    del y
    found = [alive()]
    w = z + 1
    z = None
    found.append(alive())
    keep(w)
    w = w + 1
    return found, alive()


def _dead_in_a_callee(x, keep, alive):
    def inner(x):
        y = keep(x * 2)
        x = y + 1
        del y
        return x, alive()

    found = []
    for _ in range(3):
        x, there = inner(x)
        found.append((there, alive()))
    rows = [keep(x + i) for i in range(2)]
    rows.pop()
    found.append(alive())
    rows.clear()
    return found, alive()


@pytest.mark.parametrize("fn", [_dead_after_a_break, _dead_in_a_callee])
def test_what_is_dead_is_freed_before_the_function_goes_on(fn):
    def run(f):
        made = []

        @torchsmith_tracer.disable
        def keep(t):
            made.append(weakref.ref(t))
            return t

        @torchsmith_tracer.disable
        def alive():
            return [ref() is not None for ref in made]

        return f(torch.ones(3), keep, alive)

    own = compiled(fn, backend="eager")
    for _ in range(3):
        assert run(own) == run(fn)
