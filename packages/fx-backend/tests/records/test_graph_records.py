"""Records of graphs: stages, kernels with bytes and lines, the cache's verdict, both halves."""

import json
import logging

import pytest
import torch
import torchsmith_fx_backend as backend
from torchsmith_fx_backend._src import cached, driver
from torchsmith_fx_backend._src.runtime.launchers import KernelRequest
from torchsmith_fx_backend.errors import StageError
from torchsmith_guards import FakeMode, LocalSource, ShapeEnv, records

X, Y = torch.randn(64, 8), torch.randn(64, 8)


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    for name in ("TORCHSMITH_TRACE", "TORCHSMITH_DEBUG", "TORCHSMITH_LOGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    records.clear_metrics()
    yield


def graph_of(fn):
    return torch.fx.symbolic_trace(fn)


def softmax_of_sum(a, b):
    return torch.softmax(a + b, -1) @ b.t()


def last():
    return records.metrics().graphs[-1]


def test_kernels_are_told_with_their_bytes():
    backend.smith(graph_of(softmax_of_sum), [X, Y])
    told = last()
    assert (told.backend, told.kind, told.outcome) == ("smith", "inference", "compiled")
    (kernel,) = told.kernels
    assert (kernel.language, kernel.device, kernel.launches) == ("c", "cpu", 1)
    assert kernel.bytes == told.bytes == 3 * X.nbytes, "two inputs read, one buffer written"
    assert told.externs >= 1 and kernel.ops
    assert 0 < told.peak_bytes <= told.eager_peak_bytes + (1 << 16)
    names = [p.name for p in told.phases if p.depth == 0 and not p.name.startswith("pass ")]
    assert names == ["cache", "capture", "passes", "schedule", "build"]
    (build,) = [p for p in told.phases if p.name == "build"]
    inner = [p for p in told.phases if p.name == "compile C"]
    assert all(p.depth == build.depth + 1 and p.seconds <= build.seconds for p in inner)


def test_symbolic_sizes_have_no_number_of_bytes():
    for cache in ("miss", "hit"):
        fake = FakeMode(ShapeEnv()).fakeify(X, LocalSource("a"), {0})
        backend.smith(graph_of(lambda a: a * 2), [fake])
        assert [k.bytes for k in last().kernels] == [None] and last().bytes is None
        assert last().cache == cache


def test_a_cache_hit_tells_what_the_miss_told():
    made = backend.smith(graph_of(softmax_of_sum), [X, Y])
    first = last()
    assert (first.cache, first.cache_reason) == ("miss", "absent")
    again = backend.smith(graph_of(softmax_of_sum), [X, Y])
    second = last()
    assert second.cache == "hit" and second.graph_id > first.graph_id
    for name in ("kernels", "externs", "bytes", "peak_bytes", "eager_peak_bytes", "ops"):
        assert getattr(second, name) == getattr(first, name), name
    assert [p.name for p in second.phases] == ["cache"]
    assert records.metrics().counters["cache"] == {"miss": 1, "hit": 1}
    torch.testing.assert_close(again(X, Y), made(X, Y))


def test_a_hit_without_a_record_still_names_its_kernels(monkeypatch):
    monkeypatch.setattr(cached, "dump", lambda told: b"{}")
    for _ in range(2):
        backend.smith(graph_of(softmax_of_sum), [X, Y])
    assert last().cache == "hit" and len(last().kernels) == 1


def test_texts_are_told_also_after_a_hit(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path / "trace"))
    for _ in range(2):
        backend.smith(graph_of(softmax_of_sum), [X, Y])
    (trace,) = records.read_trace(tmp_path / "trace")
    missed, hit = trace.graphs
    assert (missed.cache, hit.cache) == ("miss", "hit")
    for told in (missed, hit):
        assert "def forward" in told.texts["graph"] and "kernel_0" in told.texts["wrapper"]
        assert [k.name for k in told.kernels if k.name in k.source] == [told.kernels[0].name]
    assert "softmax" in missed.texts["functional"] or "exp" in missed.texts["functional"]


def test_the_log_of_code_is_printed_after_a_hit(caplog):
    with caplog.at_level(logging.DEBUG, logger="torchsmith.code"):
        for _ in range(2):
            backend.smith(graph_of(softmax_of_sum), [X, Y])
    texts = [r.getMessage() for r in caplog.records if r.name == "torchsmith.code"]
    assert len(texts) == 4 and texts[:2] == texts[2:], "wrapper and kernel, each time"


