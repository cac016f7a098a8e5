"""Records of real compiles: what a user can ask after a call."""

import gc
import inspect
import linecache
import warnings
import weakref

import pytest
import torch
import torchsmith_tracer as tracer
from torchsmith_guards import records
from torchsmith_tracer.errors import BackendError, FullGraphError, TracerWarning

X = torch.ones(4, 3)


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    for name in ("TORCHSMITH_TRACE", "TORCHSMITH_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    tracer.clear_metrics()
    yield
    tracer.set_metrics_limit(64)


def line_of(fn, text):
    """``file:line`` of the only line of ``fn`` that has ``text``."""
    lines, first = inspect.getsourcelines(fn)
    (found,) = [n for n, line in enumerate(lines) if text in line]
    return f"{fn.__code__.co_filename}:{first + found}"


def plain(x):
    y = x + 1
    return y * 2


def test_one_call_is_one_frame_and_one_graph():
    tracer.compile(plain)(X)
    metrics = tracer.metrics()
    (frame,), (graph,) = metrics.frames, metrics.graphs
    assert frame.function == "plain" and frame.file == __file__
    assert frame.line == plain.__code__.co_firstlineno and not frame.resumed
    assert (frame.ops, frame.inputs, frame.outputs, frame.nodes) == (2, 1, 1, 4)
    assert (graph.ops, graph.inputs, graph.outputs, graph.nodes) == (2, 1, 1, 4)
    assert (frame.outcome, graph.outcome, graph.backend) == ("compiled", "compiled", "eager")
    assert frame.graph_ids == (graph.graph_id,) and graph.compile_id == frame.compile_id
    assert frame.guards >= 2 and frame.shape_guards == 0 and frame.versions == 1
    assert [p.name for p in frame.phases] == ["trace", "backend", "guards"]
    assert sum(p.seconds for p in frame.phases) <= frame.seconds
    assert 0 < frame.check_seconds < frame.seconds
    assert metrics.counters["frames"] == {"total": 1, "ok": 1}
    assert metrics.counters["stats"] == {"calls_captured": 2, "unique_graphs": 1}
    assert frame.texts == {} and graph.texts == {}, "texts are kept only for a folder"


def test_a_call_that_compiles_nothing_leaves_no_trace():
    compiled = tracer.compile(plain)
    compiled(X)
    before = tracer.metrics()
    for _ in range(3):
        compiled(X)
    assert tracer.metrics() == before


def test_breaks_are_told_with_their_frames():
    def sized(x):
        if x.sum() > 0:
            return x + 1
        return x - 1

    tracer.compile(sized)(X)
    first, rest = tracer.metrics().frames
    assert (first.function, first.resumed, rest.resumed) == (sized.__qualname__, False, True)
    assert first.break_["line"] == int(line_of(sized, "if x.sum()").rpartition(":")[2])
    (reason,) = tracer.metrics().counters["graph_break"]
    assert reason.startswith(f"[{first.break_['id']}]")
    assert f"Graph breaks: 1\n  {reason}" in str(tracer.metrics())


# --- recompiles: program, two calls, value, old, new, text of the line, word of the hint --------
def by_size(x, k):
    y = x + 1
    return y * k


def by_number(x, k):
    y = x.sin()
    return y * k


def by_branch(x, k):
    if x.shape[0] > 5:
        return x + 1
    return x - 1


SCALE = 2.0


def by_global(x, k):
    y = x + 1
    return y * SCALE


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mode = "a"

    def forward(self, x, k):
        y = x + 1
        return y if self.mode == "a" else -y


def rescale(value):
    globals()["SCALE"] = value
    return X, 1


LAYER = Layer()


def remode(value):
    LAYER.mode = value
    return X, 1


RECOMPILES = [
    (by_size, lambda: (X, 1), lambda: (X[:2], 1), "x.size(0)", "4", "2", "x + 1", "mark_dynamic"),
    (by_size, lambda: (X, 1), lambda: (X.double(), 1), "x.dtype", "torch.float32", "torch.float64",
     "x + 1", "convert"),
    (by_number, lambda: (X, 2), lambda: (X, 3), "k", "2", "3", "y * k", "symbolic"),
    (by_number, lambda: (X, 2), lambda: (X, "a"), "k", "2", "a", "y * k", "constant"),
    (by_global, lambda: rescale(2.0), lambda: rescale(3.0), "SCALE", "2.0", "3.0", "SCALE",
     "symbolic"),
    (LAYER, lambda: remode("a"), lambda: remode("b"), "self.mode", "a", "b", "self.mode",
     "constant"),
    (LAYER, lambda: (X, 1), lambda: (X[:2], 1), "x.size(0)", "4", "2", "x + 1", "mark_dynamic"),
]  # fmt: skip


@pytest.mark.parametrize(
    "fn, first, second, value, old, new, where, hint",
    RECOMPILES,
    ids=[f"{row[3]}-{row[5]}" for row in RECOMPILES],
)
def test_a_recompile_is_told_in_the_users_terms(fn, first, second, value, old, new, where, hint):
    compiled = tracer.compile(fn)
    compiled(*first())
    try:
        compiled(*second())
    except TypeError:
        assert new == "a"  # a string times a tensor raises, after it was compiled
    frame = tracer.metrics().frames[-1]
    (reason,) = frame.recompiled
    assert (reason.value, reason.old, reason.new) == (value, old, new)
    code = fn.forward if isinstance(fn, torch.nn.Module) else fn
    assert reason.line == line_of(code, where)
    plain_code = code.__code__ if hasattr(code, "__code__") else code
    assert (frame.function, frame.file) == (plain_code.co_qualname, __file__)
    assert hint in reason.hint
    assert reason.version == tracer.metrics().frames[0].compile_id
    text = tracer.metrics().recompile_summary()
    assert f"  {value}: {old} -> {new}" in text and f"    used at {reason.line}" in text


def test_a_branch_on_sizes_names_its_line():
    compiled = tracer.compile(by_branch, dynamic=True)
    compiled(X, 1)
    compiled(torch.ones(8, 3), 1)
    (reason,) = tracer.metrics().frames[-1].recompiled
    assert reason.line == line_of(by_branch, "if x.shape[0] > 5")
    assert "x.size(0) <= 5" in reason.old


def test_versions_and_the_limit_are_told():
    compiled = tracer.compile(by_number, dynamic=False, options={"recompile_limit": 3})
    with pytest.warns(TracerWarning, match="recompile_limit"):
        for k in range(5):
            compiled(X, k)
    frames = tracer.metrics().frames
    assert [f.versions for f in frames] == [1, 2, 3] and {f.limit for f in frames} == {3}
    assert [len(f.recompiled) for f in frames] == [0, 1, 2]
    text = tracer.metrics().recompile_summary()
    assert "k: 0 -> 1 -> 2" in text and "compiled again 2 times, limit 3 versions" in text


# --- failures -------------------------------------------------------------------------------------
def test_failures_are_records_too():
    def refuse(gm, inputs):
        raise ValueError("cannot\nand more")

    with pytest.raises(BackendError):
        tracer.compile(plain, backend=refuse)(X)
    frame, graph = tracer.metrics().frames[-1], tracer.metrics().graphs[-1]
    assert (frame.outcome, frame.failure) == ("failed", "BackendError")
    assert (graph.outcome, graph.backend) == ("failed", "refuse")
    assert "ValueError: cannot" in graph.reason

    def broken(x):
        y = x + 1
        return y.sum().item()

    with pytest.raises(FullGraphError):
        tracer.compile(broken, fullgraph=True)(X)
    frame = tracer.metrics().frames[-1]
    assert (frame.outcome, frame.failure) == ("failed", "FullGraphError")
    assert frame.failure_line == line_of(broken, ".item()")
    assert tracer.metrics().counter("frames", "failed") == 2


def test_a_frame_that_runs_eagerly_says_why():
    with pytest.warns(TracerWarning):
        tracer.compile(
            plain,
            backend=lambda gm, inputs: 1 / 0,
            options={"suppress_backend_errors": True},
        )(X)
    (frame,) = tracer.metrics().frames
    assert frame.outcome == "eager" and "ZeroDivisionError" in frame.note


def test_records_do_not_change_what_a_failure_of_ours_does(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")
    from torchsmith_tracer._src.records import frames

    monkeypatch.setattr(frames, "_finish", lambda *a: 1 / 0)
    monkeypatch.setattr(records.recorder, "_warned", False)
    with pytest.warns(records.TraceWarning, match="ZeroDivisionError"):
        result = tracer.compile(plain)(X)
    assert torch.equal(result, plain(X))


# --- custom operators, texts, lifetimes -----------------------------------------------------------
def test_custom_operators_are_listed():
    lib = torch.library.Library("ts_metrics", "FRAGMENT")
    lib.define("marked(Tensor x) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    lib.define("unmarked(Tensor x) -> Tensor")
    for name in ("marked", "unmarked"):
        lib.impl(name, lambda x: x + 1, "CompositeExplicitAutograd")
        torch.library.register_fake(f"ts_metrics::{name}", lambda x: x + 1, lib=lib)

    def f(x):
        return torch.ops.ts_metrics.marked(x) + torch.ops.ts_metrics.unmarked.default(x)

    tracer.compile(f)(X)
    (frame,) = tracer.metrics().frames
    assert [n.partition(".")[2].split(".")[0] for n in frame.custom_ops] == ["marked", "unmarked"]
    assert [n.partition(".")[2].split(".")[0] for n in frame.unmarked_ops] == ["unmarked"]


def test_a_trace_holds_sources_and_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path))
    tracer.compile(plain)(X)
    (trace,) = records.read_trace(tmp_path)
    (frame,), (graph,) = trace.frames, trace.graphs
    assert frame.texts["user"] == inspect.getsource(plain)
    assert "def check" in frame.texts["guards"] and "def plain_body" in frame.texts["body"]
    assert "def forward" in graph.texts["graph"]
    assert set(graph.lines.values()) == {line_of(plain, "x + 1"), line_of(plain, "y * 2")}


@pytest.mark.parametrize("make", ["lambda x: x + 1", "eval('lambda x: x + 1')"])
def test_code_without_a_file_is_recorded(make, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path))
    monkeypatch.delitem(linecache.cache, "<string>", raising=False)  # of ``python -c``, from 3.13
    space = {}
    exec(f"f = {make}", space)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tracer.compile(space["f"])(X)
    (trace,) = records.read_trace(tmp_path)
    assert trace.frames[0].file == "<string>" and trace.frames[0].texts["user"] == ""


