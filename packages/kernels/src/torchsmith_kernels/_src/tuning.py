"""Measuring configurations: what an op says about itself, and the loop that tries them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, store, tables

#: Ops that can be tuned, each with the place of its ``Tunable``.
TUNABLE: dict[str, str] = {
    "apply_rotary": "torchsmith_kernels._src.apply_rotary.tuning:tunable",
    "embedding": "torchsmith_kernels._src.embedding.tuning:tunable",
    "group_norm": "torchsmith_kernels._src.group_norm.tuning:tunable",
    "rms_norm": "torchsmith_kernels._src.rms_norm.tuning:tunable",
    "layer_norm": "torchsmith_kernels._src.layer_norm.tuning:tunable",
    "add_rms_norm": "torchsmith_kernels._src.add_rms_norm.tuning:tunable",
    "add_layer_norm": "torchsmith_kernels._src.add_layer_norm.tuning:tunable",
    "matmul": "torchsmith_kernels._src.matmul.tuning:tunable",
    "paged_attention": "torchsmith_kernels._src.paged_attention.tuning:tunable",
    "flash_attention": "torchsmith_kernels._src.flash_attention.tuning:tunable",
    "relu_squared": "torchsmith_kernels._src.relu_squared.tuning:tunable",
    "cross_entropy": "torchsmith_kernels._src.cross_entropy.tuning:tunable",
    "softmax": "torchsmith_kernels._src.softmax.tuning:tunable",
    "kl_div": "torchsmith_kernels._src.kl_div.tuning:tunable",
    "swiglu": "torchsmith_kernels._src.swiglu.tuning:tunable",
    "geglu": "torchsmith_kernels._src.geglu.tuning:tunable",
    "dropout": "torchsmith_kernels._src.dropout.tuning:tunable",
    "bias_gelu_dropout": "torchsmith_kernels._src.bias_gelu_dropout.tuning:tunable",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A case made concrete on a device.

    Attributes:
        run: computes the result with a given configuration; a result that is one tensor comes as a
            sequence of one.
        reference: what the result must be.
        tolerance: largest accepted ``norm(result - reference) / norm(reference)`` of each tensor.
    """

    run: Callable[[Any], Sequence[Tensor]]
    reference: Callable[[], Sequence[Tensor]]
    tolerance: float = 2e-2


@dataclass(frozen=True, slots=True)
class Tunable:
    """How an op is tuned.

    Attributes:
        op: its name.
        cases: the shape classes worth measuring for some dtypes.
        candidates: the configurations to try for a case; a dozen at most.
        problem: the concrete tensors for a case.
    """

    op: str
    cases: Callable[[Sequence[torch.dtype]], Sequence[Any]]
    candidates: Callable[[Any], Sequence[Any]]
    problem: Callable[[Any, torch.device], Problem]


def find(op: str) -> Tunable:
    """The ``Tunable`` of an op in ``TUNABLE``."""
    module, _, name = TUNABLE[op].partition(":")
    found: Tunable = getattr(import_module(module), name)
    return found


def measure(
    tunable: Tunable, case: Any, device: torch.device, report: Callable[[str], object]
) -> dict[str, object] | None:
    """The fastest right configuration as an entry of a stored table, None when none is right.

    Args:
        tunable: the op.
        case: one of its cases.
        device: a CUDA device.
        report: called with one line per configuration.
    """
    from triton.testing import do_bench

    problem = tunable.problem(case, device)
    configs = list(dict.fromkeys(tunable.candidates(case)))
    with launch.compiling_only(), ThreadPoolExecutor(16) as pool:
        failures = dict(
            zip(configs, pool.map(lambda c: _failure(problem, c), configs), strict=True)
        )
    want = problem.reference()
    results: list[tuple[float, Any]] = []
    for config in configs:
        wrong = failures[config] or _failure(problem, config, want)
        if wrong is not None:
            report(f"{tunable.op} {case.key():36s}    failed  {config}: {wrong}")
            continue
        call = _Call(problem.run, config)
        time = 1000 * float(do_bench(call, warmup=5, rep=25, return_mode="median"))
        results.append((time, config))
        report(f"{tunable.op} {case.key():36s} {time:9.1f} us  {config}")
    if not results:
        return None
    # Ties go to the earlier candidate, so that equal runs store equal tables.
    time, best = min(results, key=lambda result: result[0])
    return {"config": asdict(best), "microseconds": round(time, 2)}


def _failure(problem: Problem, config: Any, want: Sequence[Tensor] | None = None) -> str | None:
    """Why a configuration cannot be used: it does not compile or run, or is wrong."""
    try:
        got = problem.run(config)
        if want is None:
            return None
        torch.cuda.synchronize()
    except Exception as error:  # noqa: BLE001
        # Whatever a compiler says about a configuration, the others still deserve a try.
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    for ours, theirs in zip(got, want, strict=True):
        error_norm = float((ours.float() - theirs.float()).norm())
        norm = float(theirs.float().norm())
        if not math.isfinite(error_norm) or error_norm > problem.tolerance * max(norm, 1e-30):
            return f"relative error {error_norm / max(norm, 1e-30):.2e}"
    return None


class _Call:
    """A function with its argument; a lambda in a loop would see later ones."""

    def __init__(self, function: Callable[[Any], Any], argument: Any) -> None:
        self.function, self.argument = function, argument

    def __call__(self) -> Any:
        return self.function(self.argument)


def tune_op(
    op: str,
    dtypes: Sequence[torch.dtype],
    device: torch.device,
    report: Callable[[str], object],
) -> Path:
    """Measures all cases of one op and returns the file; each case is stored when it is known."""
    tunable = find(op)
    name, capability = torch.cuda.get_device_name(device), launch.capability(device)
    for case in tunable.cases(dtypes):
        entry = measure(tunable, case, device, report)
        if entry is not None:
            store.save(op, capability, name, {case.key(): entry})
    tables.forget()
    return store.path_of(op, capability)