@pytest.mark.parametrize(
    "options, logger, reason",
    [
        ({"graph_cache": False}, None, "graph_cache is off"),
        ({}, "torchsmith.schedule", "TORCHSMITH_LOGS wants the stages schedule"),
    ],
)
def test_a_bypass_says_why(options, logger, reason, caplog):
    with caplog.at_level(logging.DEBUG, logger=logger or "torchsmith.none"):
        backend.smith(graph_of(softmax_of_sum), [X, Y], options=options)
    assert last().cache == "bypass" and reason in last().cache_reason


def test_both_halves_of_a_training_step_are_told():
    w = torch.randn(8, 8, requires_grad=True)
    compiled = backend.smith(graph_of(lambda x, w: torch.tanh(x @ w).sum()), [X, w])
    (forward,) = records.metrics().graphs
    assert (forward.kind, forward.outcome) == ("forward", "compiled")
    assert {"joint", "passes", "schedule", "build"} <= {p.name for p in forward.phases}
    (out,) = torch.utils._pytree.tree_leaves(compiled(X, w))
    out.backward()
    forward, backward = records.metrics().graphs
    assert backward.kind == "backward" and backward.graph_id > forward.graph_id
    assert backward.kernels and backward.ops > 0


def test_fallbacks_and_failures_say_why(monkeypatch):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("lost")

    monkeypatch.setattr(driver, "functionalize", fail)
    with pytest.raises(StageError):
        backend.smith(graph_of(softmax_of_sum), [X, Y], strict=True)
    assert (last().outcome, last().failure) == ("failed", "StageError")
    backend.smith(graph_of(softmax_of_sum), [X, Y], strict=False)
    told = last()
    assert (told.outcome, told.failure) == ("eager", "StageError")
    assert "ZeroDivisionError: lost" in told.reason
    w = torch.randn(8, 8, requires_grad=True)
    backend.smith(graph_of(lambda x, w: x @ w), [X, w], training="eager")
    assert last().outcome == "eager" and "operator by operator" in last().reason


def test_a_refused_kernel_is_a_restart(monkeypatch):
    real, calls = driver.build, []

    def build(plan, **kwargs):
        calls.append(plan)
        if len(calls) == 1:
            step = next(s for s in plan.steps if isinstance(s, driver.Launch))
            request = KernelRequest(step.kernel, step.device, step.origins)
            raise driver.KernelFailedError([(request, ValueError("cannot be printed"))])
        return real(plan, **kwargs)

    monkeypatch.setattr(driver, "build", build)
    backend.smith(graph_of(softmax_of_sum), [X, Y], strict=False)
    told = last()
    assert len(told.restarts) == 1 and "cannot be printed" in told.restarts[0]
    assert told.restart_seconds > 0 and told.outcome == "compiled"
    assert [p.name for p in told.phases].count("schedule") == 2


def test_a_kernel_that_cannot_be_built_is_made_of_smaller_ones(monkeypatch):
    """Compilers have faults that large kernels meet."""
    real, most = driver.build, [40]

    def build(plan, **kwargs):
        launches = [s for s in plan.steps if isinstance(s, driver.Launch)]
        large = [s for s in launches if len(s.kernel.body) > most[0]]
        requests = [KernelRequest(s.kernel, s.device, s.origins) for s in large]
        if requests:
            raise driver.KernelFailedError([(r, ValueError("too large")) for r in requests])
        return real(plan, **kwargs)

    def program(x, y):
        for _ in range(12):
            x = (x + y).sin() * torch.softmax(x, -1)
            y = y.cos() - x.sum(-1, keepdim=True)
        return x, y

    monkeypatch.setattr(driver, "build", build)
    for most[0], by_aten in ((40, False), (3, True)):
        compiled = backend.smith(graph_of(program), [X, Y], strict=False, graph_cache=False)
        torch.testing.assert_close(compiled(X, Y), program(X, Y))
        told = last()
        assert told.restarts and told.outcome == "compiled"
        assert bool(told.externs) == by_aten


def test_the_kept_record_is_small_and_has_no_source(tmp_path):
    backend.smith(graph_of(softmax_of_sum), [X, Y])
    (file,) = (tmp_path / "cache").rglob("record.json")
    row = json.loads(file.read_text())
    assert file.stat().st_size < 2000 and row["kernels"][0]["source"] == ""
