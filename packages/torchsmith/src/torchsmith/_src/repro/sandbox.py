"""Runs a function in a copy of this process, so that a crash or a hang is an answer."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import select
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

LIMIT = 60.0  # seconds that a run may take


@dataclass(frozen=True, slots=True)
class Died:
    """The end of a run that gave no result.

    Attributes:
        signal: name of the signal that ended it, ``SIGSEGV``; empty when it was out of time.
        status: its exit status, when it left by itself.
    """

    signal: str = ""
    status: int = 0

    @property
    def hung(self) -> bool:
        """Whether it was ended because it took too long."""
        return not self.signal and not self.status


def run_apart(function: Callable[[], object], limit: float = LIMIT) -> object:
    """What ``function`` returns in a forked process, or how that process died.

    The result has to be picklable. Threads do not survive a fork, so torch runs with one.

    Raises:
        RuntimeError: the function raised, or gave what cannot be pickled; the message says what.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads
        child = os.fork()
    if child == 0:
        os.close(reading)
        _answer(function, writing)
    os.close(writing)
    try:
        data, status = _collect(child, reading, limit)
    finally:
        os.close(reading)
    if status is None:
        return Died()
    if os.WIFSIGNALED(status):
        return Died(signal=signal.Signals(os.WTERMSIG(status)).name)
    if not data:
        return Died(status=os.WEXITSTATUS(status) or 1)
    worked, result = pickle.loads(data)
    if not worked:
        raise RuntimeError(result)
    return result


def _answer(function: Callable[[], object], writing: int) -> None:
    """In the copy: run, write the pickled result, and end without any clean-up."""
    status = 1
    try:
        os.setpgid(0, 0)
        faulthandler.disable()  # what kills this process is told by the parent
        torch.set_num_threads(1)
        try:
            data = pickle.dumps((True, function()))
        except Exception as error:  # noqa: BLE001 - it is told to the parent
            data = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(data)
        status = 0
    finally:
        os._exit(status)


def _collect(child: int, reading: int, limit: float) -> tuple[bytes, int | None]:
    """What the child wrote, and its status; None when it was killed for its time."""
    parts: list[bytes] = []
    end = time.monotonic() + limit
    while (left := end - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            part = os.read(reading, 1 << 16)
            if not part:
                return b"".join(parts), os.waitpid(child, 0)[1]
            parts.append(part)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(OSError):
            kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return b"", None
