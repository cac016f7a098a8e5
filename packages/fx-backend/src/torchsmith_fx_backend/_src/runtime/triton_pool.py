"""Processes that compile Triton source side by side.

The first kernel that is not in the cache, or ``prepare`` a little earlier, starts one process, the
host; it loads triton once and forks the others, the workers. They end a minute after their last
job. Where none can be started, the caller compiles by itself.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
from importlib import util
from pathlib import Path

from torchsmith_fx_backend._src.runtime import triton_worker
from torchsmith_fx_backend._src.runtime.triton_worker import Job, Result

MOST = 32


class NoWorkerError(Exception):
    """No process could be started, or it ended before it answered."""


class WorkerFailedError(Exception):
    """Triton refused a kernel; the message is its own."""


class _Host:
    """The process that forks workers."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            NoWorkerError: there is no triton or no interpreter.
        """
        found = util.find_spec("triton")
        if found is None or found.origin is None or not sys.executable:
            raise NoWorkerError
        root = str(Path(found.origin).parent.parent)
        command = [sys.executable, "-I", triton_worker.__file__, root]
        self._control, theirs = socket.socketpair()
        with theirs:
            try:
                self.process = subprocess.Popen(command, stdin=theirs.fileno())
            except OSError:
                self._control.close()
                raise NoWorkerError from None

    def worker(self) -> socket.socket:
        """A connection to a new worker, which may be there only in a moment.

        Raises:
            OSError: the host has ended.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError:
                ours.close()
                raise
        return ours

    def end(self) -> None:
        """End it; workers end with their connections."""
        self._control.close()
        self.process.kill()
        self.process.wait()

    def forget(self) -> None:
        """After a fork: it belongs to the parent."""
        self._control.close()
        self.process.returncode = 0


class Pool:
    """Workers, each busy with one job at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._host: _Host | None = None
        self._idle: list[socket.socket] = []
        self._usable = True
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def prepare(self) -> None:
        """Have a host that loads triton now."""
        with self._lock, contextlib.suppress(NoWorkerError):
            self._started()

    def compile(self, job: Job) -> list[Result]:
        """The results of ``job``, by a worker that has nothing else to do.

        Raises:
            WorkerFailedError: triton refuses it.
            NoWorkerError: no process answers.
        """
        while True:
            with self._lock:
                fresh = not self._idle
                worker = self._worker() if fresh else self._idle.pop()
            try:
                with worker.makefile("rwb") as stream:
                    triton_worker.send(stream, tuple(job))
                    answer = triton_worker.receive(stream)
            except (OSError, EOFError):
                worker.close()
                if fresh:
                    self._usable = False
                    raise NoWorkerError from None
                continue  # it had been idle for too long
            except BaseException:
                worker.close()  # the answer to this job must not be taken for that to the next
                raise
            with self._lock:
                self._idle.append(worker)
            if isinstance(answer, str):
                raise WorkerFailedError(answer)
            return [Result(*result) for result in answer]

    def close(self) -> None:
        """End all processes that are idle, and the host."""
        with self._lock:
            ended, self._idle = self._idle, []
            host, self._host = self._host, None
        for worker in ended:
            worker.close()
        if host is not None:
            host.end()

    def _started(self) -> _Host:
        if not self._usable:
            raise NoWorkerError
        if self._host is not None and self._host.process.poll() is not None:
            self._host.end()
            self._host = None
        if self._host is None:
            try:
                self._host = _Host()
            except NoWorkerError:
                self._usable = False
                raise
        return self._host

    def _worker(self) -> socket.socket:
        for _ in range(2):  # a host that had nothing to do may end just now
            with contextlib.suppress(OSError):
                return self._started().worker()
        self._usable = False
        raise NoWorkerError

    def _forget(self) -> None:
        """After a fork: the processes answer to the parent."""
        self._lock = threading.Lock()
        for worker in self._idle:
            worker.close()
        if self._host is not None:
            self._host.forget()
        self._idle, self._host = [], None


def processors() -> int:
    """How many processes can compile at the same time."""
    return min(MOST, len(os.sched_getaffinity(0)))


POOL = Pool()
