"""Measure tile sizes on this GPU and keep the best: ``python -m torchsmith_kernels.tune``.

Tuning is explicit: nothing is measured behind a user's back. Each case tries a handful of
configurations, checks each against the reference, times it with a flushed cache, and stores the
fastest for all later processes on this kind of chip.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from torchsmith_kernels._src import launch, store
from torchsmith_kernels._src.rms_norm import reference, run
from torchsmith_kernels._src.rms_norm.config import Case, Config, candidates
from torchsmith_kernels.errors import TuningError

__all__ = ["main", "tune"]

WIDTHS = (1024, 2048, 4096, 5120, 8192, 16384)
KERNELS = ("forward", "backward")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def tune(
    widths: Sequence[int] = WIDTHS,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16,),
    *,
    kernels: Sequence[str] = KERNELS,
    rows: int = 8192,
    report: Callable[[str], object] = lambda line: None,
) -> Path:
    """Measures RMS norm on the current GPU and stores the fastest configurations.

    Args:
        widths: row widths to tune for.
        dtypes: element types.
        kernels: ``forward``, ``backward`` or both.
        rows: rows of the measured tensors; enough to fill the chip.
        report: called with one line per measured configuration.

    Returns:
        The file that holds the results.

    Raises:
        TuningError: there is no supported GPU, or an argument names nothing to tune.
    """
    unknown = sorted(set(kernels) - set(KERNELS))
    if unknown or not kernels:
        raise TuningError(
            message=f"`kernels` is {list(kernels)}; accepted are {', '.join(KERNELS)}"
        )
    if not all(isinstance(width, int) and width > 0 for width in widths) or rows <= 0:
        raise TuningError(message="`widths` and `rows` must be positive integers")
    if not torch.cuda.is_available():
        raise TuningError(message="no CUDA device is available")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = launch.problem(device.type, device.index)
    if reason is not None:
        raise TuningError(message=reason)
    entries: store.Table = {}
    for dtype in dtypes:
        for width in widths:
            for kernel in kernels:
                case = Case(kernel, width, dtype)
                best, time = _fastest(case, rows, device, report)
                entries[case.key()] = {"config": asdict(best), "microseconds": time, "rows": rows}
    name = torch.cuda.get_device_name(device)
    return store.save("rms_norm", launch.capability(device), name, entries)


def _fastest(
    case: Case, rows: int, device: torch.device, report: Callable[[str], object]
) -> tuple[Config, float]:
    from triton.testing import do_bench

    x = torch.randn(rows, case.width, device=device, dtype=case.dtype)
    grad = torch.randn_like(x)
    weight = torch.randn(case.width, device=device, dtype=case.dtype)
    shape, eps = (case.width,), 1e-6
    results: list[tuple[float, Config]] = []
    for config in candidates(case):
        call: Callable[[], Any]
        if case.kernel == "forward":
            call = _Call(run.forward_triton, x, shape, weight, eps, config)
            want: tuple[Any, ...] = (reference.forward(x, shape, weight, eps),)
            got: tuple[Any, ...] = (call(),)
        else:
            call = _Call(run.backward_triton, grad, x, shape, weight, eps, True, True, config)
            want, got = reference.backward(grad, x, shape, weight, eps), call()
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 * rows**0.5)
        time = 1000 * float(do_bench(call, return_mode="median"))
        results.append((time, config))
        report(f"{case.key():32s} {time:9.1f} us  {config}")
    # Ties go to the earlier candidate, so that equal runs store equal tables.
    time, best = min(results, key=lambda result: result[0])
    return best, round(time, 2)


class _Call:
    """A function with its arguments; a lambda in a loop would see later ones."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self.function, self.args = function, args

    def __call__(self) -> Any:
        return self.function(*self.args)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status (0 done, 2 cannot)."""
    parser = argparse.ArgumentParser(prog="torchsmith_kernels.tune", description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["bfloat16"])
    parser.add_argument("--kernels", choices=KERNELS, nargs="+", default=list(KERNELS))
    parser.add_argument("--rows", type=int, default=8192)
    options = parser.parse_args(argv)
    try:
        path = tune(
            options.widths,
            [DTYPES[name] for name in options.dtypes],
            kernels=options.kernels,
            rows=options.rows,
            report=lambda line: sys.stderr.write(line + "\n"),
        )
    except TuningError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
