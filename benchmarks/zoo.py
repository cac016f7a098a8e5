"""Many models under eager, torch.compile and torchsmith, side by side in one process.

Prints a line per model as it is measured and the geometric means at the end::

    python benchmarks/zoo.py                                  # tiny, on the CPU
    python benchmarks/zoo.py --device cuda --workers 8        # full size, bfloat16
    python benchmarks/zoo.py --models t5 unet --mode reduce-overhead
    python benchmarks/zoo.py --device cuda --workers 8 --train

Ratios are of the other over ours: above 1 ours is faster, or needs less memory. Unlike ``run.py``,
which gives each measurement a process of its own, first calls here share imports and caches; with
``--workers`` models are compiled side by side, and then measured one at a time.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import functools
import inspect
import json
import logging
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from zoo_models import MODELS

Row = dict[str, float | str]
Step = Callable[[], object]


@dataclasses.dataclass
class Prepared:
    """A model compiled by every system: what to time, and what its first calls told."""

    row: Row
    steps: dict[str, Step]


def wait(device: str) -> None:
    """Until queued work is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def samples(step: Step, device: str, budget: float) -> list[float]:
    """Seconds of at least three calls, after two that are not counted."""
    for _ in range(2):
        step()
    wait(device)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < budget:
        begin = time.perf_counter()
        step()
        wait(device)
        times.append(time.perf_counter() - begin)
    return times


