"""CUDA graphs: how recordings are made and replayed on an NVIDIA GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch

from torchsmith_fx_backend._src.runtime import gpu_driver
from torchsmith_fx_backend._src.runtime.recordings import Outputs


class _Pool:
    """Memory that recordings share, and their order."""

    def __init__(self, device: int) -> None:
        self.handle: Any = torch.cuda.graph_pool_handle()
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # where recordings are made
        self.last: torch.cuda.Stream | None = None  # where the last replay was queued
        self.lock = threading.RLock()
        # A pool without a recording cannot be recorded into again, so one stays.
        self.keeper = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            recording = torch.cuda.graph(self.keeper, pool=self.handle, stream=self.stream)
            with recording:
                torch.zeros(1, device="cuda")


class CudaRecorder:
    """Records CUDA graphs on one device. See ``Recorder``.

    What a device's generator draws while a graph is recorded, a replay draws anew where the
    generator then stands, as the same call without a recording would.
    """

    _pools: ClassVar[dict[int, _Pool]] = {}
    _making: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, device: int, *, private: bool = False) -> None:
        """Nothing is asked of the device before the first call.

        Args:
            device: its ordinal.
            private: memory is shared with no other recorder.
        """
        self.device = device
        self._shared = {} if private else self._pools
        self._pool: _Pool | None = None

    def ready(self) -> bool:
        # If the caller records, what we would replay becomes a part of that.
        return not torch.cuda.is_current_stream_capturing()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        pool = self._found()
        with pool.lock:
            last = pool.last
            if last is None or last.cuda_stream != gpu_driver.current_stream(self.device):
                pool.last = torch.cuda.current_stream(self.device)
                if last is not None:
                    pool.last.wait_stream(last)
            yield

    def random_state(self) -> object:
        return torch.get_rng_state().tolist()

    def record(self, run: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
        pool, device = self._found(), self.device
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(device):
            recording = torch.cuda.graph(
                graph, pool=pool.handle, stream=pool.stream, capture_error_mode="thread_local"
            )
            with recording:
                results = run()

        def replay() -> None:
            if gpu_driver.current_device() == device:
                graph.replay()
            else:
                with gpu_driver.on_device(device):
                    graph.replay()

        return replay, results

    def _found(self) -> _Pool:
        if self._pool is None:
            with self._making:
                self._pool = self._shared.get(self.device)
                if self._pool is None:
                    self._pool = self._shared[self.device] = _Pool(self.device)
        return self._pool


def ordinal(values: Iterable[object]) -> int:
    """The GPU that tensors are on."""
    devices = [x.device for x in values if isinstance(x, torch.Tensor)]
    return next((d.index for d in devices if d.index is not None), 0)
