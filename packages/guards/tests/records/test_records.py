"""Records, the ring buffer, counters, times, trace files and tables."""

import dataclasses
import json
import os
import threading

import pytest
import torch
from torchsmith_guards import records
from torchsmith_guards.records import (
    FrameRecord,
    GraphRecord,
    KernelRecord,
    Phase,
    RecompileReason,
    Recorder,
    TraceWarning,
    read_trace,
)


@pytest.fixture
def recorder(monkeypatch):
    for name in ("TORCHSMITH_TRACE", "TORCHSMITH_DEBUG", "TORCHSMITH_METRICS"):
        monkeypatch.delenv(name, raising=False)
    return Recorder()


REASON = RecompileReason("0/0", "x.size(0)", "3", "5", "a.py:7", "a branch", "mark it")
FULL_FRAME = FrameRecord(
    "0/1",
    "f",
    "/tmp/ü\udcff.py",
    7,
    phases=(Phase("trace", 0.0, 0.5), Phase("guards", 0.5, 0.25, 1)),
    graph_ids=(1, 2),
    guards=3,
    break_={"id": "TS-T001", "what": "print", "file": "a.py", "line": 1, "advice": "do not"},
    recompiled=(REASON,),
    texts={"user": "def f(): ..."},
)
FULL_GRAPH = GraphRecord(
    4, "0/1", kernels=(KernelRecord("k_1", "c", "cpu", 2, 64, ("add",), ("a.py:1",), "void k"),)
)


@pytest.mark.parametrize("record", [FULL_FRAME, FULL_GRAPH, FrameRecord("1/0")])
def test_records_turn_into_json_and_back(record):
    text = json.dumps(record.to_json())
    assert type(record).from_json(json.loads(text)) == record
    assert type(record).from_json({**json.loads(text), "from_the_future": 1}) == record


@pytest.mark.parametrize(
    "limit, expected", [(64, 64), (3, 3), (0, 0), (200, 100)], ids=["default", "3", "none", "all"]
)
def test_the_latest_records_are_kept(recorder, limit, expected):
    recorder.set_limit(limit)
    for number in range(100):
        with recorder.frame(FrameRecord(f"{number}/0")):
            pass
    kept = recorder.metrics().frames
    assert [f.compile_id for f in kept] == [f"{n}/0" for n in range(100 - expected, 100)]
    recorder.set_limit(1)
    assert len(recorder.metrics().frames) == min(expected, 1)
    assert len(kept) == expected, "what was read is a copy"


def test_a_negative_limit_is_refused(recorder):
    with pytest.raises(ValueError):
        recorder.set_limit(-1)


def test_counters_have_two_levels_and_stay_until_cleared(recorder):
    assert recorder.metrics().counter("anything", "at all") == 0
    recorder.count("cache", "hit")
    recorder.count("cache", "hit", 2)
    recorder.count("cache", "miss")
    assert recorder.metrics().counters == {"cache": {"hit": 3, "miss": 1}}
    recorder.clear()
    assert recorder.metrics().counters == {}


def test_phases_go_to_the_record_under_way_also_when_they_raise(recorder):
    with pytest.raises(KeyError):
        with recorder.frame(FrameRecord("0/0", "f")) as frame:
            with recorder.phase("backend"):
                with recorder.graph(GraphRecord(7)) as graph:
                    with recorder.phase("capture"):
                        with recorder.phase("inner"):
                            raise KeyError("lost\nsecond line")
    assert [(p.name, p.depth) for p in frame.phases] == [("backend", 0)]
    assert [(p.name, p.depth) for p in graph.phases] == [("capture", 0), ("inner", 1)]
    assert graph.compile_id == "0/0" and frame.graph_ids == (7,)
    for record in (frame, graph):
        assert (record.outcome, record.failure) == ("failed", "KeyError")
        assert record.reason == r"'lost\nsecond line'"
        assert all(0 <= p.start and p.start + p.seconds <= record.seconds for p in record.phases)
    metrics = recorder.metrics()
    assert [*metrics.times] == ["inner", "capture", "graph in all", "backend", "frame in all"]
    assert metrics.counter("frames", "failed") == metrics.counter("frames", "total") == 1


def test_threads_do_not_mix_their_records(recorder):
    inside, done = threading.Barrier(2), []

    def work(name):
        with recorder.frame(FrameRecord(name)) as frame:
            inside.wait(10)
            with recorder.phase(name):
                inside.wait(10)
        done.append((name, [p.name for p in frame.phases]))

    threads = [threading.Thread(target=work, args=(name,)) for name in ("a", "b")]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert sorted(done) == [("a", ["a"]), ("b", ["b"])]


def test_times_as_text_csv_and_one_line(recorder):
    assert recorder.metrics().compile_times("csv") == ([], [])
    for name, spent in (("trace", (0.5, 0.25)), ("build", (1.0,))):
        recorder._times[name] = list(spent)
    metrics = recorder.metrics()
    text = metrics.compile_times()
    assert text.startswith("Compile times (s)\n") and "0.5000, 0.2500" in text
    assert "0.7500" in metrics.compile_times(aggregate=True)
    assert metrics.compile_times("csv", aggregate=True) == (
        ["trace", "build"],
        ["0.750000", "1.000000"],
    )
    assert metrics.time_report() == "TIMING: trace:0.75000 build:1.00000"
    with pytest.raises(ValueError, match="text, csv"):
        metrics.compile_times("html")


