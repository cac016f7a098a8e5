"""The device with which kernels are measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

Run = Callable[[], object]


class Stopwatch(Protocol):
    """Measures on one device. Tests play it."""

    def obstacle(self, size: int) -> str:
        """Why launches on buffers of ``size`` bytes cannot be measured now; empty if they can."""

    def rounds(self, runs: Sequence[Run], count: int) -> list[list[float]]:
        """For each of ``runs`` the seconds that it took, ``count`` times, all of them in turns."""

    def close(self) -> None:
        """Give back what measuring took."""


class CudaStopwatch:
    """Events around each launch, behind a write that empties the cache.

    That write also keeps the device busy while the host prepares what comes after it, so that the
    time between the events is the kernel's own. Turns spread a change of clock over all candidates.
    """

    def __init__(self, device: torch.device) -> None:
        """``device``: with an index, or the current one."""
        self._device = device
        self._scratch: torch.Tensor | None = None

    def obstacle(self, size: int) -> str:
        """See ``Stopwatch``."""
        if torch.cuda.is_current_stream_capturing():
            return "a CUDA graph is being recorded"
        free, _ = torch.cuda.mem_get_info(self._device)
        return "too little memory is free" if 2 * size > free else ""

    def rounds(self, runs: Sequence[Run], count: int) -> list[list[float]]:
        """See ``Stopwatch``."""
        if self._scratch is None:
            size = torch.cuda.get_device_properties(self._device).L2_cache_size
            self._scratch = torch.empty(max(2 * size, 2**26), dtype=torch.int8, device=self._device)
        with torch.cuda.device(self._device):
            marks = [[(_event(), _event()) for _ in range(count)] for _ in runs]
            for turn in range(count):
                for run, own in zip(runs, marks):
                    begin, end = own[turn]
                    self._scratch.zero_()
                    begin.record()
                    run()
                    end.record()
            torch.cuda.synchronize()
        return [[begin.elapsed_time(end) * 1e-3 for begin, end in own] for own in marks]

    def close(self) -> None:
        """See ``Stopwatch``."""
        if self._scratch is not None:
            self._scratch = None
            torch.cuda.empty_cache()


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
