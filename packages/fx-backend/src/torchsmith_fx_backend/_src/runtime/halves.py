"""Recordings of a differentiated graph: its forward and its backward half.

What the forward half saves stays in the memory of its recording, where the recorded backward half
reads it: nothing is copied in between. That memory holds the values of one call at a time, so a
call borrows it until its backward pass has used them, or nobody can ask for one any more; a forward
pass that finds it lent runs as without recordings, and so does its backward pass.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torchsmith_fx_backend._src.runtime.recordings import (
    Outputs,
    Recorder,
    Recording,
    Recordings,
    Run,
)


class Loan:
    """The right of one call to the memory of a forward recording, until ``close`` or its end."""

    __slots__ = ("_lock", "recording")

    def __init__(self, lock: threading.Lock) -> None:
        self._lock: threading.Lock | None = lock
        self.recording: Recording | None = None

    def close(self) -> None:
        """Give the memory back."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    @property
    def closed(self) -> bool:
        """Whether the memory was given back."""
        return self._lock is None

    def __del__(self) -> None:
        self.close()


class RecordedHalves:
    """Makes halves of one differentiated graph that replay recordings of themselves, or neither.

    Attributes:
        refused: why the halves run as without recordings, once that is so.
    """

    def __init__(self, recorder: Recorder, say: Callable[[str], None]) -> None:
        """Record nothing yet.

        Args:
            recorder: the device, with memory that no other recordings use.
            say: told why calls are not recorded, once.
        """
        self.refused: str | None = None
        self._recorder = recorder
        self._say = say
        self._halves: list[Recordings] = []
        self._memory = threading.Lock()

    def forward(
        self, run: Run, written: Sequence[int], lends: int, *, static: bool
    ) -> RecordedForward:
        """The forward half, which writes inputs and saves its results from ``lends`` on."""
        half = self._half(run, written=written, lends=lends, static=static)
        return RecordedForward(half, self._memory)

    def backward(self, run: Any, *, static: bool) -> RecordedBackward:
        """A backward half, which takes its inputs in one list."""
        spread: Any = lambda *inputs: run(list(inputs))
        spread.source, spread.kernels = run.source, run.kernels
        return RecordedBackward(run, self._half(spread, static=static))

    def refuse(self, reason: str) -> None:
        """Record and replay no more."""
        if self.refused is None:
            self.refused = reason
            self._say(reason)
            for half in self._halves:
                half.refuse(reason)

    def _half(self, run: Run, **what: Any) -> Recordings:
        half = Recordings(run, self._recorder, say=self._say, give_up=self.refuse, **what)
        self._halves.append(half)
        half.refused = self.refused
        return half


class RecordedForward:
    """A forward half that is replayed where ``lend`` calls it."""

    def __init__(self, recordings: Recordings, memory: threading.Lock) -> None:
        self._recordings, self._memory = recordings, memory
        self._run = recordings.run

    def __call__(self, *inputs: Any) -> Outputs:
        return self._run(*inputs)

    def lend(self, inputs: Sequence[Any]) -> tuple[Outputs, Loan | None]:
        """Run the half; with what is saved comes the right to read it, if it is a recording's."""
        if self._recordings.refused is not None or not self._memory.acquire(blocking=False):
            return self._run(*inputs), None
        loan = Loan(self._memory)
        outputs, loan.recording = self._recordings.execute(inputs)
        if loan.recording is None:
            loan.close()
            return outputs, None
        return outputs, loan


class RecordedBackward:
    """A backward half that is replayed where ``borrow`` calls it."""

    def __init__(self, run: Callable[[list[Any]], Outputs], recordings: Recordings) -> None:
        self._run, self._recordings = run, recordings

    def __call__(self, inputs: list[Any]) -> Outputs:
        return self._run(inputs)

    def borrow(self, loan: Loan, inputs: list[Any]) -> Outputs:
        """Run the half for the call that ``loan`` was made to."""
        if loan.closed or self._recordings.refused is not None:
            return self._run(inputs)
        return self._recordings.execute(inputs, loan.recording)[0]
