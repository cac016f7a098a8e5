"""What changes between calls changes what compiled code does as eager; ``fuzz_calls.py`` runs many
more sessions."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
sys.path[:0] = [str(TESTS), str(TESTS.parents[1] / "fx-backend" / "tests")]

from calls.changes import CHANGES, COMMON  # noqa: E402
from calls.session import Session, Step, compare, generate, play  # noqa: E402
from fuzz_calls import report, run  # noqa: E402


@pytest.mark.parametrize("block", range(4))
def test_sessions(block):
    counts, failures = run(range(block * 15, block * 15 + 15), most=3)
    assert not failures, "\n".join(report(*failure) for failure in failures)
    assert counts["sessions"] == 15 and counts["calls"] > 50


def test_sessions_hold_every_change():
    """No change is out of reach."""
    seen = {step.what for seed in range(400) for step in generate(seed).steps}
    assert seen == CHANGES.keys() | COMMON.keys()


def test_a_wrong_result_is_found(monkeypatch):
    """Each side is played on its own: what differs between them is told, and where."""
    steps = (Step("call", 0), Step("training", 1), Step("call", 2), Step("backward", 3))
    session = Session("rows", ("linear", "scaled"), "function", None, "add", "one", steps)
    assert compare(session) is None
    assert len(play(session, compiled=False)) > 20
    monkeypatch.setattr("calls.side.Side.compile", _wrong)
    problem = compare(session)
    assert problem is not None and problem.startswith("(0, 'call'): result 0")


def _wrong(side, target):
    return (lambda *args: target(*args) + 1) if side.compiled else target
