"""Which form of a kernel wins, what is remembered and what is left out; the device is played."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from loop_reader import read_kernel
from torchsmith_fx_backend._src.codegen.triton.candidates import candidates
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule
from torchsmith_fx_backend._src.loops.index import Sym, const
from torchsmith_fx_backend._src.loops.ir import Position
from torchsmith_fx_backend._src.records.choices import Choice
from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest, LoadedKernel, Unavailable
from torchsmith_fx_backend._src.schedule.plan import Launch
from torchsmith_fx_backend._src.tuning import tuner
from torchsmith_fx_backend._src.tuning.tuner import Tuner
from torchsmith_fx_backend._src.tuning.workload import Workload

CPU = torch.device("cpu")
TABLE, WIDE, TALL = (Config(Schedule.POINTWISE, n) for n in (128, 256, 512))
POINTS = """
@kernel(ranges=({size},), reduce_from=1, args=("float32 read", "float32 written"), symbols={symbols})
def _(a0, a1, i0):
    v0 = load(a0, i0)
    v1 = {op}(v0)
    store(a1, i0, v1)
"""  # noqa: E501
LOOKED_UP = """
@kernel(ranges=(64,), reduce_from=1, args=("int64 read", "float32 read", "float32 written"), symbols=())
def _(a0, a1, a2, i0):
    v0 = load(a0, i0)
    v1 = position(v0, 5, 'IndexError', 'index out of range')
    v2 = load(a1, at(v1))
    store(a2, i0, v2)
"""  # noqa: E501
ROWS = """
@kernel(ranges=(8, 64), reduce_from=1, args=("float32 read", "float32 written"), symbols=())
def _(a0, a1, i0, i1):
    v0 = load(a0, 64 * i0 + i1)
    v1 = reduce_sum(v0)
    store(a1, i0, v1)
