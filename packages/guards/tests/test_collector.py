"""The collector's pause: nested, in several threads, and for who has it off anyway."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
from torchsmith_guards import collector


@pytest.fixture(params=[True, False])
def enabled(request: pytest.FixtureRequest) -> Iterator[bool]:
    was = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was else gc.disable)()


def test_the_outermost_pause_ends_it(enabled: bool) -> None:
    with collector.paused():
        with pytest.raises(KeyError), collector.paused():
            raise KeyError
        assert not gc.isenabled()
    assert gc.isenabled() is enabled


def test_a_pause_lasts_until_the_last_thread_has_left_it(enabled: bool) -> None:
    inside, leave = threading.Event(), threading.Event()

    @collector.paused()
    def compiles() -> None:
        inside.set()
        leave.wait(10)

    thread = threading.Thread(target=compiles)
    with collector.paused():
        thread.start()
        assert inside.wait(10)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled() is enabled


def test_a_compile_frees_young_cycles_at_its_end_unless_collections_are_off(enabled: bool) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.own = self

    with collector.compiling():
        gone = weakref.ref(Cycle())
        with collector.compiling(), collector.paused():
            assert not gc.isenabled()
        assert gone() is not None, "a pause lasts"
        assert not gc.isenabled()
    assert (gone() is None) is enabled
    assert gc.isenabled() is enabled


PAUSE = sys.modules[type(collector).__module__].__file__


class InterruptionError(Exception):
    """What a signal's handler raises."""


def interrupted(call: Callable[[], None], at: int) -> bool:
    """Run ``call`` with an exception in line number ``at`` of the pause's; whether there are that
    many."""
    lines = 0

    def trace(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        if event == "line" and frame.f_code.co_filename == PAUSE:
            lines += 1
            if lines == at:
                raise InterruptionError
        return trace

    sys.settrace(trace)
    try:
        call()
    except InterruptionError:
        return True
    finally:
        sys.settrace(None)
    return False


def test_no_interruption_leaves_it_off(enabled: bool) -> None:
    def pauses() -> None:
        with collector.paused():
            with collector.paused():
                assert not gc.isenabled()
            assert not gc.isenabled()

    at = 1
    while interrupted(pauses, at):
        at += 1
        assert gc.isenabled() is enabled
    assert at > 12
    pauses()
    assert gc.isenabled() is enabled
