"""Facts that change at every read: a fixed number of compiles, and cheap calls past the limit."""

import collections
import gc
import warnings

import pytest
import torch
import torchsmith_tracer
from torch import nn
from torchsmith_guards import Guard, GuardKind, GuardSet, LocalSource
from torchsmith_tracer._src.breaks.report import FrameReport, Place
from torchsmith_tracer._src.regions.backends import BackendChoice, eager
from torchsmith_tracer._src.regions.record import GIVE_UP, Entry
from torchsmith_tracer._src.regions.region import Region
from torchsmith_tracer._src.settings import Settings
from torchsmith_tracer.errors import InternalTracerError, RecompileLimitWarning, TracerWarning


class Act(nn.Module):
    def forward(self, x):
        return x.relu() + 1


class Fresh(collections.OrderedDict):
    """Makes what is stored at each read, as a table of activation classes does."""

    def __getitem__(self, key):
        return super().__getitem__(key)()


class FreshDefault(collections.defaultdict):
    def __getitem__(self, key):
        return super().__getitem__(key)()


class FreshList(list):
    def __getitem__(self, index):
        return [list.__getitem__(self, index)]


class FreshTuple(tuple):
    def __getitem__(self, index):
        return [tuple.__getitem__(self, index)]


class Makes:
    nan = float("nan")

    @property
    def function(self):
        return lambda x: x * 2

    @property
    def module(self):
        return Act()

    def method(self, x):
        return x * 3

    def __getattr__(self, name):
        if name == "computed":
            return Act()
        raise AttributeError(name)


class NeverEqual:
    k = 2

    def __eq__(self, other):
        return False

    def __hash__(self):
        return 1


MAKES = Makes()
SCALE = torch.arange(3.0)
HELD = {
    "dict": Fresh(relu=Act),
    "default": FreshDefault(int, relu=Act),
    "list": FreshList([SCALE, 2]),
    "tuple": FreshTuple((SCALE, 2)),
    "nan": {float("nan"): 2.0},
    "odd": {NeverEqual(): 3},
}


def by_key(x, held):
    return held["dict"]["relu"](x) + held["default"]["relu"](x)


def by_index(x, held):
    return x * held["list"][0][0] + held["tuple"][1][0]


def by_iteration(x, held):
    for item in held["list"]:
        x = x * item
    for item in held["tuple"]:
        x = x + item
    return x


def by_property(x, held):
    return MAKES.function(x) + MAKES.module(x) + MAKES.computed(x)


def nan_constant(x, held):
    return torch.nan_to_num(x * MAKES.nan) if MAKES.nan != MAKES.nan else x


def nan_key(x, held):
    for _key, value in held["nan"].items():
        x = x * value
    return x


def odd_key(x, held):
    for key, value in held["odd"].items():
        x = x * value * key.k
    return x


def local_class(x, held):
    class Local:
        def run(self, x):
            return x * 2

    return Local().run(x)


PROGRAMS = [
    by_key,
    by_index,
    by_iteration,
    by_property,
    nan_constant,
    nan_key,
    odd_key,
    local_class,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_is_made_at_each_read_is_compiled_once(program):
    run = torchsmith_tracer.compile(program, fullgraph=True)
    for n in range(4):
        x = torch.full((3,), float(n))
        assert torch.equal(run(x, HELD), program(x, HELD))
    assert len(run._torchsmith_region.log.frames) == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: MAKES.method,
        lambda: Makes().method,
        lambda: lambda x: x * 3,
        lambda: Act(),
        lambda: nn.Sequential(Act()),
    ],
)
def test_callables_made_per_call_are_compiled_once(make):
    run = torchsmith_tracer.compile(lambda x, call: call(x), fullgraph=True)
    for n in range(4):
        x, call = torch.full((3,), float(n)), make()
        assert torch.equal(run(x, call), call(x))
    assert len(run._torchsmith_region.log.frames) == 1


def test_limits_count_per_compiled_object():
    def fn(x):
        return x + 1

    for _ in range(3):
        run = torchsmith_tracer.compile(fn, dynamic=False, options={"recompile_limit": 3})
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for size in (2, 3, 4):
                run(torch.ones(size))
        with pytest.warns(RecompileLimitWarning, match="recompile_limit"):
            run(torch.ones(5))


def test_past_the_limit_nothing_is_explained_or_checked_for_long(monkeypatch):
    calls = collections.Counter()

    def fn(box, k=2):
        calls["run"] += 1
        return box.x * k

    run = torchsmith_tracer.compile(fn, options={"recompile_limit": 2})

    def fresh():
        return type("Box", (), {"x": 3})()

    with pytest.warns(RecompileLimitWarning) as caught:
        for _ in range(3):
            assert run(fresh()) == 6
    assert len(caught) == 1 and "options=" in str(caught[0].message)
    record = next(iter(run._torchsmith_region._records.values()))
    for entry in record.entries:
        monkeypatch.setattr(
            entry.checker, "explain", lambda *args: pytest.fail("explained past the limit")
        )
    notes = len(run._torchsmith_region.log.recompiles)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(GIVE_UP + 3):
            assert run(fresh(), k=4) == 12
    assert len(run._torchsmith_region.log.recompiles) == notes
    assert record.entries == []
    assert calls["run"] == GIVE_UP + 6  # once for each call
    torchsmith_tracer.reset()
    assert run(fresh()) == 6
    assert len(record.entries) == 1


def test_entries_that_still_fit_are_used_past_the_limit():
    run = torchsmith_tracer.compile(lambda x: x + 1, dynamic=False, options={"recompile_limit": 2})
    record = next(iter(run._torchsmith_region._records.values()))
    with pytest.warns(RecompileLimitWarning):
        for n in range(3 * GIVE_UP):
            size = 2 if n % 8 == 0 else n + 3
            assert torch.equal(run(torch.ones(size)), torch.full((size,), 2.0))
    assert len(record.entries) == 2


