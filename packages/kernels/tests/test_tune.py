"""Tuning: what it refuses without a GPU, and that it stores what it measured with one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torchsmith_kernels import TuningError, tune
from torchsmith_kernels._src.rms_norm.config import Case, choose
from torchsmith_kernels.tune import main


def test_arguments_are_checked_first() -> None:
    with pytest.raises(TuningError, match=r"TS-K005.*`kernels` is \['sideways'\]; accepted are fo"):
        tune(kernels=["sideways"])
    with pytest.raises(TuningError, match="`kernels` is"):
        tune(kernels=[])
    with pytest.raises(TuningError, match="positive"):
        tune(widths=[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TuningError, match="no CUDA device"):
        tune([64])
    assert main(["--widths", "64"]) == 2
    assert "no CUDA device" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="tuning measures on a GPU")
def test_results_are_stored_and_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSMITH_CACHE_DIR", str(tmp_path))
    lines: list[str] = []
    path = tune([256], [torch.bfloat16], rows=4096, report=lines.append)
    entries = json.loads(path.read_text())["entries"]
    assert set(entries) == {"forward/256/bfloat16", "backward/256/bfloat16"}
    assert all(entry["microseconds"] > 0 for entry in entries.values())
    assert len(lines) >= 4
    major, minor = torch.cuda.get_device_capability()
    case = Case("forward", 256, torch.bfloat16)
    assert choose(case, 10 * major + minor)[1] == "tuned"
