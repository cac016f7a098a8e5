"""Every kernel against its peers on this GPU: ``nox -s bench-kernels``.

    python benchmarks/kernels/run.py [--ops rms_norm softmax] [--json out.json]

Each module of this folder with a ``cases`` function lists an op's shapes and versions. A time is
the median of calls with a flushed L2 cache, all versions of a case one after the other in this
process; the peers' results are compared with ours, and differences above 3 % are printed.
``render.py`` makes ``packages/kernels/BENCHMARKS.md`` and its charts of the results.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

from case import Case, Versions  # noqa: E402

FLUSH = 768 * 2**20  # bytes; several times the L2, and long enough to queue a call behind


class Timer:
    """Median time of calls on the GPU, each after the L2 cache was flushed."""

    def __init__(self) -> None:
        self.flush = torch.empty(FLUSH, dtype=torch.int8, device="cuda")

    def __call__(self, call: Callable[[], object], budget_ms: float = 80.0) -> float:
        """Median microseconds of ``call`` over about ``budget_ms`` of calls."""
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        once = 1000 * (time.perf_counter() - start)
        count = max(5, min(40, int(budget_ms / max(once, 0.01))))
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        for begin, end in events:
            self.flush.zero_()
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        times = sorted(begin.elapsed_time(end) for begin, end in events)
        return 1000 * times[len(times) // 2]


def ceilings(timer: Timer) -> dict[str, float]:
    """What this GPU reaches in this run: bytes/s of a copy, FLOP/s of a bf16 matrix product."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    copy = 2 * source.nbytes / (timer(lambda: target.copy_(source)) * 1e-6)
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * 8192**3 / (timer(lambda: torch.mm(a, b)) * 1e-6)
    return {"copy bytes/s": copy, "matmul flop/s": product}


def _tensors(result: object) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, list | tuple):
        return [t for t in result if isinstance(t, torch.Tensor)]
    return []


def _difference(ours: list[torch.Tensor], peer: list[torch.Tensor]) -> float | None:
    """Largest relative difference in norm of corresponding results, None if they do not match."""
    if len(ours) != len(peer) or any(a.shape != b.shape for a, b in zip(ours, peer, strict=True)):
        return None
    worst = 0.0
    for a, b in zip(ours, peer, strict=True):
        # In parts, since float32 copies of the largest results would not fit beside them.
        difference = norm = 0.0
        for x, y in zip(a.reshape(-1).split(2**28), b.reshape(-1).split(2**28), strict=True):
            difference += float((x.float() - y.float()).square().sum())
            norm += float(y.float().square().sum())
        worst = max(worst, math.sqrt(difference / norm) if norm else 0.0)
    return worst


def measure(case: Case, timer: Timer, peaks: dict[str, float]) -> dict[str, Any]:
    """All versions of one case."""
    torch.manual_seed(0)
    torch.cuda.empty_cache()
    versions: Versions = case.build()
    row: dict[str, Any] = {
        "op": case.op,
        "shape": case.shape,
        "dtype": str(case.dtype).removeprefix("torch."),
        "direction": case.direction,
        "bar": case.bar,
        "us": {},
        "peak bytes": {},
        "differs": {},
        "failed": {},
    }
    kept: list[torch.Tensor] = []
    for name in sorted(versions, key=lambda name: name != "ours"):
        call = versions[name]
        try:
            base = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            found = _tensors(call())
            row["peak bytes"][name] = torch.cuda.max_memory_allocated() - base
            if name == "ours":
                kept = found
            elif (difference := _difference(kept, found)) is not None:
                row["differs"][name] = difference
            del found
            row["us"][name] = timer(call)
        except Exception as error:  # one peer's failure must not end the run
            row["failed"][name] = f"{type(error).__name__}: {str(error)[:200]}"
        gc.collect()
    ours = row["us"].get("ours")
    peers = [us for name, us in row["us"].items() if name != "ours"]
    if ours:
        row["best peer / ours"] = min(peers) / ours if peers else None
        row["of copy"] = None
        if case.bytes and not case.flops:
            row["of copy"] = case.bytes / (ours * 1e-6) / peaks["copy bytes/s"]
        row["flop/s"] = case.flops / (ours * 1e-6) if case.flops else None
        row["flop/byte"] = case.flops / case.bytes if case.bytes and case.flops else None
    if not case.memory:
        del row["peak bytes"]
    return row


