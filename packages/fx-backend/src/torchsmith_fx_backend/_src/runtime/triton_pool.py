"""Processes that compile Triton source side by side.

They are started by the first kernel that is not in the cache, or a little earlier by ``prepare``,
and end a minute after the last. Where none can be started, the caller compiles by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import subprocess
import sys
import threading
from importlib import util
from pathlib import Path

from torchsmith_fx_backend._src.runtime import triton_worker
from torchsmith_fx_backend._src.runtime.triton_worker import Job, Result

MOST = 32
_EARLY = 4  # processes for kernels that nobody has counted yet


class NoWorkerError(Exception):
    """No process could be started, or it ended before it answered."""


class WorkerFailedError(Exception):
    """Triton refused a kernel; the message is its own."""


class Pool:
    """Compiling processes, each busy with one job at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._usable = True
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def prepare(self, count: int = _EARLY) -> None:
        """Have ``count`` idle processes, at most one a processor."""
        with self._lock:
            for _ in range(min(count, processors()) - len(self._idle)):
                started = self._start()
                if started is None:
                    return
                self._idle.append(started)

    def compile(self, job: Job) -> list[Result]:
        """The results of ``job``, by a process that has nothing else to do.

        Raises:
            WorkerFailedError: triton refuses it.
            NoWorkerError: no process answers.
        """
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            fresh = worker is None
            worker = worker or self._start()
            if worker is None:
                raise NoWorkerError
            assert worker.stdin is not None and worker.stdout is not None
            try:
                triton_worker.send(worker.stdin, tuple(job))  # type: ignore[arg-type]
                answer = triton_worker.receive(worker.stdout)  # type: ignore[arg-type]
            except (OSError, EOFError):
                _end(worker)
                if fresh:
                    self._usable = False
                    raise NoWorkerError from None
                continue  # it had been idle for too long
            except BaseException:
                _end(worker)  # the answer to this job must not be taken for that to the next
                raise
            with self._lock:
                self._idle.append(worker)
            if isinstance(answer, str):
                raise WorkerFailedError(answer)
            return [Result(*result) for result in answer]

    def close(self) -> None:
        """End the idle processes."""
        with self._lock:
            ended, self._idle = self._idle, []
        for worker in ended:
            _end(worker)

    def _start(self) -> subprocess.Popen[bytes] | None:
        found = util.find_spec("triton") if self._usable else None
        if found is None or found.origin is None or not sys.executable:
            return None
        root = str(Path(found.origin).parent.parent)
        command = [sys.executable, "-I", triton_worker.__file__, root]
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError:
            self._usable = False
            return None

    def _forget(self) -> None:
        """After a fork: the processes answer to the parent."""
        self._lock = threading.Lock()
        for worker in self._idle:
            worker.returncode = 0  # not a child of this process
        self._idle = []


def processors() -> int:
    """How many processes can compile at the same time."""
    return min(MOST, len(os.sched_getaffinity(0)))


def _end(worker: subprocess.Popen[bytes]) -> None:
    for stream in (worker.stdin, worker.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not sent yet
                stream.close()
    worker.kill()
    worker.wait()


POOL = Pool()
