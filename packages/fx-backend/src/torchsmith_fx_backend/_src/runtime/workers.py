"""Processes that compile Triton kernels side by side, started while the program is still traced.

They are started when a graph for a GPU begins to be compiled, import triton meanwhile, and end when
they have had nothing to do for a minute or this process ends. Where none runs, the caller compiles.
"""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import sys
import threading
from pathlib import Path

from torchsmith_fx_backend._src.runtime import triton_job
from torchsmith_fx_backend._src.runtime.triton_job import Binary, Job, TritonCompileError

MOST = 16
FEWEST_CORES = 4  # with less, what processes gain is lost by importing triton in each

_Worker = subprocess.Popen[bytes]


def count_of_cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on this system
        return os.cpu_count() or 1


class Workers:
    """A pool of processes, each with one job at a time."""

    def __init__(self, most: int) -> None:
        """Start nothing yet; ``most`` processes at a time."""
        self.most = most
        self._forget()

    def _forget(self) -> None:
        """Have none: a forked process must not talk to its parent's."""
        self._lock = threading.Lock()
        self._idle: queue.LifoQueue[_Worker] = queue.LifoQueue()
        self._all: set[_Worker] = set()

    def start(self) -> None:
        """Let all run, without waiting for them."""
        if self.most and sys.executable:
            threading.Thread(target=self._fill, daemon=True).start()

    def _fill(self) -> None:
        with self._lock:
            for worker in [w for w in self._all if w.poll() is not None]:
                self._all.discard(worker)
            while len(self._all) < self.most:
                try:
                    worker = subprocess.Popen(
                        [sys.executable, str(Path(triton_job.__file__))],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                    )
                except OSError:
                    return
                self._all.add(worker)
                self._idle.put(worker)

    def compile(self, job: Job) -> list[Binary] | None:
        """What a process makes of ``job``; None where there is none, or it ended.

        Raises:
            TritonCompileError: triton rejects the source.
        """
        while self._all:
            try:
                worker = self._idle.get(timeout=0.1)
            except queue.Empty:
                continue
            if worker.poll() is not None:
                self._all.discard(worker)
                continue
            return self._ask(worker, job)
        return None

    def _ask(self, worker: _Worker, job: Job) -> list[Binary] | None:
        assert worker.stdin is not None and worker.stdout is not None
        try:
            triton_job.send(worker.stdin, tuple(job))  # type: ignore[arg-type]
            reply = triton_job.receive(worker.stdout)  # type: ignore[arg-type]
        except (OSError, EOFError):
            self._all.discard(worker)
            worker.kill()
            return None
        self._idle.put(worker)
        if isinstance(reply, str):
            raise TritonCompileError(reply)
        return [Binary(*fields) for fields in reply]

    def stop(self) -> None:
        """End all of them."""
        with self._lock:
            for worker in self._all:
                worker.kill()
            for worker in self._all:
                worker.communicate()
            self._all.clear()


_CORES = count_of_cores()
WORKERS = Workers(min(MOST, _CORES) if _CORES >= FEWEST_CORES else 0)
atexit.register(WORKERS.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS._forget)
