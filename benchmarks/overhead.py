"""What a call of a compiled ``x + 1`` costs over eager, in microseconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def call_us(fn: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, calls: int) -> float:
    """Microseconds a call over one batch of ``calls``."""
    begin = time.perf_counter()
    for _ in range(calls):
        fn(x)
    return (time.perf_counter() - begin) / calls * 1e6


def measure_overhead(device: str = "cpu", rounds: int = 41, calls: int = 1000) -> dict[str, float]:
    """Median microseconds over eager for torch.compile and torchsmith, interleaved rounds."""
    import torchsmith

    x = torch.ones(4, device=device)
    candidates = {
        "eager": add_one,
        "torch.compile": torch.compile(add_one),
        "torchsmith": torchsmith.compile(add_one),
    }
    times: dict[str, list[float]] = {name: [] for name in candidates}
    with torch.no_grad():
        for fn in candidates.values():
            call_us(fn, x, calls)
        for _ in range(rounds):
            for name, fn in candidates.items():
                times[name].append(call_us(fn, x, calls))
    median = {name: statistics.median(values) for name, values in times.items()}
    eager = median.pop("eager")
    return {"eager itself": eager} | {name: value - eager for name, value in median.items()}


if __name__ == "__main__":
    for name, value in measure_overhead().items():
        print(f"{name:14s} {value:6.2f} us")
