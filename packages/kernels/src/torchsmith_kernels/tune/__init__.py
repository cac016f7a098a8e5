"""Measure tile sizes on this GPU and keep the best: ``python -m torchsmith_kernels.tune``.

Tuning is explicit: nothing is measured behind a user's back. Each shape class of an op tries a
handful of configurations, checks each against the reference, times it with a flushed cache, and
stores the fastest for all later processes on this kind of chip.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from torchsmith_kernels._src import launch, tuning
from torchsmith_kernels.errors import TuningError

__all__ = ["main", "tune"]

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def tune(
    ops: Sequence[str] | None = None,
    dtypes: Sequence[torch.dtype] = (torch.bfloat16,),
    *,
    report: Callable[[str], object] = lambda line: None,
) -> list[Path]:
    """Measures ops on the current GPU and stores their fastest configurations.

    Args:
        ops: names of ops to tune; None tunes all that have something to tune.
        dtypes: element types.
        report: called with one line per measured configuration.

    Returns:
        The files that hold the results, one per op, below ``$TORCHSMITH_CACHE_DIR/kernels``.

    Raises:
        TuningError: there is no supported GPU, or an argument names nothing to tune.
    """
    if isinstance(ops, str) or isinstance(dtypes, torch.dtype):
        name, given = ("ops", repr(ops)) if isinstance(ops, str) else ("dtypes", str(dtypes))
        raise TuningError(message=f"`{name}` is {given}; it must be a sequence of them")
    known = sorted(tuning.TUNABLE)
    chosen = known if ops is None else list(ops)
    unknown = sorted(set(chosen) - set(known))
    if unknown or not chosen:
        raise TuningError(message=f"`ops` is {chosen}; accepted are {', '.join(known)}")
    strange = [str(dtype) for dtype in dtypes if dtype not in DTYPES.values()]
    if strange or not dtypes:
        accepted = ", ".join(DTYPES)
        raise TuningError(message=f"`dtypes` is {[str(d) for d in dtypes]}; accepted: {accepted}")
    if not torch.cuda.is_available():
        raise TuningError(message="no CUDA device is available")
    device = torch.device("cuda", torch.cuda.current_device())
    reason = launch.problem(device.type, device.index)
    if reason is not None:
        raise TuningError(message=reason)
    return [tuning.tune_op(op, dtypes, device, report) for op in chosen]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line entry; returns the exit status (0 done, 2 cannot)."""
    parser = argparse.ArgumentParser(prog="torchsmith_kernels.tune", description=__doc__)
    parser.add_argument("--ops", nargs="+", metavar="OP", help="default: all")
    parser.add_argument("--dtypes", choices=DTYPES, nargs="+", default=["bfloat16"])
    options = parser.parse_args(argv)
    try:
        paths = tune(
            options.ops,
            [DTYPES[name] for name in options.dtypes],
            report=lambda line: sys.stderr.write(line + "\n"),
        )
    except TuningError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    for path in paths:
        sys.stdout.write(f"{path}\n")
    return 0