def test_a_running_profiler_sees_ranges_named_after_the_function(recorder):
    with torch.profiler.profile() as profile:
        with recorder.frame(FrameRecord("3/1", "my_function")):
            with recorder.phase("trace"):
                pass
    names = {event.key for event in profile.key_averages()}
    assert {"torchsmith compile my_function [3/1]", "torchsmith trace"} <= names


# --- trace files --------------------------------------------------------------------------------
def test_a_trace_is_read_back(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path / "new" / "folder"))
    with recorder.frame(dataclasses.replace(FULL_FRAME)):
        with recorder.graph(dataclasses.replace(FULL_GRAPH, compile_id="")):
            pass
    recorder.at_exit()
    (trace,) = read_trace(tmp_path / "new" / "folder")
    assert trace.process["format"] == 1 and trace.process["pid"] == os.getpid()
    assert [f.texts for f in trace.frames] == [{"user": "def f(): ..."}]
    assert trace.graphs_of(trace.frames[0]) == trace.graphs
    assert trace.graphs[0].kernels == FULL_GRAPH.kernels
    assert trace.counters["frames"] == {"total": 1} and trace.skipped == 0


def test_damaged_lines_are_counted_and_skipped(tmp_path):
    lines = [
        json.dumps({"type": "process", "format": 1, "started": 2.0}),
        json.dumps({"type": "frame", "compile_id": "0/0"}),
        json.dumps({"type": "something new"}),
        '{"type": "frame", "compile_',
        "[]",
        "\x00\x01",
    ]
    (tmp_path / "1-2.jsonl").write_text("\n".join(lines))
    (tmp_path / "0-1.jsonl").write_text(json.dumps({"type": "process", "started": 1.0}))
    older, trace = read_trace(tmp_path)
    assert [f.compile_id for f in trace.frames] == ["0/0"] and trace.skipped == 3
    assert older.process["started"] == 1.0
    with pytest.raises(FileNotFoundError, match="no trace"):
        (tmp_path / "empty").mkdir()
        read_trace(tmp_path / "empty")


def full_disk(monkeypatch, tmp_path):
    real = os.write

    def write(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    return tmp_path


def file_in_the_way(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "folder"


@pytest.mark.parametrize("make", [full_disk, file_in_the_way])
def test_a_folder_that_cannot_be_written_costs_one_warning(recorder, tmp_path, monkeypatch, make):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(make(monkeypatch, tmp_path)))
    with pytest.warns(TraceWarning, match="no trace in") as caught:
        for number in range(3):
            with recorder.frame(FrameRecord(f"{number}/0")):
                pass
    assert len(caught) == 1 and len(recorder.metrics().frames) == 3


def test_a_fault_of_the_recorder_is_one_warning(recorder, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")
    monkeypatch.setattr(FrameRecord, "to_json", lambda self: 1 / 0)
    monkeypatch.setenv("TORCHSMITH_TRACE", "/nowhere/that/is/opened")
    with pytest.warns(TraceWarning, match="ZeroDivisionError") as caught:
        for number in range(3):
            with recorder.frame(FrameRecord("0/0")):
                pass
    assert len(caught) == 1


def test_a_forked_process_has_a_file_of_its_own(recorder, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_TRACE", str(tmp_path))
    with recorder.frame(FrameRecord("0/0")):
        pass
    child = os.fork()
    if child == 0:
        with recorder.frame(FrameRecord("1/0")):
            pass
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    traces = read_trace(tmp_path)
    assert sorted([f.compile_id for f in t.frames] for t in traces) == [["0/0"], ["1/0"]]
    assert {t.process["pid"] for t in traces} == {os.getpid(), child}


# --- tables -------------------------------------------------------------------------------------
def test_tables_put_numbers_to_the_right():
    text = records.table(("name", "n"), [("a", 1), ("bcd", 100), ("e\nf", None)])
    assert text.splitlines() == ["name    n", "----  ---", "a       1", "bcd   100", "e f     -"]


def test_the_report_tells_breaks_and_recompiles():
    text = records.report([FULL_FRAME], [FULL_GRAPH], {"cache": {"hit": 1}})
    for line in (
        "Frames: 1",
        "Graphs: 1",
        "  [TS-T001] print",
        "  x.size(0): 3 -> 5",
        "    used at a.py:7",
        "    mark it",
    ):
        assert line in text.splitlines()
    assert "cache     hit      1" in text
    assert records.recompiles([]) == "Recompiles: none"


def test_the_exit_report_is_printed_on_request(recorder, monkeypatch, capsys):
    with recorder.frame(FrameRecord("0/0", "f")):
        pass
    recorder.at_exit()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("TORCHSMITH_METRICS", "1")
    recorder.at_exit()
    assert "Frames: 1" in capsys.readouterr().err
