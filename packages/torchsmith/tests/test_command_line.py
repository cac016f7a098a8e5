"""The command line: exit codes, JSON, and that reports name kernels."""

import json
import subprocess
import sys
from pathlib import Path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchsmith", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_env() -> None:
    done = run("env", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["torchsmith"] == "0.1.0"


def test_explain(tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text("import torch\ndef f(x):\n    return torch.softmax(x, -1)\n")
    done = run("explain", f"{file}::f", "--arg", "f32[2,3]", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["graph_count"] == 1
    assert len(report["kernels"]) == 1


def test_usage() -> None:
    assert run().returncode == 2
    assert run("explain", "nowhere.py::f").returncode == 2
