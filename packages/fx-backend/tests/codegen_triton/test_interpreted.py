"""Runs a third of ``interpreted/`` under Triton's interpreter, in a process of its own.

The session ``fx-backend`` runs all of them, under the Triton that the pinned torch brings.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FEWEST = 200  # the run must not shrink unnoticed


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the same tests run compiled, in this process"
)
def test_generated_kernels_agree_with_the_reference_evaluator() -> None:
    folder = Path(__file__).parent / "interpreted"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::RuntimeWarning",
            "--share",
            "3",
            str(folder),
        ],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed and int(passed[1]) >= FEWEST, run.stdout[-500:]
