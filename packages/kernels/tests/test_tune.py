"""Tuning: what it refuses without a GPU, and that it stores what it measured with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torchsmith_kernels import TuningError, tune
from torchsmith_kernels._src import tuning
from torchsmith_kernels._src.relu_squared.config import Case, table
from torchsmith_kernels.tune import main


def test_arguments_are_checked_first() -> None:
    with pytest.raises(TuningError, match=r"TS-K005.*`ops` is \['sideways'\]; accepted are .*relu"):
        tune(["sideways"])
    with pytest.raises(TuningError, match="`ops` is"):
        tune([])
    with pytest.raises(TuningError, match="`dtypes` is"):
        tune(["relu_squared"], [torch.int32])
    with pytest.raises(TuningError, match="`ops` is 'relu_squared'; it must be a sequence"):
        tune("relu_squared")
    with pytest.raises(TuningError, match="`dtypes` is torch.bfloat16; it must be a sequence"):
        tune(["relu_squared"], torch.bfloat16)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TuningError, match="no CUDA device"):
        tune(["relu_squared"])
    assert main(["--ops", "relu_squared"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_command_says_nothing_but_its_error() -> None:
    command = [sys.executable, "-m", "torchsmith_kernels.tune"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "[TS-K005] tune: no CUDA device is available\n"


@pytest.mark.parametrize("op", list(tuning.TUNABLE))
def test_everything_tunable_has_cases_and_valid_candidates(op: str) -> None:
    tunable = tuning.find(op)
    assert tunable.op == op
    cases = list(tunable.cases([torch.bfloat16]))
    assert cases
    keys = [case.key() for case in cases]
    assert len(set(keys)) == len(keys), "two cases would overwrite each other"
    for case in cases:
        assert list(tunable.candidates(case)), case


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tuning measures on a GPU")
def test_results_are_stored_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    lines: list[str] = []
    (path,) = tune(["relu_squared"], [torch.bfloat16], report=lines.append)
    entries = json.loads(path.read_text())["entries"]
    cases = tuning.find("relu_squared").cases([torch.bfloat16])
    assert set(entries) == {case.key() for case in cases}
    assert all(entry["microseconds"] > 0 for entry in entries.values())
    assert len(lines) >= 4
    major, minor = torch.cuda.get_device_capability()
    assert table.explain(Case("forward", torch.bfloat16), 10 * major + minor)[1] == "tuned"
