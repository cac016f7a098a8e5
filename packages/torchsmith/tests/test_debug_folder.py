"""``TORCHSMITH_DEBUG=folder``: files of every stage that run, and crash records."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torchsmith
from torchsmith_guards.records import TraceWarning, debug_folder

X = torch.randn(16, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("TORCHSMITH_TRACE", raising=False)
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHSMITH_DEBUG", str(tmp_path / "debug"))
    return tmp_path / "debug"


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def run(file: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, file, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.linear(x).clamp(max=float("inf")), -1)


def test_every_stage_has_a_file_also_after_a_cache_hit(folder: Path) -> None:
    model = Model()
    with torch.no_grad():
        for _ in range(2):
            torchsmith.compile(model)(X)
    (run_folder,) = folder.iterdir()
    assert run_folder == debug_folder(), "one folder for a process"
    frames = sorted(run_folder.glob("frame_*"))
    graphs = sorted(run_folder.glob("graph_*"), key=lambda p: int(re.split("[_-]", p.name)[1]))
    assert len(frames) == len(graphs) == 2
    for frame in frames:
        wanted = {"body.py", "guards.py", "record.json", "report.txt", "user.py"}
        assert set(names(frame)) >= wanted
        assert "def forward" in (frame / "user.py").read_text()
    records = [json.loads((graph / "record.json").read_text()) for graph in graphs]
    assert [record["cache"] for record in records] == ["miss", "hit"]
    stages = {"functional.py", "graph.py", "loops.txt", "plan.txt", "record.json", "wrapper.py"}
    for graph in graphs:
        kernels = {name for name in names(graph) if name.endswith(".c")}
        assert kernels and set(names(graph)) >= stages
    for name in ("functional.py", "loops.txt", "plan.txt", "wrapper.py"):
        first, again = ((graph / name).read_text().splitlines()[1:] for graph in graphs)
        assert first == again, name
    assert len((run_folder / "log.txt").read_text().splitlines()) == 4
    assert "(16, 3)" in run(graphs[1] / "functional.py")
    assert "compiled: the same" in run(graphs[1] / "graph.py", "--compile")


def program_fails_in_the_backend(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def program_raises(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return torch.multinomial(y * 0, 1)


def refuse(gm: object, inputs: object) -> None:
    raise ValueError("no\nthanks")


@pytest.mark.parametrize(
    "fn, backend, error, line",
    [
        (program_fails_in_the_backend, refuse, "BackendError", "def program_fails_in_the_backend"),
        (program_raises, "smith", "RuntimeError", "return torch.multinomial(y * 0, 1)"),
    ],
)
def test_crash_records_underline_the_users_line(folder, fn, backend, error, line) -> None:
    for _ in range(2):
        compiled = torchsmith.compile(fn, backend=backend)
        with pytest.raises(RuntimeError) as caught:
            compiled(X)
        assert type(caught.value).__name__ == error
    (crash,) = folder.glob("*/errors/*")
    assert crash.name.startswith(f"{fn.__name__}-{error}-")
    lines = crash.read_text().splitlines()
    at = next(n for n, text in enumerate(lines) if text.startswith("at "))
    assert lines[at].startswith(f"at {__file__}:")
    assert lines[at + 1].strip().startswith(line)
    assert lines[at + 2].strip() == "^" * len(lines[at + 1].strip())
    assert any(text.startswith("Traceback") for text in lines)


def test_a_training_step_has_both_halves(folder: Path) -> None:
    model = Model()
    torchsmith.compile(model)(X).sum().backward()
    kinds = [p.name.rpartition("-")[2] for p in sorted(folder.glob("*/graph_*"))]
    assert sorted(kinds) == ["backward", "forward"]
    for file in folder.glob("*/graph_*/functional.py"):
        run(file)


def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TORCHSMITH_DEBUG", str(tmp_path / "file" / "debug"))
    with pytest.warns(TraceWarning, match="no debug files") as caught:
        for number in range(2):
            result = torchsmith.compile(lambda x, number=number: x + number)(X)
            torch.testing.assert_close(result, X + number)
    assert len([w for w in caught if w.category is TraceWarning]) == 1


def test_nothing_is_written_without_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHSMITH_DEBUG", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path / "cache"))
    torchsmith.compile(lambda x: x * 3)(X)
    assert debug_folder() is None and set(os.listdir(tmp_path)) <= {"cache"}
