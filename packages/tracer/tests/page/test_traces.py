"""The page of a trace folder: the same as that of a call, for all frames of all processes."""

import json
import sys
import warnings
from pathlib import Path

import pytest
import torch
import torchsmith_tracer
from torchsmith_tracer._src.page import traces
from torchsmith_tracer.errors import TracerWarning

sys.path.insert(0, str(Path(__file__).parent))
from reading import Page, states  # noqa: E402


def helper(x):
    return x * 2


def broken(x):
    y = helper(x)
    print("between", flush=True)
    return y + 1


def other(x, n):
    return helper(x) + n


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "trace"
    monkeypatch.setenv("TORCHSMITH_TRACE", str(path))
    return path


def page_of(folder, tmp_path):
    assert torchsmith_tracer.trace_page(folder, tmp_path / "page.html") is True
    return Page((tmp_path / "page.html").read_text("utf-8"))


def test_frames_are_joined_with_their_lines_nodes_and_guards(folder, tmp_path, capsys):
    compiled = [torchsmith_tracer.compile(fn) for fn in (broken, other)]
    compiled[0](torch.ones(3))
    for n in ("a", "bb"):
        compiled[1](torch.ones(3), len(n))
    assert compiled[0]._torchsmith_region.log.frames[0].details is None
    page = page_of(folder, tmp_path)
    assert page.errors == []
    data = page.data
    assert [p["function"] for p in data["pieces"]] == ["broken", "broken", "other", "other"]
    assert [f["function"] for f in data["phases"]] == [p["function"] for p in data["pieces"]]
    assert data["problems"] == []
    (file,) = data["files"]
    first = helper.__code__.co_firstlineno
    found = states(data, "test_traces.py")
    assert found[first + 1] == found[first + 5] == found[first + 11] == "captured"
    assert found[first + 6] == "broken"
    text = {n: line for s in file["spans"] for n, line in enumerate(s["lines"], s["first"])}
    assert text[first + 1].strip() == "return x * 2"
    # Each piece's nodes lead to lines of the joined files.
    for piece in data["pieces"]:
        for node in piece["nodes"]:
            (*_, (number, line)) = data["stacks"][node[3]]
            assert number == 0 and text[line].strip().startswith(("return", "y ="))
    (note,) = data["recompiles"]
    assert note["at"] == [0, first + 11]


def test_frames_without_texts_and_lines_that_are_cut_off(folder, tmp_path):
    torchsmith_tracer.compile(helper)(torch.ones(3))
    (path,) = folder.glob("*.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row.get("texts", {}).pop("page", None)
    path.write_text("\n".join(map(json.dumps, rows)) + '\n{"type": "frame", "comp')
    data = page_of(folder, tmp_path).data
    assert data["pieces"] == [] and len(data["problems"]) == 1
    assert [f["function"] for f in data["phases"]] == ["helper"]


def test_many_frames_are_cut_and_said_so(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_FRAMES", 2)
    for n in range(4):
        torchsmith_tracer.compile(lambda x: x + 1)(torch.ones(3))
    data = page_of(folder, tmp_path).data
    assert len(data["pieces"]) == 2 and data["problems"] == ["2 more frames are not shown"]


def test_a_page_that_fails_costs_a_program_nothing_but_a_warning(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHSMITH_STRICT", "0")
    monkeypatch.setattr(traces, "model", lambda *args: 1 / 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = torchsmith_tracer.compile(helper)(torch.ones(3))
    assert torch.equal(out, torch.full((3,), 2.0))
    monkeypatch.undo()
    assert [f["function"] for f in page_of(folder, tmp_path).data["phases"]] == ["helper"]


def test_no_folder_and_no_place_to_write(folder, tmp_path):
    with pytest.raises(FileNotFoundError):
        torchsmith_tracer.trace_page(tmp_path / "nothing", tmp_path / "page.html")
    torchsmith_tracer.compile(helper)(torch.ones(3))
    with pytest.warns(TracerWarning, match="TS-T909"):
        assert torchsmith_tracer.trace_page(folder, tmp_path) is False
