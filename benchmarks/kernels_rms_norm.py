"""RMS norm on a GPU: ours against eager, torch.compile and the memory's own speed.

    python benchmarks/kernels_rms_norm.py [--dtype bfloat16] [--json out.json]

For each shape the median time of a call with a flushed L2 cache, forward and backward, and the
share of the bandwidth that a large device-to-device copy reaches in the same run. Bytes are those
that must move: forward reads the input and writes the output, backward reads input and gradient and
writes one. Last comes the time that a call takes on the CPU side.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torchsmith_kernels import rms_norm

SHAPES = [
    (131072, 128),
    (65536, 512),
    (32768, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 32768),
    (512, 131072),
    (16, 4096),
    (16385, 5000),
]


def median_us(call: Callable[[], Any]) -> float:
    """Median microseconds of ``call``; the L2 cache is flushed before each."""
    from triton.testing import do_bench

    return 1000 * float(do_bench(call, warmup=10, rep=60, return_mode="median"))


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a 2 GiB copy."""
    source = torch.randn(2**29, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / (median_us(lambda: target.copy_(source)) * 1e-6)


def call_overhead_us(function: Callable[[], Any], calls: int = 2000) -> float:
    """CPU time of one call: the queue is drained between batches that fit into it."""
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls // 20):
            function()
        times.append((time.perf_counter() - start) / (calls // 20))
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def row(rows: int, width: int, dtype: torch.dtype, peak: float) -> dict[str, Any]:
    """All measurements of one shape."""
    x = torch.randn(rows, width, device="cuda", dtype=dtype).requires_grad_()
    weight = torch.randn(width, device="cuda", dtype=dtype).requires_grad_()
    grad = torch.randn(rows, width, device="cuda", dtype=dtype)

    def eager(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (width,), weight, 1e-6)

    torch._dynamo.reset()
    versions = {
        "eager": eager,
        "compile": torch.compile(eager, dynamic=False),
        "ours": lambda x, weight: rms_norm(x, (width,), weight, 1e-6),
    }
    result: dict[str, Any] = {"rows": rows, "width": width, "dtype": str(dtype)}
    exact = F.rms_norm(x.detach().double(), (width,), weight.detach().double(), 1e-6)
    for name, function in versions.items():
        with torch.no_grad():
            error = (function(x, weight).double() - exact).norm() / exact.norm()
            result[f"{name} error"] = float(error)
            result[f"{name} forward us"] = median_us(lambda f=function: f(x, weight))
        y = function(x, weight)
        result[f"{name} backward us"] = median_us(
            lambda y=y: torch.autograd.grad(y, (x, weight), grad, retain_graph=True)
        )
    size = x.nbytes
    result["forward of copy"] = 2 * size / (result["ours forward us"] * 1e-6) / peak
    result["backward of copy"] = 3 * size / (result["ours backward us"] * 1e-6) / peak
    return result


def overheads() -> dict[str, float]:
    """CPU-side microseconds of calls whose device work is negligible."""
    x = torch.randn(4, 128, device="cuda")
    weight = torch.randn(128, device="cuda")
    trained = weight.clone().requires_grad_()
    with torch.no_grad():
        result = {
            "eager": call_overhead_us(lambda: F.rms_norm(x, (128,), weight, 1e-6)),
            "ours": call_overhead_us(lambda: rms_norm(x, (128,), weight, 1e-6)),
        }
    result["eager, recording"] = call_overhead_us(lambda: F.rms_norm(x, (128,), trained, 1e-6))
    result["ours, recording"] = call_overhead_us(lambda: rms_norm(x, (128,), trained, 1e-6))
    return result


def main() -> None:
    """Measure and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dtype", choices=["bfloat16", "float16", "float32"], default="bfloat16")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA device")
    dtype = getattr(torch, options.dtype)
    peak = copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {options.dtype}; ", end="")
    print(f"a copy moves {peak / 1e12:.2f} TB/s\n")
    head = "| rows x width | forward us: eager | compile | ours | of copy "
    print(head + "| backward us: eager | compile | ours | of copy | error / eager's |")
    print("|---" * 10 + "|")
    results = []
    for rows, width in SHAPES:
        r = row(rows, width, dtype, peak)
        results.append(r)
        cells = [f"{rows} x {width}"]
        for way in ("forward", "backward"):
            cells += [f"{r[f'{name} {way} us']:.1f}" for name in ("eager", "compile", "ours")]
            cells.append(f"{r[f'{way} of copy']:.0%}")
        cells.append(f"{r['ours error'] / max(r['eager error'], 1e-30):.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)
    cost = overheads()
    print("\nCPU time of one call: " + ", ".join(f"{k} {v:.1f} us" for k, v in cost.items()))
    if options.json:
        record = {"copy bytes/s": peak, "overhead us": cost, "rows": results}
        options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
