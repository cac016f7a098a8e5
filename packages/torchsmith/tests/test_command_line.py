"""The command line: exit codes, JSON, and what each command tells."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from torchsmith._src.commands import COMMANDS, env, main

PROGRAM = """
import torch, torchsmith

@torchsmith.compile
def f(x, k):
    y = x.sin()
    return (y * k).sum()

for rows, k in ((3, 2), (4, 2), (4, 5)):
    f(torch.ones(rows, 2), k)
"""


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchsmith", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env})


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that a program's process has traced into."""
    folder = tmp_path_factory.mktemp("trace")
    file = folder / "program.py"
    file.write_text(PROGRAM)
    variables = {**os.environ, "TORCHSMITH_TRACE": str(folder / "out"), "TORCHSMITH_METRICS": "1"}
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, env=variables)
    assert done.returncode == 0, done.stderr
    assert "Frames: 3" in done.stderr and done.stdout == "", "the report at exit, on request"
    return folder


def test_env() -> None:
    done = run("env", "--json", TORCHSMITH_LOGS="graph", SECRET_TOKEN="abc")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["torchsmith"] == "0.1.0"
    assert facts["python"].startswith(".".join(map(str, sys.version_info[:3])))
    assert "smith" in facts["backends"] and "eager" in facts["backends"]
    assert "TORCHSMITH_LOGS=graph" in facts["variables"]
    assert "abc" not in done.stdout, "other variables are nobody's business"


def test_env_survives_what_cannot_be_found_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(env, "_processor", lambda: 1 / 0)
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", "/no/such/folder")
    assert main(["env"]) == 0
    lines = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert lines["processor"] == "unknown: ZeroDivisionError: division by zero"
    assert "none found" in lines["C"] or "none found" in str(lines)
    assert lines["cache"] == "/no/such/folder (not there yet)"


def test_explain(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import torch\ndef f(x):\n    return torch.softmax(x, -1)\n")
    done = run("explain", f"{file}::f", "--arg", "f32[2,3]", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["graph_count"] == 1
    assert len(report["kernels"]) == 1
    page = tmp_path / "page.html"
    tuned = ("--mode", "max-autotune-no-cudagraphs")
    done = run("explain", f"{file}::f", "--arg", "f32[2,3]", "--html", str(page), *tuned)
    assert done.returncode == 0 and "not measured" in done.stdout
    text = page.read_text("utf-8")
    assert "torch.softmax(x, -1)" in text and report["kernels"][0] in text


def test_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(trace / "out")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Process ") and "program.py" in text
    for part in ("Frames: 3", "Graphs: 3", "'f' (program.py:4)", "Recompiles: 2", "Counters"):
        assert part in text
    assert main(["trace", str(trace / "out"), "--json"]) == 0
    (process,) = json.loads(capsys.readouterr().out)
    assert [f["compile_id"] for f in process["frames"]] == ["0/0", "0/1", "0/2"]
    assert process["graphs"][0]["kernels"] and process["skipped"] == 0
    page = trace / "page.html"
    assert main(["trace", str(trace / "out"), "--html", str(page)]) == 0
    text = page.read_text("utf-8")
    assert text.startswith("<!DOCTYPE html>") and "y = x.sin()" in text
    name = process["graphs"][0]["kernels"][0]["name"]
    assert name in text and "n was" not in text and "k was 2, is 5" in text


def test_recompiles(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recompiles", str(trace / "out")]) == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    place = trace / "program.py"
    for part in (
        "Recompiles: 2 in 1 functions",
        "'f' (program.py:4): compiled again 2 times, limit 8 versions",
        "x.size(0): 3 -> 4",
        f"used at {place}:6",
        "k: 2 -> 5",
        f"used at {place}:7",
    ):
        assert part in lines
    assert main(["recompiles", str(trace / "out"), "--json"]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert [row["reasons"][0]["new"] for row in rows] == ["4", "5"]


def test_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run().returncode == 2
    assert run("explain", "nowhere.py::f").returncode == 2
    for command in ("trace", "recompiles"):
        for place in ("nowhere", "."):
            assert main([command, str(tmp_path / place)]) == 2
            assert capsys.readouterr().err.startswith("error: ")


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    assert all(module.__name__.rpartition(".")[2] in text for module in COMMANDS)
