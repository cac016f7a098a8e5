"""Signals that arrive during a compile: when their handlers are called, and what stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from torchsmith_guards import deferred, deliver, is_interruption
from torchsmith_guards._src import interruptions

ONE, TWO = signal.SIGUSR1, signal.SIGUSR2


class TimeIsUpError(Exception):
    """What a handler raises."""


class Handlers:
    """Of two signals; what was called."""

    def __init__(self) -> None:
        self.called: list[int] = []

    def notes(self, number: int, frame: FrameType | None) -> None:
        self.called.append(number)

    def raises(self, number: int, frame: FrameType | None) -> None:
        self.called.append(number)
        raise TimeIsUpError


@pytest.fixture
def handlers() -> Iterator[Handlers]:
    found = Handlers()
    before = signal.signal(ONE, found.raises), signal.signal(TWO, found.notes)
    yield found
    signal.signal(ONE, before[0])
    signal.signal(TWO, before[1])


def assert_restored(handlers: Handlers) -> None:
    assert signal.getsignal(ONE) == handlers.raises and signal.getsignal(TWO) == handlers.notes
    assert interruptions._current is None


def test_they_wait_for_the_end(handlers: Handlers) -> None:
    reached = False
    with pytest.raises(TimeIsUpError), deferred():
        signal.raise_signal(TWO)
        with deferred():
            signal.raise_signal(ONE)
        assert not handlers.called
        reached = True
    assert reached and handlers.called == [TWO, ONE]
    assert_restored(handlers)


def test_they_are_delivered_where_it_does_no_harm(handlers: Handlers) -> None:
    deliver()
    with pytest.raises(TimeIsUpError) as found, deferred():
        deliver()
        signal.raise_signal(ONE)
        deliver()
        pytest.fail("not reached")
    assert handlers.called == [ONE] and is_interruption(found.value)
    assert_restored(handlers)


def test_a_second_one_does_not_wait(handlers: Handlers) -> None:
    with pytest.raises(TimeIsUpError), deferred():
        signal.raise_signal(ONE)
        signal.raise_signal(ONE)
        pytest.fail("not reached")
    assert handlers.called == [ONE]
    assert_restored(handlers)


def test_none_waits_for_ever(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptions, "_PATIENCE", 0.05)
    end = time.monotonic() + 20
    with pytest.raises(TimeIsUpError), deferred():
        signal.raise_signal(ONE)
        while time.monotonic() < end:
            time.sleep(0.01)
        pytest.fail("not reached")
    assert_restored(handlers)


def test_no_thread_can_be_started(handlers: Handlers, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Timer, "start", start)
    with pytest.raises(TimeIsUpError), deferred():
        signal.raise_signal(ONE)
        pytest.fail("not reached")
    assert_restored(handlers)


def test_a_failure_comes_before_them(handlers: Handlers) -> None:
    with pytest.raises(TimeIsUpError) as found, deferred():
        signal.raise_signal(ONE)
        raise KeyError
    assert isinstance(found.value.__context__, KeyError)
    assert_restored(handlers)


def test_handlers_that_are_replaced_meanwhile_stay(handlers: Handlers) -> None:
    with deferred():
        signal.signal(TWO, signal.SIG_IGN)
    assert signal.getsignal(TWO) is signal.SIG_IGN


def test_other_threads_have_none(handlers: Handlers) -> None:
    found: list[object] = []

    def compiles() -> None:
        with deferred():
            found.append(signal.getsignal(ONE))
            deliver()

    thread = threading.Thread(target=compiles)
    thread.start()
    thread.join()
    assert found == [handlers.raises]
    with deferred():
        signal.raise_signal(TWO)
        thread = threading.Thread(target=compiles)
        thread.start()
        thread.join()
        assert not handlers.called, "handlers are the main thread's"
    assert handlers.called == [TWO]


def test_wherever_it_arrives_nothing_stays(handlers: Handlers) -> None:
    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_filename == interruptions.__file__:
            lines += 1
            if lines == at:
                signal.raise_signal(ONE)
        return trace

    at, lines = 0, 0
    while at <= lines:
        at, lines = at + 1, 0
        handlers.called.clear()
        sys.settrace(trace)
        try:
            with deferred():
                deliver()
        except TimeIsUpError:
            pass
        finally:
            sys.settrace(None)
        assert handlers.called == [ONE] * (at <= lines)
        with pytest.raises(TimeIsUpError):
            signal.raise_signal(ONE)
        with deferred():
            pass
        assert_restored(handlers)
    assert at > 15


ENDS = """
import os, threading, time
from torchsmith_guards import deferred, deliver
from torchsmith_guards._src import interruptions

begun = threading.Event()

def compiles():
    with deferred():
        begun.set()
        try:
            while {daemon}:
                deliver()
                time.sleep(0.001)
            time.sleep(0.2)
            deliver()
            print("compiled")
        finally:
            print("left")

threading.Thread(target=compiles, daemon={daemon}).start()
begun.wait()
if {forks} and os.fork():
    os.wait()
    os._exit(0)
print(len(interruptions._compiles.threads))
"""


@pytest.mark.parametrize(
    ("daemon", "forks", "said"),
    [(True, False, "1 left"), (True, True, "0"), (False, False, "1 compiled left")],
)
def test_the_end_of_the_process(daemon: bool, forks: bool, said: str) -> None:
    """Daemon threads leave their compiles first, others finish them; a thread that is not there
    after a fork is not waited for."""
    program = ENDS.format(daemon=daemon, forks=forks)
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, capture_output=True, text=True)
    found = done.returncode, sorted(done.stdout.split()), done.stderr
    assert found == (0, said.split(), "")


FORKS = """
import os, signal, sys, threading
from torchsmith_guards import deferred

begun = threading.Event()

def compiles():
    with deferred():
        import slow

sys.path.insert(0, os.path.dirname(__file__))
sys.modules["begun"] = begun
threading.Thread(target=compiles, daemon={daemon}).start()
begun.wait()
child = os.fork()
if child == 0:
    signal.alarm(20)
    import slow
    os._exit(slow.answer)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SLOW = """
import sys, time
sys.modules["begun"].set()
time.sleep(0.3)
answer = 42
"""


@pytest.mark.parametrize("daemon", [True, False])
def test_a_fork_waits_for_what_is_imported(daemon: bool, tmp_path: Path) -> None:
    """Another thread's import would stay half done in the child, and locked."""
    (tmp_path / "slow.py").write_text(SLOW)
    program = tmp_path / "forks.py"
    program.write_text(FORKS.format(daemon=daemon))
    command = [sys.executable, "-W", "ignore", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