def peak(step: Step) -> int:
    """Bytes of GPU memory that one step holds at most above what was there before."""
    wait("cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    wait("cuda")
    return torch.cuda.max_memory_allocated() - before


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
    if args.train:
        if "input_ids" in inputs and "labels" in inspect.signature(model.forward).parameters:
            inputs["labels"] = inputs["input_ids"]
        return model.train(), inputs
    kind = torch.bfloat16 if big else torch.float32
    given = {k: v.to(kind) if v.is_floating_point() else v for k, v in inputs.items()}
    return model.to(kind).eval(), given


def training_step(
    call: Callable[..., object], model: torch.nn.Module, inputs: dict[str, Any], device: str
) -> torch.Tensor:
    """Forward under bfloat16 autocast on a GPU, backward, gradients dropped; returns the loss."""
    with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
        result = call(**inputs)
    loss = getattr(result, "loss", None)
    if loss is None:
        loss = sum(t.float().square().mean() for t in leaves(result) if t.requires_grad)
    loss.backward()
    model.zero_grad(set_to_none=True)
    return loss.detach()


def prepare(name: str, args: argparse.Namespace) -> Prepared:
    """Make a model and run it once under every system that was asked for."""
    model, inputs = make(name, args)
    prepared = Prepared({"model": name}, {})
    row = prepared.row
    wanted: object = None
    for system in ("eager", *(() if args.no_peer else ("torch.compile",)), "torchsmith"):
        call: Callable[..., object] = model
        try:
            if system == "torch.compile":
                call = torch.compile(model, mode=args.mode)
            elif system == "torchsmith":
                import torchsmith

                call = torchsmith.compile(model, mode=args.mode)
            step = functools.partial(call, **inputs)
            if args.train:
                step = functools.partial(training_step, call, model, inputs, args.device)
            begin = time.perf_counter()
            result = step()
            wait(args.device)
            row[f"{system} first"] = time.perf_counter() - begin
            if system == "eager":
                wanted = result
            else:
                row[f"{system} error"] = distance(result, wanted)
            del result
            for _ in range(2):  # recompiles, recordings, choices that later calls make
                step()
            prepared.steps[system] = step
        except Exception as error:
            row[f"{system} failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return prepared


def measure(prepared: Prepared, args: argparse.Namespace) -> Row:
    """Median step of every system, in three rounds that take turns, and peak memory on a GPU."""
    row = prepared.row
    times: dict[str, list[float]] = {}
    for _ in range(3):
        for system, step in list(prepared.steps.items()):
            try:
                times.setdefault(system, []).extend(samples(step, args.device, args.budget / 3))
                if args.device == "cuda":
                    row[f"{system} peak"] = peak(step)
            except Exception as error:
                row[f"{system} failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:120]
                del prepared.steps[system]
    for system in prepared.steps:
        row[system] = statistics.median(times[system])
    prepared.steps.clear()
    if args.device == "cuda":
        torch.cuda.empty_cache()
    return row


def ratio(row: Row, system: str, what: str = "") -> float:
    """How many times ours ``system`` takes; NaN where one of the two failed."""
    ours = float(row.get(f"torchsmith{what}", math.nan))
    return float(row.get(f"{system}{what}", math.nan)) / ours if ours else math.nan


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
            if f"{system} peak" in row:
                parts.append(f"memory {ratio(row, system, ' peak'):4.2f}x")
    if "torchsmith error" in row:
        parts.append(f"first {float(row['torchsmith first']):.2f} s")
        parts.append(f"error {float(row['torchsmith error']):.0e}")
    return "  ".join(parts)


def geomean(values: list[float]) -> float:
    """Geometric mean of those that are numbers."""
    logs = [math.log(v) for v in values if not math.isnan(v) and v > 0]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def summary(rows: list[Row]) -> str:
    """Geometric means of the ratios."""
    lines = []
    for system in ("eager", "torch.compile"):
        if not any(system in row for row in rows):
            continue
        said = f"{geomean([ratio(row, system) for row in rows]):.2f}x {system}"
        if any(f"{system} peak" in row for row in rows):
            said += f", memory {geomean([ratio(row, system, ' peak') for row in rows]):.2f}x"
        lines.append(f"geometric mean over {len(rows)} models: {said}")
    return "\n".join(lines)


@contextmanager
def alone(meeting: Path | None, worker: int, workers: int) -> Iterator[None]:
    """Wait until every worker has compiled, then hold the only right to measure."""
    if meeting is None:
        yield
        return
    (meeting / f"ready-{worker}").touch()
    while len(list(meeting.glob("ready-*"))) < workers:
        time.sleep(0.1)
    with (meeting / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def work(args: argparse.Namespace) -> list[Row]:
    """Measure this process's share of the models."""
    index, count = map(int, args.shard.split("/"))
    gradients = torch.enable_grad() if args.train else torch.no_grad()
    with gradients:
        if args.meeting is None:  # one at a time: nothing is held longer than it is measured
            rows = []
            for name in args.models[index::count]:
                rows.append(measure(prepare(name, args), args))
                print(line(rows[-1]), flush=True)
            return rows
        prepared = [prepare(name, args) for name in args.models[index::count]]
        with alone(args.meeting, index, count):
            rows = []
            for one in prepared:
                rows.append(measure(one, args))
                print(line(rows[-1]), flush=True)
            return rows


def together(args: argparse.Namespace) -> list[Row]:
    """Run one process a worker; each compiles its share, and they measure in turn."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder)
        given = list(sys.argv[1:])
        at = given.index("--workers")
        del given[at : at + 2]
        mine = [sys.executable, __file__, *given, "--meeting", folder]
        started = [
            subprocess.Popen(
                [*mine, "--shard", f"{i}/{args.workers}", "--json", f"{meeting}/{i}.json"]
            )
            for i in range(args.workers)
        ]
        while any(process.poll() is None for process in started):
            for i, process in enumerate(started):
                if process.poll() is not None:  # one that died must not keep the others waiting
                    (meeting / f"ready-{i}").touch()
            time.sleep(0.2)
        found = [path for i in range(args.workers) if (path := meeting / f"{i}.json").exists()]
        return [row for path in found for row in json.loads(path.read_text())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th model, from the i-th")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--mode", default=None, help="of both compilers")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    parser.add_argument("--budget", type=float, default=0.3, help="seconds of steps a system")
    parser.add_argument("--no-peer", action="store_true", help="leave torch.compile out")
    parser.add_argument("--threads", type=int, help="of the CPU, for torch")
    parser.add_argument("--workers", type=int, default=1, help="processes that compile")
    parser.add_argument("--meeting", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    if args.threads:
        torch.set_num_threads(args.threads)
    rows = together(args) if args.workers > 1 else work(args)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    if args.meeting is None:
        print(summary(rows))


if __name__ == "__main__":
    main()
