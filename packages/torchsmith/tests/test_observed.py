"""What a user of the front door can observe of the backend, call after call."""

import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchsmith
from torchsmith_fx_backend._src import modes
from torchsmith_tracer.errors import UnknownOptionError


@pytest.fixture(autouse=True)
def fresh(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    torchsmith.reset()
    torchsmith.clear_metrics()
    yield
    torchsmith.set_metrics_limit(64)


def counter(*names):
    return torchsmith.metrics().counter(*names)


# ------------------------------------------------------------------------------- training


def test_a_step_compiles_each_half_once():
    def loss(a):
        return (torch.sin(a) * a).sum()

    compiled = torchsmith.compile(loss)
    for step in range(3):
        mine = (torch.randn(6) * (step + 1)).requires_grad_()
        theirs = mine.detach().clone().requires_grad_()
        compiled(mine).backward()
        loss(theirs).backward()
        torch.testing.assert_close(mine.grad, theirs.grad)
    told = torchsmith.metrics()
    assert [(g.kind, g.outcome) for g in told.graphs] == [
        ("forward", "compiled"),
        ("backward", "compiled"),
    ]
    assert told.counter("graphs", "total") == 2


# ------------------------------------------------------------------------ writes and aliases


def write_one(a, b):
    a.add_(1)
    return a * 2


def write_and_read(a, b):
    a.add_(1)
    return a * 2 + b


def write_both(a, b):
    a.add_(1)
    b.mul_(2)
    return a - b


BASE = torch.arange(12.0)
PAIRS = {
    "apart": lambda: (BASE.clone(), torch.ones(12)),
    "the same": lambda: (BASE.clone(),) * 2,
    "neighbours": lambda: BASE.clone().split(6),
    "overlapping": lambda: (lambda x: (x[:8], x[4:]))(BASE.clone()),
    "a transpose of it": lambda: (lambda x: (x, x.t()))(BASE.clone().view(3, 4)[:, :3]),
}


@pytest.mark.parametrize("fn", [write_one, write_and_read, write_both])
def test_a_written_argument_is_written_once(fn):
    """However the arguments share memory, and whatever way they did so in the call before."""
    compiled = torchsmith.compile(fn)
    for name in (*PAIRS, *reversed(PAIRS)):
        mine, theirs = PAIRS[name](), PAIRS[name]()
        torch.testing.assert_close(compiled(*mine), fn(*theirs))
        torch.testing.assert_close(mine, theirs)
        assert [x._version for x in mine] == [x._version for x in theirs], name


def test_results_are_the_inputs_and_views_that_eager_gives():
    def fn(a):
        turned = a.t()
        a.add_(1)
        return a, turned, a[1:].view(-1), a.expand(2, *a.shape)

    compiled = torchsmith.compile(fn)
    for rows in (3, 3, 5, 4):
        mine = torch.arange(rows * 4.0).view(rows, 4)
        theirs = mine.clone()
        got, want = compiled(mine), fn(theirs)
        assert got[0] is mine
        for a, b in zip(got, want):
            torch.testing.assert_close(a, b)
            assert (a.stride(), a.storage_offset()) == (b.stride(), b.storage_offset())
            assert a.untyped_storage().data_ptr() == mine.untyped_storage().data_ptr()
        got[1].zero_()
        assert not mine.any()


def test_channels_last_stays_channels_last():
    compiled = torchsmith.compile(lambda x: (x * 2 + 1).relu().sin() * x)
    for shape in ((2, 3, 4, 5), (2, 3, 4, 5), (3, 3, 5, 4)):
        for layout in (torch.channels_last, torch.contiguous_format):
            x = torch.randn(shape).to(memory_format=layout)
            assert compiled(x).stride() == x.stride()
            assert compiled(x).is_contiguous(memory_format=layout)


# ------------------------------------------------------------------------------- compiles


def test_one_compile_for_many_sizes():
    def fn(x):
        return F.softmax(x.sin() + x.shape[0], 0)

    compiled = torchsmith.compile(fn, dynamic=True)
    for size in (3, 5, 9, 3):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), fn(x))
    assert [g.outcome for g in torchsmith.metrics().graphs] == ["compiled"]


def plain(x):
    return (x.sin() + 1).softmax(-1)


@pytest.mark.parametrize("training", [False, True])
def test_a_compile_after_a_reset_comes_from_the_cache(training):
    for misses, hits in ((1, 0), (1, 1), (1, 2)):
        x = torch.randn(7, 13, requires_grad=training)
        result = torchsmith.compile(plain)(x)
        torch.testing.assert_close(result, plain(x))
        if training:
            result.square().sum().backward()
        halves = 1 + training
        assert counter("cache", "miss") == misses * halves
        assert counter("cache", "hit") == hits * halves
        torchsmith.reset()


