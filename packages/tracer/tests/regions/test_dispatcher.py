"""Dispatchers: the user's signature, entries tried in order, misses; no tracing involved."""

import inspect
import threading
import weakref

import pytest
import torch
from torchsmith_guards import Guard, GuardKind, GuardSet, LocalSource
from torchsmith_tracer._src.breaks.report import FrameReport, Place
from torchsmith_tracer._src.regions.backends import BackendChoice, eager
from torchsmith_tracer._src.regions.record import Entry
from torchsmith_tracer._src.regions.region import Region
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer.errors import RecompileLimitError, RecompileLimitWarning

compiled_kinds = []


def compile_frame(record, fn, flat, number):
    """Stands for tracing: entries are guarded by the type of ``a`` and tag the native result."""
    kind = type(flat[0])
    compiled_kinds.append(kind)
    name = record.signature.names[0]
    guards = GuardSet([Guard(LocalSource(name), GuardKind.TYPE, kind, "test")])
    checker = guards.compile(record.parameter_names(), {"F": fn, "G": {}})

    def body(*args):
        if record.pass_function:
            fn, *rest = args
            return (kind.__name__, record.native(fn, rest))
        return (kind.__name__, record.native(original, args))

    original = fn
    report = FrameReport(record.name, Place("f", 1, "f"))
    return Entry(number, checker, body, report)


def make_region(**options):
    return Region(BackendChoice("eager", eager), Settings(**options), compile_frame)


@pytest.fixture
def compiles():
    compiled_kinds.clear()
    return compiled_kinds


def every_kind(a, b=2, /, c=3, *args, d, e=5, **kwargs):
    return (a, b, c, args, d, e, kwargs)


def test_signature_is_the_users(compiles):
    fn = make_region().record(every_kind).dispatcher(every_kind)
    parameters = inspect.signature(fn).parameters
    expected = inspect.signature(every_kind).parameters
    assert [(p.name, p.kind, p.default) for p in parameters.values()] == [
        (p.name, p.kind, p.default) for p in expected.values()
    ]
    assert fn(1, d=4) == ("int", every_kind(1, d=4))
    assert fn(1, 7, 8, 9, 10, d=4, e=6, z=1) == (
        "int",
        every_kind(1, 7, 8, 9, 10, d=4, e=6, z=1),
    )
    with pytest.raises(TypeError, match="required keyword-only argument: 'd'"):
        fn(1)
    assert compiles == [int]


def test_hits_do_not_compile_and_misses_add_entries(compiles):
    def f(a):
        return a

    fn = make_region().record(f).dispatcher(f)
    assert [fn(1), fn("x"), fn(2), fn("y")] == [("int", 1), ("str", "x"), ("int", 2), ("str", "y")]
    assert compiles == [int, str]


def test_bound_first_parameter(compiles):
    class Box:
        def method(self, a, b=1):
            return (self, a, b)

    box = Box()
    guarded = Box.method
    record = make_region().record(guarded)
    fn = record.dispatcher(guarded, box)
    assert list(inspect.signature(fn).parameters) == ["a", "b"]

    def star(*a):
        return a

    record = make_region().record(star)
    fn = record.dispatcher(star, box)
    assert fn(1) == ("tuple", (box, 1))


def test_closures_share_entries_but_not_cells(compiles):
    def make(k):
        def inner(a):
            return a + k

        return inner

    region = make_region()
    one, ten = make(1), make(10)
    first, second = region.record(one).dispatcher(one), region.record(ten).dispatcher(ten)
    assert region.record(one) is region.record(ten)
    assert first(1) == ("int", 2)
    assert compiles == [int]
    # The second function is dispatched by the same entry (its guards say nothing of cells here).
    assert second(1)[0] == "int"
    assert compiles == [int]


def test_parameter_names_of_the_dispatcher_itself(compiles):
    def f(a, F, miss, check_0, body_0):
        return (a, F, miss, check_0, body_0)

    fn = make_region().record(f).dispatcher(f)
    assert fn(1, 2, 3, 4, 5) == ("int", (1, 2, 3, 4, 5))
    assert fn(2, 2, 3, 4, 5) == ("int", (2, 2, 3, 4, 5))


def test_recompile_limit_warns_once_then_runs_eagerly(compiles):
    def f(a):
        return a

    fn = make_region(recompile_limit=2).record(f).dispatcher(f)
    fn(1), fn("x")
    with pytest.warns(RecompileLimitWarning, match="recompile_limit"):
        assert fn(1.5) == 1.5
    assert fn(2.5) == 2.5
    assert fn(2) == ("int", 2)
    assert compiles == [int, str]


def test_recompile_limit_can_fail(compiles):
    def f(a):
        return a

    region = make_region(recompile_limit=1, fail_on_recompile_limit=True)
    fn = region.record(f).dispatcher(f)
    fn(1)
    with pytest.raises(RecompileLimitError, match="TS-T904"):
        fn("x")


def test_recompile_reason_names_old_and_new(compiles):
    def f(a):
        return a

    region = make_region()
    fn = region.record(f).dispatcher(f)
    fn(1), fn("x")
    (note,) = region.log.recompiles
    assert "int" in str(note) and "str" in str(note)


def test_reset_forgets(compiles):
    def f(a):
        return a

    region = make_region()
    fn = region.record(f).dispatcher(f)
    fn(1)
    region.reset()
    fn(1)
    assert compiles == [int, int]


def test_code_dies_with_its_owner(compiles):
    def f(a):
        return a

    region = make_region()
    fn = region.record(f).dispatcher(f)
    fn(1)
    dead = weakref.ref(region)
    del fn, region
    import gc

    gc.collect()
    assert dead() is None


def test_threads_compile_once(compiles):
    def f(a):
        return a

    fn = make_region().record(f).dispatcher(f)
    barrier = threading.Barrier(4)
    out = []

    def work():
        barrier.wait()
        out.append(fn(3))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert out == [("int", 3)] * 4
    assert compiles == [int]


def test_region_call_compiles_what_is_below(compiles):
    def f(a):
        return a

    region = make_region()
    assert region.call(f, 1) == ("int", 1)
    assert region.call(max, 1, 2) == 2

    class Made:
        def __init__(self, a):
            self.a = a

    made = region.call(Made, 4)
    assert type(made) is Made and made.a == 4


def test_region_leaves_library_code_alone():
    region = make_region()
    assert region.compiled(inspect.signature) is inspect.signature
    assert region.compiled(torch.nn.functional.relu) is torch.nn.functional.relu
    assert region.compiled(len) is len


def test_functions_found_in_compiled_code_are_not_kept(compiles):
    region = make_region()

    def make(held):
        def inner(a):
            return a, held

        return inner

    class Held:
        pass

    first = make(None)
    region.compiled(first)(0)  # the stand-in for tracing above keeps its function
    held = Held()
    inner = make(held)
    assert region.compiled(inner)(1) == ("int", (1, held))
    assert region.compiled(inner) is region.compiled(inner)
    refs = [weakref.ref(held), weakref.ref(inner)]
    del held, inner
    assert [ref() for ref in refs] == [None, None]


def test_classes_made_per_call_share_code_in_the_end(compiles):
    region = make_region(recompile_limit=3)

    def make():
        class Local(torch.nn.Module):
            def forward(self, x):
                return x

        return Local()

    made = [make() for _ in range(20)]  # alive: the collector would make room for more
    with pytest.warns(RecompileLimitWarning):
        for local in made:
            region.compiled(local.forward)(1)
    # Three classes have code of their own; all others share one record, with its limit for as many
    # modules as are counted apart.
    assert len(compiles) == 3 + 4 * 3
