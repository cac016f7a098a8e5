"""Random compositions of operators equal eager; ``fuzz_composition.py`` runs many more."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

from composition.machines import Native, Planned, Reference  # noqa: E402
from fuzz_composition import report, run  # noqa: E402


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(seeds, machine, symbolic=False, large=False):
    counts, failures = run(seeds, machine, symbolic=symbolic, large=large, most=3)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["run"] >= 0.8 * len(seeds)  # others run by eager, with a reason


@pytest.mark.parametrize("block", range(6))
def test_compositions_in_the_reference_evaluator(block):
    check(range(block * 20, block * 20 + 20), Reference())


@pytest.mark.parametrize("block", range(4))
def test_compositions_with_symbolic_sizes(block):
    check(range(block * 20, block * 20 + 20), Reference(), symbolic=True)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("large", [False, True], ids=["small", "large"])
def test_compositions_as_planned_for_a_gpu(symbolic, large):
    check(range(2000, 2080), Planned(), symbolic, large)


@pytest.mark.parametrize("symbolic", [False, True], ids=["static", "symbolic"])
def test_compositions_in_c(symbolic):
    check(range(1000, 1032), Native(), symbolic)
    check(range(1000, 1032), Native(), symbolic, large=True)


@pytest.mark.skipif(find_spec("triton") is None, reason="needs triton")
def test_compositions_in_tritons_interpreter():
    command = [sys.executable, "-W", "ignore", str(TESTS / "fuzz_composition.py"), "--triton"]
    done = subprocess.run(
        [*command, "--programs", "40"],
        capture_output=True,
        text=True,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    counted = re.search(r"'run': (\d+)", done.stdout)
    assert counted and int(counted[1]) >= 36