"""


def step(text=POINTS, size=64, lengths=None, device=CPU, **fields):
    kernel = read_kernel(text.format(size=size, **{"op": "exp", "symbols": (), **fields}))
    lengths = [const(64)] * len(kernel.args) if lengths is None else lengths
    return Launch(kernel, tuple("xyz"[: len(kernel.args)]), device, ("line",), tuple(lengths))


class Launcher:
    """Makes kernels whose launch says which form it is of."""

    def __init__(self, *configs, wrong=()):
        self.configs, self.wrong, self.compiled = configs, wrong, 0
        self.machine = "a machine"

    def candidates(self, kernel, sizes, device):
        return self.configs, self.machine

    def attempt(self, requests, cache):
        self.compiled += len(requests)
        return [
            ValueError("does not compile")
            if r.config in self.wrong
            else LoadedKernel("key", "name", "text", lambda *arguments, own=r.config: own, None)
            for r in requests
        ]


class Stopwatch:
    """Reads off a table how long a form takes; a list is gone through time after time."""

    def __init__(self, seconds, clock=None, reason=""):
        self.seconds, self.clock, self.reason = seconds, clock, reason
        self.measured, self.closed = [], 0

    def __call__(self, device):
        return self

    def obstacle(self, size):
        return self.reason

    def close(self):
        self.closed += 1

    def rounds(self, runs, count):
        if self.clock is not None:
            self.clock.now += 1
        found = []
        for run in runs:
            config = run()
            self.measured.append(config)
            given = self.seconds[config]
            if isinstance(given, Exception):
                raise given
            given = given if isinstance(given, list) else [given]
            found.append([given[n % len(given)] for n in range(count)])
        return found


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "cache")


@pytest.fixture
def tune(monkeypatch, cache):
    """Tunes some launches; ``seconds`` is by form, or a stopwatch."""

    def run(launcher, seconds, *steps, budget=10.0, hints=(), clock=Clock()):  # noqa: B008
        monkeypatch.setattr(tuner, "launcher_for", lambda device: launcher)
        watch = Stopwatch(seconds) if isinstance(seconds, dict) else seconds
        made = Tuner(budget, dict(hints), clock=clock, stopwatch=watch)
        steps = steps or (step(),)
        requests = [KernelRequest(s.kernel, s.device, s.origins) for s in steps]
        tuned, choices = made.tune(requests, [[s] for s in steps], cache)
        assert [replace(r, config=None) for r in tuned] == requests
        return [r.config for r in tuned], choices, made.complete

    return run


US = 1e-6


@pytest.mark.parametrize(
    ("seconds", "wrong", "config", "text"),
    [
        ({TABLE: 20 * US, WIDE: 10 * US, TALL: 30 * US}, (), WIDE, "2.00x as fast as the table's"),
        ({TABLE: 10 * US, WIDE: 20 * US, TALL: 30 * US}, (), None, "as the table says; 3 measured"),
        ({TABLE: 10 * US, WIDE: 9.9 * US, TALL: 9.8 * US}, (), None, "as the table says"),  # noise
        ({TABLE: 10 * US, WIDE: 9 * US, TALL: [1 * US, 12 * US, 13 * US]}, (), WIDE, "9.0 us"),
        ({TABLE: 10 * US, WIDE: [9 * US, 9 * US, 9 * US, 1.0], TALL: 9.5 * US}, (), WIDE, "1.11x"),
        ({TABLE: 20 * US, TALL: 10 * US}, (WIDE,), TALL, "2 measured, 1 failed"),
        ({TABLE: 20 * US, WIDE: RuntimeError("launch"), TALL: 10 * US}, (), TALL, "1 failed"),
        ({WIDE: 20 * US, TALL: 10 * US}, (TABLE,), TALL, "x_block=128 num_warps=4 does not run"),
        ({TABLE: 20 * US}, (WIDE, TALL), None, "as the table says; 1 measured, 2 failed"),
        ({}, (TABLE, WIDE, TALL), None, "not measured: none of 3 configurations runs"),
    ],
)
def test_the_fastest_wins(tune, seconds, wrong, config, text):
    (found,), (choice,), complete = tune(Launcher(TABLE, WIDE, TALL, wrong=wrong), seconds)
    assert found == config and complete
    assert text in str(choice)


def test_what_is_hopeless_is_measured_no_more(tune):
    watch = Stopwatch({TABLE: 50 * US, WIDE: 10 * US, TALL: 50 * US})
    tune(Launcher(TABLE, WIDE, TALL), watch)
    assert [watch.measured.count(c) for c in (TABLE, WIDE, TALL)] == [2, 2, 1]


def test_a_choice_is_measured_once(tune, cache):
    launcher = Launcher(TABLE, WIDE)
    first = tune(launcher, {TABLE: 20 * US, WIDE: 10 * US})
    known = launcher.compiled
    nothing = Stopwatch({})  # would raise
    assert tune(launcher, nothing) == first
    assert tune(launcher, nothing, budget=0.0) == first
    assert (launcher.compiled, nothing.closed) == (known, 0)
    again = {TABLE: 10 * US, WIDE: 20 * US}
    for other in (step(op="sin"), step(lengths=[const(64), const(80)])):
        assert tune(launcher, again, other)[0] == [None]
    launcher.machine = "another machine"
    assert tune(launcher, again)[0] == [None]


def test_what_was_damaged_is_measured_again(tune, cache):
    launcher, seconds = Launcher(TABLE, WIDE), {TABLE: 20 * US, WIDE: 10 * US}
    first = tune(launcher, seconds)
    for file in cache.root.rglob("choice.json"):
        file.write_text("{}")
    watch = Stopwatch(seconds)
    assert tune(launcher, watch) == first
    assert watch.measured


def test_when_time_is_over_the_rest_waits_for_the_next_process(tune):
    small, large = step(), step(op="sin", lengths=[const(640)] * 2)
    launcher, seconds = Launcher(TABLE, WIDE), {TABLE: 20 * US, WIDE: 10 * US}
    clock = Clock()
    watch = Stopwatch(seconds, clock)
    found, choices, complete = tune(launcher, watch, small, large, budget=1.0, clock=clock)
    assert found == [None, WIDE], "what moves most bytes comes first"
    assert "the time for it was over" in str(choices[0]) and not complete
    assert watch.closed == 1
    assert tune(launcher, seconds, small, large)[0] == [WIDE, WIDE]


@pytest.mark.parametrize(
    ("launch", "hints", "reason"),
    [
        (step(size="s0", symbols=("s0",), lengths=[Sym("s0")] * 2), {}, "depend on data"),
        (step(lengths=[const(0), const(64)]), {}, "depend on data"),
        (step(lengths=[]), {}, "depend on data"),
    ],
)
def test_what_cannot_be_measured_stays_as_it_is(tune, launch, hints, reason):
    watch = Stopwatch({})
    found, (choice,), complete = tune(Launcher(TABLE, WIDE), watch, launch, hints=hints)
    assert found == [None] and complete
    assert reason in str(choice)


def test_symbols_are_measured_at_their_hint(tune, monkeypatch):
    seen = []
    launcher = Launcher(TABLE, WIDE)
    monkeypatch.setattr(
        launcher, "candidates", lambda k, sizes, d: seen.append(sizes) or (launcher.configs, "")
    )
    symbolic = step(size="s0", symbols=("s0",), lengths=[Sym("s0")] * 2)
    found = tune(launcher, {TABLE: 2 * US, WIDE: US}, symbolic, hints={"s0": 77, "s1": 5})
    assert (found[0], seen) == ([WIDE], [{"s0": 77}])


def test_obstacles_leave_the_table_for_now(tune):
    found, (choice,), complete = tune(
        Launcher(TABLE, WIDE), Stopwatch({}, reason="too little memory is free")
    )
    assert found == [None] and not complete
    assert str(choice) == "not measured: too little memory is free"


@pytest.mark.parametrize("error", [Unavailable("no triton"), torch.OutOfMemoryError("full")])
def test_faults_leave_the_table(tune, monkeypatch, error):
    launcher = Launcher(TABLE, WIDE)

    def fail(*given):
        raise error

    monkeypatch.setattr(launcher, "attempt", fail)
    watch = Stopwatch({})
    found, (choice,), _ = tune(launcher, watch)
    assert found == [None] and str(error) in str(choice)
    assert watch.closed == 1


def test_order_of_addition_stays_where_results_must_repeat(tune):
    launcher, seconds = Launcher(TABLE, WIDE), {TABLE: 20 * US, WIDE: 10 * US}
    torch.use_deterministic_algorithms(True)
    try:
        found, choices, _ = tune(
            launcher, seconds, step(ROWS, lengths=[const(512), const(8)]), step()
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert found == [None, WIDE]
    assert "deterministic" in str(choices[0])


def test_logs_name_every_form(tune, caplog):
    with caplog.at_level(logging.DEBUG, "torchsmith.tuning"):
        tune(Launcher(TABLE, WIDE, TALL, wrong=(TALL,)), {TABLE: 20 * US, WIDE: 10 * US})
    lines = caplog.messages[0].splitlines()
    assert lines[0] == "# line"
    assert [line.split()[0] for line in lines[1:]] == ["10.0", "20.0", "failed"]


def test_choices_survive_their_journey_through_the_cache():
    for choice in (Choice(reason="why"), Choice(WIDE, 1.0, TABLE, 2.0, 3, 1), Choice(WIDE, 1.0)):
        assert Choice.from_json(choice.to_json()) == choice


def test_buffers_are_fresh_and_positions_lie_inside():
    state = torch.get_rng_state()
    launch = step(LOOKED_UP, lengths=[const(64), const(5), const(64)])
    work = Workload.of(launch, {})
    assert work is not None and work.bytes == 64 * 8 + 5 * 4 + 64 * 4
    where, table, out = work.buffers()
    assert torch.equal(torch.get_rng_state(), state)
    assert (where.dtype, table.shape, out.abs().max()) == (torch.int64, (5,), 0)
    assert set(where.tolist()) == set(range(5)), "no place is left out, none is outside"
    (position,) = [n for n in work.kernel.body if isinstance(n, Position)]
    assert position.fault is None and launch.kernel.faults


@pytest.mark.parametrize("text", [POINTS, LOOKED_UP, ROWS])
def test_candidates_are_a_few_and_the_table_is_first(text):
    kernel = step(text, lengths=()).kernel
    found = candidates(kernel, {})
    assert 1 < len(found) == len(set(found)) <= 12
    for config in found:
        numbers = (config.x_block, config.y_block, config.r_block, config.num_warps)
        assert all(n > 0 and n & (n - 1) == 0 for n in numbers)
        assert Config.from_json(config.to_json()) == config