@pytest.mark.parametrize("strict", [False, True])
def test_guards_that_fail_on_what_they_were_made_from_are_our_bug_once(strict, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", str(int(strict)))
    compiles = []

    def compile_frame(record, fn, flat, number):
        compiles.append(flat)
        guards = GuardSet(
            [
                Guard(LocalSource("a"), GuardKind.TYPE, type(flat[0]), "holds"),
                Guard(LocalSource("a"), GuardKind.ID, object(), "cannot hold"),
            ]
        )
        checker = guards.compile(record.parameter_names(), {"F": fn, "G": {}})
        report = FrameReport(record.name, Place("f", 1, "f"))
        return Entry(number, checker, lambda *args: pytest.fail("unguarded code ran"), report)

    def fn(a, *rest, k=1):
        return (a, rest, k)

    region = Region(BackendChoice("eager", eager), Settings(), compile_frame)
    run = region.record(fn).dispatcher(fn)
    if strict:
        with pytest.raises(InternalTracerError, match="TS-T900"):
            run(1)
        return
    with pytest.warns(TracerWarning, match="TS-T900.*do not hold") as caught:
        for n in range(5):
            assert run(n, 7, k=3) == (n, (7,), 3)
        assert run("other") == ("other", (), 1)
    assert len(compiles) == 4 and len(caught) == 2  # one and another try for each type


REGISTRY = {"a": 1}


def test_what_an_operator_changes_while_it_is_traced_is_read_again():
    """As torch's own do that import modules on first use."""
    with torch.library._scoped_library("ts_first_use", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")

        @torch.library.register_fake("ts_first_use::twice", lib=library)
        def _(x):
            REGISTRY["b"] = 2
            return torch.empty_like(x)

        def fn(x):
            known, names = sum(REGISTRY.values()), list(REGISTRY)
            return torch.ops.ts_first_use.twice(x) + known, names

        run = torchsmith_tracer.compile(fn, backend=eager, fullgraph=True)
        for _ in range(3):
            result, names = run(torch.ones(2))
            assert result.tolist() == [5, 5] and names == ["a", "b"]
        log = run._torchsmith_region.log
        assert len(log.frames) == 1 and not log.recompiles


def test_a_version_for_a_size_of_one_is_known_as_such_when_it_is_traced_again():
    """Those do not count towards the limit."""
    with torch.library._scoped_library("ts_grows", "DEF") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        table = {}

        @torch.library.register_fake("ts_grows::twice", lib=library)
        def _(x):
            table[str(type(x.shape[0])) if x.shape[0] != 1 else "one"] = 1
            return torch.empty_like(x)

        def fn(x):
            known = len(table)
            return torch.ops.ts_grows.twice(x) + known

        run = torchsmith_tracer.compile(fn, backend=eager, fullgraph=True)
        record = next(iter(run._torchsmith_region._records.values()))
        for size, edge in ((3, False), (4, False), (1, True)):
            assert run(torch.ones(size)).tolist() == [2.0 + len(table)] * size
            assert record.entries[0].edge is edge


def appended(x, v):
    made = [v]
    made.append(gc.isenabled())
    return x + len(made), made


def looked_up(x, v):
    return x + {"a": v}.get("b", gc.isenabled())


def joined(x, v):
    return x + len(v.join([str(gc.isenabled()), "b"]))


def kept_for_later(x, v):
    made = [v]
    add = made.append
    add(gc.isenabled())
    gc.isenabled()
    add(2)
    return x + len(made), made, add is made.append, add == made.append, add.__self__ is made


@pytest.mark.parametrize("fn", [appended, looked_up, joined, kept_for_later])
def test_a_method_of_a_new_object_that_waits_for_a_break_is_no_other_one(fn):
    compiled = torchsmith_tracer.compile(fn, backend="eager")
    x = torch.ones(2)
    for _ in range(12):
        assert repr(compiled(x, "ab")) == repr(fn(x, "ab"))
    assert len(compiled._torchsmith_region.log.frames) <= 3


class Told(nn.Module):
    """A layer with a break inside, of its own width."""

    def __init__(self, width):
        super().__init__()
        self.scale = 1.0
        self.inner = nn.Linear(width, width + 1)

    def forward(self, x):
        y = self.inner(x)
        torch._dynamo.graph_break()
        return y.relu() * self.scale


@pytest.mark.parametrize("layers", [20, 60])
def test_layers_with_a_break_inside_have_a_version_each_up_to_a_limit(layers):
    net = nn.Sequential(*(Told(width) for width in range(1, layers + 1)))
    compiled = torchsmith_tracer.compile(net, backend="eager")
    x = torch.randn(2, 1)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            torch.testing.assert_close(compiled(x), net(x))
    assert [w.category for w in seen if layers == 20] == []
    frames = len(compiled._torchsmith_region.log.frames)
    torch.testing.assert_close(compiled(x), net(x))
    assert len(compiled._torchsmith_region.log.frames) == frames <= 2 * 4 * 8 + layers


def test_what_changes_within_one_of_several_modules_is_limited_as_ever():
    net = nn.Sequential(Told(1), Told(2))
    compiled = torchsmith_tracer.compile(net, backend="eager")
    x, made = torch.randn(2, 1), []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileLimitWarning)
        for number in range(20):
            net[0].scale = f"{number}".count("1") + number / 7
            torch.testing.assert_close(compiled(x), net(x))
            made.append(len(compiled._torchsmith_region.log.frames))
    assert made[-1] == made[12]
