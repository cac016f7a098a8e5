"""Random compositions with random gradients equal eager; ``fuzz_gradients.py`` runs many more."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from composition import sessions, ways
from composition.machines import Native, Planned, Reference
from fuzz_gradients import report, run


@pytest.mark.parametrize("block", range(6))
def test_gradients_of_compositions(block):
    seeds = range(block * 20, block * 20 + 20)
    counts, failures = run(seeds, Reference(), most=3)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["run"] >= 0.7 * len(seeds)


def test_gradients_of_compositions_as_planned_for_a_gpu():
    counts, failures = run(range(2000, 2080), Planned(), most=3)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["run"] >= 0.7 * 80


def test_gradients_of_compositions_in_c():
    counts, failures = run(range(1000, 1030), Native(), most=3)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["run"] >= 0.7 * 30


@pytest.mark.parametrize("play", [sessions.play, ways.play])
def test_compositions_that_are_called_again_or_differentiated_otherwise(play):
    seeds = range(33_000_000, 33_000_040)
    counts, failures = run(seeds, Reference(), most=3, play=play)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["run"] >= 0.7 * len(seeds)
