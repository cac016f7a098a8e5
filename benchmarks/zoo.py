"""Many models under eager, torch.compile and torchsmith, side by side in one process.

Prints a line per model as it is measured and the geometric means at the end::

    python benchmarks/zoo.py                                  # tiny, on the CPU
    python benchmarks/zoo.py --device cuda --shard 0/3        # full size, bfloat16, every third
    python benchmarks/zoo.py --models t5 unet --mode reduce-overhead

Ratios are times of the other over ours: above 1 ours is faster. Unlike ``run.py``, which gives each
measurement a process of its own, first calls here share imports and caches.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from zoo_models import MODELS

Row = dict[str, float | str]


def wait(device: str) -> None:
    """Until queued work is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(call: Callable[[], object], device: str, budget: float) -> float:
    """Median of at least five calls."""
    for _ in range(3):
        call()
    wait(device)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 5 or time.perf_counter() - start < budget:
        begin = time.perf_counter()
        call()
        wait(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def leaves(result: Any) -> list[torch.Tensor]:
    """The tensors of a result, in order."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [tensor for item in result for tensor in leaves(item)]
    return []


def distance(got: object, wanted: object) -> float:
    """Largest relative distance of an output from eager's."""
    worst = 0.0
    for a, b in zip(leaves(got), leaves(wanted), strict=True):
        if b.is_floating_point() and b.numel():
            b = b.double()
            worst = max(worst, float((a.double() - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def make(name: str, args: argparse.Namespace) -> tuple[torch.nn.Module, dict[str, Any]]:
    """A model and its inputs, the same at each call."""
    torch.manual_seed(0)
    big = args.device == "cuda"
    with torch.device(args.device):
        model, inputs = MODELS[name](big)
    kind = torch.bfloat16 if big else torch.float32
    given = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs.items()}
    return model.to(kind).eval(), given


def measure(name: str, args: argparse.Namespace) -> Row:
    """Times of one model under every system that was asked for."""
    row: Row = {"model": name}
    wanted: object = None
    for system in ("eager", *(() if args.no_peer else ("torch.compile",)), "torchsmith"):
        model, inputs = make(name, args)
        call: Callable[..., object] = model
        step: Callable[[], object] | None = None
        try:
            if system == "torch.compile":
                torch.compiler.reset()
                call = torch.compile(model, mode=args.mode)
            elif system == "torchsmith":
                import torchsmith

                call = torchsmith.compile(model, mode=args.mode)
            begin = time.perf_counter()
            result = call(**inputs)
            wait(args.device)
            row[f"{system} first"] = time.perf_counter() - begin
            if system == "eager":
                wanted = result
            else:
                row[f"{system} error"] = distance(result, wanted)
            del result
            step = functools.partial(call, **inputs)
            row[system] = seconds(step, args.device, args.budget)
        except Exception as error:
            row[f"{system} failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
        del call, model, step
        if args.device == "cuda":
            torch.cuda.empty_cache()
    return row


def ratio(row: Row, system: str) -> float:
    """How many times faster than ``system``; NaN where one of the two failed."""
    return float(row.get(system, math.nan)) / float(row.get("torchsmith", math.nan))


def line(row: Row) -> str:
    """One row as text."""
    parts = [f"{row['model']:13}"]
    for system in ("eager", "torch.compile", "torchsmith"):
        if system in row:
            parts.append(f"{system} {1e3 * float(row[system]):8.3f} ms")
        elif f"{system} failed" in row:
            parts.append(f"{system} failed: {row[f'{system} failed']}")
    for system in ("eager", "torch.compile"):
        if system in row and "torchsmith" in row:
            parts.append(f"{ratio(row, system):5.2f}x {system}")
    if "torchsmith error" in row:
        parts.append(f"first {float(row['torchsmith first']):.2f} s")
        parts.append(f"error {float(row['torchsmith error']):.0e}")
    return "  ".join(parts)


def geomean(values: list[float]) -> float:
    """Geometric mean of those that are numbers."""
    logs = [math.log(v) for v in values if not math.isnan(v)]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th model, from the i-th")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mode", default=None, help="of both compilers")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of steps a system")
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--threads", type=int, help="of the CPU, for torch")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.threads:
        torch.set_num_threads(args.threads)
    index, count = map(int, args.shard.split("/"))
    rows: list[Row] = []
    with torch.no_grad():
        for name in args.models[index::count]:
            rows.append(measure(name, args))
            print(line(rows[-1]), flush=True)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
    for system in ("eager", "torch.compile"):
        mean = geomean([ratio(row, system) for row in rows])
        print(f"geometric mean over {len(rows)} models: {mean:.2f}x {system}")


if __name__ == "__main__":
    main()
