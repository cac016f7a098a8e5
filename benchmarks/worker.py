"""One measurement in one fresh process: a model under one system. Prints one line of JSON.

Run by ``run.py`` and ``demo.py``; by hand::

    python benchmarks/worker.py --model bert --system torchsmith
"""

from __future__ import annotations

import argparse
import json
import logging
import re
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from models import make, tensors

LAUNCH = re.compile(r"^\s+kernel_\w+\(", re.M)
SYSTEMS = ("eager", "torch.compile", "torchsmith")
Call = Callable[..., Any]


def compiled(system: str, model: torch.nn.Module, *, strict: bool = True) -> Call:
    """``model`` under ``system``."""
    if system == "eager":
        return model
    if system == "torch.compile":
        return torch.compile(model, fullgraph=strict)
    import torchsmith

    return torchsmith.compile(model, fullgraph=strict)


def sync(device: str) -> None:
    """Wait for queued device work."""
    if device == "cuda":
        torch.cuda.synchronize()


def step_seconds(call: Call, inputs: dict[str, Any], device: str, budget: float) -> float:
    """Median seconds of a step after three warm-up steps, over at least 10 steps or ``budget``."""
    for _ in range(3):
        call(**inputs)
    sync(device)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < 10 or time.perf_counter() - start < budget:
        begin = time.perf_counter()
        call(**inputs)
        sync(device)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def training_step(call: Call, model: torch.nn.Module) -> Call:
    """A function that gives the loss of ``call``'s results and the gradients of all parameters."""

    def step(**inputs: object) -> list[torch.Tensor]:
        model.zero_grad()
        loss = sum(each.square().mean() for each in tensors(call(**inputs)))
        loss.backward()
        return [loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    return step


def peak_bytes(call: Call, inputs: dict[str, Any], device: str) -> int:
    """The most tensor memory that one step holds above what it started with."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call(**inputs)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    profile = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    )
    with profile:
        result = call(**inputs)
    del result
    held = peak = 0
    assert profile.profiler is not None
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def relative_error(got: object, reference: object) -> float:
    """Largest over the outputs of ``|got - reference| / |reference|`` in float64."""
    worst = 0.0
    for a, b in zip(tensors(got), tensors(reference), strict=True):
        b = b.double()
        worst = max(worst, float((a.double() - b).norm() / b.norm().clamp_min(1e-30)))
    return worst


def counts(
    system: str, model: Call, call: Call, inputs: dict[str, Any], device: str
) -> tuple[int, int]:
    """(graphs, kernels) of a step ``call`` of ``model``; -1 where the system does not say.

    Kernels are device launches on a GPU, and on the CPU the generated kernels that a step runs.
    """
    graphs = kernels = -1
    if system == "torchsmith":
        import torchsmith

        report = torchsmith.explain(model)(**inputs)
        graphs = report.graph_count
        kernels = sum(len(LAUNCH.findall(frame.wrapper)) for frame in report.frames)
    if device == "cuda":
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            call(**inputs)
            torch.cuda.synchronize()
        kernels = sum(e.count for e in profile.key_averages() if e.self_device_time_total > 0)
    return graphs, kernels


def measure(
    name: str, system: str, device: str, dtype: str, budget: float, train: bool = False
) -> dict[str, object]:
    """All numbers of one model under one system, of its forward pass or with ``train`` of forward
    and backward."""
    scale = "gpu" if device == "cuda" else "cpu"
    torch.set_num_threads(min(torch.get_num_threads(), 2) if device == "cpu" else 8)
    model, inputs = make(name, scale)
    kind = getattr(torch, dtype)

    def place(value: Any, to: torch.dtype) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value.to(device)
        return value.to(to) if value.is_floating_point() else value

    model = model.to(device)
    with torch.set_grad_enabled(train):
        wide = model.double()
        exact = training_step(wide, wide) if train else wide
        reference = [t.clone() for t in tensors(exact(**place_all(inputs, place, torch.float64)))]
        model, _ = make(name, scale)
        model = model.to(device=device, dtype=kind)
        inputs = place_all(inputs, place, kind)
        sync(device)
        whole = call = compiled(system, model)
        if train:
            call = training_step(whole, model)
        begin = time.perf_counter()
        result = call(**inputs)
        sync(device)
        first = time.perf_counter() - begin
        error = relative_error(result, reference)
        del result, reference
        step = step_seconds(call, inputs, device, budget)
        peak = peak_bytes(call, inputs, device)
        graphs, kernels = counts(system, whole, call, inputs, device)
        if train and device == "cpu":
            kernels = -1  # the report tells those of the forward half
        return {
            "model": name,
            "system": system,
            "device": device,
            "dtype": dtype,
            "first_s": first,
            "step_s": step,
            "peak_bytes": peak,
            "graphs": graphs,
            "kernels": kernels,
            "error": error,
        }


def place_all(inputs: dict[str, Any], place: Call, dtype: torch.dtype) -> dict[str, Any]:
    """``place`` applied to every input."""
    return {key: place(value, dtype) for key, value in inputs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--system", required=True, choices=SYSTEMS)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds of steady steps")
    parser.add_argument("--train", action="store_true", help="forward and backward")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    result = measure(args.model, args.system, args.device, args.dtype, args.budget, args.train)
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