def all_cases(ops: list[str] | None) -> Iterator[Case]:
    """The cases of every module of this folder, in the order of the modules' names."""
    for path in sorted(HERE.glob("*.py")):
        module = None
        if path.stem not in ("run", "case", "render", "overhead"):
            module = importlib.import_module(path.stem)
        for case in module.cases() if hasattr(module, "cases") else ():
            if ops is None or case.op in ops:
                yield case


def in_turn(cases: Iterable[Case]) -> list[Case]:
    """First shapes of all ops first, so that a run which ends early has something of each."""
    seen: Counter[tuple[str, str]] = Counter()
    order = []
    for case in cases:
        order.append((seen[case.op, case.direction], len(order), case))
        seen[case.op, case.direction] += 1
    return [case for _, _, case in sorted(order, key=lambda entry: entry[:2])]


def warm(cases: list[Case]) -> None:
    """Calls every version once, so that compilers' caches on disk are full before measuring."""
    for case in cases:
        gc.collect()
        torch.cuda.empty_cache()
        try:
            versions = case.build()
        except Exception as error:  # the measuring run reports it
            print(f"{case.op} {case.shape} {case.direction}: {error!r:.200}", flush=True)
            continue
        for name, call in versions.items():
            try:
                call()
            except Exception as error:
                print(f"{case.op} {case.shape} {name}: {error!r:.200}", flush=True)


def describe(row: dict[str, Any]) -> str:
    """One line for the terminal."""
    times = ", ".join(f"{name} {us:.1f}" for name, us in row["us"].items())
    extra = ""
    if row.get("of copy"):
        extra += f", {row['of copy']:.0%} of copy"
    if row.get("flop/s"):
        extra += f", {row['flop/s'] / 1e12:.0f} TFLOP/s"
    ratio = row.get("best peer / ours")
    verdict = f"{ratio:.2f}x" if ratio else "-"
    notes = "".join(f"; {name} failed: {why[:80]}" for name, why in row["failed"].items())
    notes += "".join(f"; {n} differs {d:.1e}" for n, d in row["differs"].items() if d > 0.03)
    return f"{row['op']} {row['shape']} {row['direction']}: {verdict} [{times}]{extra}{notes}"


def main() -> int:
    """Measures, prints, and writes the tables; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ops", nargs="+", help="only these ops")
    parser.add_argument("--json", type=Path, default=HERE / "results.json")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no case after this")
    parser.add_argument("--skip", type=Path, help="leave out the cases that this JSON file holds")
    parser.add_argument("--warm", metavar="I/N", help="only fill caches, with every N-th case")
    parser.add_argument("--share", metavar="I/N", default="0/1", help="only every N-th case")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write(
            "bench-kernels needs an NVIDIA GPU (compute capability 9.0 for the shipped tables) "
            "with 80 GB of memory or more, and for all peers the package liger-kernel; "
            "there is no GPU here.\n"
        )
        return 2
    # The peers' backward runs many times on one graph.
    importlib.import_module("torch._functorch.config").donated_buffer = False
    if options.warm:
        first, step = (int(part) for part in options.warm.split("/"))
        warm(list(all_cases(options.ops))[first::step])
        return 0
    start = time.perf_counter()
    timer = Timer()
    peaks = ceilings(timer)
    print(
        f"{torch.cuda.get_device_name()}: copy {peaks['copy bytes/s'] / 1e12:.2f} TB/s, "
        f"matmul {peaks['matmul flop/s'] / 1e12:.0f} TFLOP/s",
        flush=True,
    )
    from overhead import overheads

    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": importlib.import_module("triton").__version__,
        "peaks": peaks,
        "overhead us": overheads(),
        "rows": [],
    }
    print("CPU time of a call, us:", record["overhead us"], flush=True)
    done = set()
    if options.skip and options.skip.exists():
        rows = json.loads(options.skip.read_text())["rows"]
        done = {(row["op"], row["shape"], row["direction"], row["dtype"]) for row in rows}
    share, shares = (int(part) for part in options.share.split("/"))
    for case in in_turn(all_cases(options.ops))[share::shares]:
        name = str(case.dtype).removeprefix("torch.")
        if (case.op, case.shape, case.direction, name) in done:
            continue
        if time.perf_counter() - start > options.seconds:
            print("out of time; the rest was not measured", flush=True)
            break
        try:
            row = measure(case, timer, peaks)
        except Exception as error:  # report it, and go on with the others
            print(f"{case.op} {case.shape} {case.direction}: {error!r:.200}", flush=True)
            continue
        record["rows"].append(row)
        print(describe(row), flush=True)
        options.json.write_text(json.dumps(record, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