def test_records_keep_nothing_of_the_users_alive():
    layer = Layer()
    x = torch.ones(3)
    alive = weakref.ref(layer), weakref.ref(x)
    compiled = tracer.compile(layer)
    compiled(x, 1)
    layer.mode = "b"
    compiled(x, 1)
    assert len(tracer.metrics().frames) == 2
    del layer, x, compiled
    gc.collect()
    assert [ref() for ref in alive] == [None, None]


def test_thousands_of_frames_leave_the_latest():
    space = {}
    for number in range(200):
        exec(f"def f{number}(x): return x + {number}", space)
        tracer.compile(space[f"f{number}"])(X)
    kept = tracer.metrics()
    names = [f.function for f in kept.frames]
    assert len(kept.frames) + len(kept.graphs) == 64 and names[-1] == "f199"
    assert kept.counter("frames", "total") == 200


def test_calls_are_ranges_of_the_profiler_on_request(monkeypatch):
    monkeypatch.setenv("TORCHSMITH_RANGES", "1")
    compiled = tracer.compile(plain)
    compiled(X)
    with torch.profiler.profile() as profile:
        result = compiled(X)
    assert torch.equal(result, plain(X))
    label = f"plain [{tracer.metrics().frames[0].compile_id}]"
    assert [e.count for e in profile.key_averages() if e.key == label] == [1]
    monkeypatch.delenv("TORCHSMITH_RANGES")
    bare = tracer.compile(plain)
    bare(X)
    with torch.profiler.profile() as profile:
        bare(X)
    assert not [e for e in profile.key_averages() if "plain" in e.key]


def test_the_report_says_none_where_there_is_nothing():
    tracer.compile(plain)(X)
    text = str(tracer.metrics())
    assert "Graph breaks: none" in text and "Recompiles: none" in text


@pytest.mark.parametrize("limit, told", [(2, True), (8, False)])
def test_the_report_advises_on_the_limit(limit, told):
    compiled = tracer.compile(by_number, dynamic=False, options={"recompile_limit": limit})
    for k in range(2):
        compiled(X, k)
    text = tracer.metrics().recompile_summary()
    assert (f"options={{'recompile_limit': {4 * limit}}}" in text) == told


def test_a_stance_that_refuses_says_what_the_record_says():
    compiled = tracer.compile(by_size)
    compiled(X, 1)
    with tracer.set_stance("fail_on_recompile"), pytest.raises(Exception) as refused:
        compiled(X[:2], 1)
    compiled(X[:2], 1)
    (reason,) = tracer.metrics().frames[-1].recompiled
    assert f"{reason.value}: expected {reason.old}, got {reason.new}" in str(refused.value)
    assert reason.hint in str(refused.value)
