"""What a call of a compiled ``x + 1`` costs over eager, in microseconds, and what the tracer takes
for an operator of a long program, in milliseconds of processor time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, cast

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


def chain(length: int) -> Callable[..., torch.Tensor]:
    """A function of ``length`` operators, one a line."""
    lines = ("x = x + b", "x = x * 0.5", "x = x.view(8, 8)", "x = linear(x, w, b)")
    body = "".join(f"    {lines[i % len(lines)]}\n" for i in range(length))
    space: dict[str, Any] = {"linear": torch.nn.functional.linear}
    exec(f"def program(x, w, b):\n{body}    return x\n", space)
    return cast("Callable[..., torch.Tensor]", space["program"])


def measure_capture(lengths: tuple[int, ...] = (1000, 5000), rounds: int = 5) -> dict[int, float]:
    """Milliseconds an operator of first calls, the least of ``rounds``, for each length."""
    import torchsmith_tracer

    args = (torch.randn(8, 8), torch.randn(8, 8) / 4, torch.randn(8))
    best: dict[int, float] = {}
    for length in (100, *lengths * rounds):  # the first is not measured: modules are imported
        compiled = torchsmith_tracer.compile(chain(length), backend=lambda gm, _: gm.forward)
        begin = time.process_time()
        compiled(*args)
        spent = (time.process_time() - begin) / length * 1e3
        best[length] = min(best.get(length, spent), spent)
    return {length: best[length] for length in lengths}


if __name__ == "__main__":
    for name, value in measure_overhead().items():
        print(f"{name:14s} {value:6.2f} us")
    for length, value in measure_capture().items():
        print(f"capture of {length} operators: {value:.3f} ms each")
