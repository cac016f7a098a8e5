"""Runs ``test_rms_norm.py`` with the kernels under Triton's interpreter, in their own process.

The interpreter must be switched on before triton is imported.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

FEWEST = 130  # the run must not shrink unnoticed


@pytest.mark.skipif(find_spec("triton") is None, reason="triton exists on Linux only")
@pytest.mark.skipif(
    torch.cuda.is_available(), reason="the same tests run compiled, in this process"
)
def test_kernels_under_the_interpreter() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W",
         "ignore::RuntimeWarning", str(Path(__file__).parent / "test_rms_norm.py")],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
    passed = re.search(r"(\d+) passed", run.stdout)
    assert passed and int(passed[1]) >= FEWEST, run.stdout[-500:]