def test_without_the_cache_nothing_is_found_or_missed():
    for number in (1, 2):
        compiled = torchsmith.compile(plain, options={"graph_cache": False})
        x = torch.randn(7, 13)
        torch.testing.assert_close(compiled(x), plain(x))
        assert counter("cache", "miss") == counter("cache", "hit") == 0
        assert counter("cache", "bypass") == number
        torchsmith.reset()


def test_a_compile_leaves_random_numbers_alone():
    def draw():
        return torch.rand(3).tolist(), random.random(), np.random.rand()

    def seed():
        torch.manual_seed(3), random.seed(3), np.random.seed(3)

    seed()
    wanted = [draw() for _ in range(4)]
    seed()
    compiled = torchsmith.compile(lambda a, w: F.layer_norm(a @ w, (4,)).exp())
    found = [draw()]
    with torch.no_grad():
        compiled(torch.ones(2, 4), torch.ones(4, 4))
    found.append(draw())
    compiled(torch.ones(2, 4), torch.ones(4, 4, requires_grad=True)).sum().backward()
    found.append(draw())
    compiled(torch.ones(5, 4), torch.ones(4, 4))
    assert [*found, draw()] == wanted


# ------------------------------------------------------------------------- options and modes


@pytest.mark.parametrize(
    ("wrong", "name", "known"),
    [({"options": {"speed": 1}}, "speed", "graph_cache"), ({"mode": "fast"}, "fast", "default")],
    ids=["option", "mode"],
)
def test_what_is_no_option_is_an_error_that_lists_those_there_are(wrong, name, known):
    for _ in range(2):
        with pytest.raises(UnknownOptionError, match=f"'{name}'.*valid: .*{known}") as caught:
            torchsmith.compile(plain, **wrong)(torch.ones(3))
        assert isinstance(caught.value, RuntimeError)
        torch.testing.assert_close(torchsmith.compile(plain)(torch.ones(3)), plain(torch.ones(3)))


def test_reduce_overhead_on_a_cpu_runs_and_is_counted():
    modes.not_recorded.cache_clear()
    compiled = torchsmith.compile(plain, mode="reduce-overhead")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for size in (3, 3, 3):
            x = torch.randn(size, 4)
            torch.testing.assert_close(compiled(x), plain(x))
    assert counter("recordings", "skipped") == len(said) == 1


# --------------------------------------------------------------------------------- reports


def test_times_of_a_compile():
    assert torchsmith.metrics().compile_times("csv") == ([], [])
    torchsmith.compile(plain)(torch.ones(3, 3))
    told = torchsmith.metrics()
    names, seconds = told.compile_times("csv")
    assert len(names) == len(seconds) and {"trace", "capture", "schedule", "build"} <= {*names}
    assert all(name in told.compile_times() for name in names)
    assert all(float(each) >= 0 for each in told.compile_times("csv", aggregate=True)[1])


@pytest.mark.parametrize(("limit", "kept"), [(4, ["f1", "f2"]), (2, ["f2"]), (0, [])])
def test_the_latest_compiles_are_kept(limit, kept):
    """A frame and its graph are a record each."""
    torchsmith.set_metrics_limit(limit)
    for number in range(3):
        space = {}
        exec(f"def f{number}(x): return x * {number} + 1", space)
        torchsmith.compile(space[f"f{number}"])(torch.ones(3))
    told = torchsmith.metrics()
    assert [frame.function for frame in told.frames] == kept
    assert len(told.graphs) == len(kept)
    assert told.counter("graphs", "total") == 3


def test_a_report_names_breaks_and_recompiles():
    assert "Graph breaks: none" in str(torchsmith.metrics())
    assert "Recompiles: none" in str(torchsmith.metrics())

    def fn(x, scale):
        y = x + 1
        if y.sum() > 0:
            y = y * scale
        return y

    compiled = torchsmith.compile(fn, options={"recompile_limit": 2}, dynamic=False)
    for scale in (2, 3):
        torch.testing.assert_close(compiled(torch.ones(3), scale), torch.full((3,), 2.0 * scale))
    text, (reason,) = str(torchsmith.metrics()), torchsmith.metrics().counters["graph_break"]
    assert f"Graph breaks: 1\n  {reason}" in text
    assert "scale: 2 -> 3" in text and "{'recompile_limit': 8}" in text
