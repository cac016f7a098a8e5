"""From a ``Plan`` to a callable: asks each device's launcher for the plan's distinct kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src.codegen.runs import runs
from torchsmith_fx_backend._src.codegen.wrapper import print_wrapper
from torchsmith_fx_backend._src.loops.accesses import check_accesses, check_assumptions
from torchsmith_fx_backend._src.loops.canonical import from_start
from torchsmith_fx_backend._src.loops.index import const, sub
from torchsmith_fx_backend._src.runtime.cache import Cache, default_cache
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph, finish, named_kernels
from torchsmith_fx_backend._src.runtime.launchers import (
    KernelRequest,
    LoadedKernel,
    Unavailable,
    launcher_for,
)
from torchsmith_fx_backend._src.schedule.plan import Launch, Plan, Step

if TYPE_CHECKING:
    from torchsmith_fx_backend._src.records.choices import Choice
    from torchsmith_fx_backend._src.tuning.tuner import Tuner


def build(
    plan: Plan,
    *,
    cache: Cache | None = None,
    fallback: Callable[..., object] | None = None,
    name: str = "graph",
    check: bool = False,
    grad_off: bool = True,
    tuner: Tuner | None = None,
) -> CompiledGraph:
    """Compile what ``plan`` needs and return the callable that executes it.

    Args:
        plan: the schedule's result.
        cache: where kernels and wrapper text are kept; the process-wide cache by default.
        fallback: computes the same outputs from the same inputs through aten; used when a device
            has no usable compiler.
        name: the generated function's name, as tracebacks show it.
        check: before each launch, see that it stays inside its buffers where only the sizes of
            the call decide that.
        grad_off: the graph switches grad mode off for its aten calls; else its caller has.
        tuner: chooses among the forms of each kernel.
    """
    cache = default_cache() if cache is None else cache
    plan = replace(plan, steps=tuple(map(_from_start, plan.steps)))
    launches = [step for step in plan.steps if isinstance(step, Launch)]
    together = {run[0].kernel for run in runs(plan) if len(run) > 1 and isinstance(run[0], Launch)}
    distinct: dict[tuple[object, ...], int] = {}
    requests: list[KernelRequest] = []
    numbers = []
    same: list[list[Launch]] = []
    checked: dict[int, Launch] = {}
    for step in launches:
        identity = (step.kernel, str(step.device), *(step.sizes if check else ()))
        number = distinct.setdefault(identity, len(requests))
        if number == len(requests):
            each = step.kernel in together
            requests.append(KernelRequest(step.kernel, step.device, step.origins, each=each))
            same.append([])
            if check and check_accesses(step.kernel, step.sizes):
                checked[number] = step
        same[number].append(step)
        numbers.append(number)
    choices: tuple[Choice, ...] = ()
    if tuner is not None:
        with recorder.phase("tune"):
            requests, choices = tuner.tune(requests, same, cache)
    names = [f"kernel_{number}" for number in numbers]
    try:
        loaded = _load(requests, cache)
    except Unavailable as problem:
        if fallback is None:
            raise
        return _through_aten(fallback, problem, plan.boxed)
    wrapper = print_wrapper(plan, names, name=name, grad_off=grad_off)
    bound = named_kernels(loaded)
    for number, step in checked.items():
        bound[f"kernel_{number}"] = _checked(step, loaded[number].launch)
    bound.update(plan.constants)
    kernels = [
        (kernel.name, kernel.source, kernel.key, str(request.device))
        for kernel, request in zip(loaded, requests, strict=True)
    ]
    constants = dict(plan.constants)
    storable = not checked and (tuner is None or tuner.complete)
    graph = finish(wrapper, bound, kernels, cache, constants=constants, storable=storable)
    graph.launches, graph.choices = tuple(numbers), choices
    return graph


def _from_start(step: Step) -> Step:
    """A launch on a CPU with pointers to where it starts; on a GPU they are to stay aligned."""
    if not isinstance(step, Launch) or step.device.type != "cpu":
        return step
    kernel, starts = from_start(step.kernel)
    sizes = tuple(sub(size, const(start)) for size, start in zip(step.sizes, starts))
    return replace(step, kernel=kernel, sizes=sizes, starts=starts)


def _checked(step: Launch, launch: Callable[..., object]) -> Callable[..., object]:
    """``launch`` after a look at every access that is not proved for all sizes."""
    kernel = step.kernel

    def run(*arguments: object) -> object:
        numbers = cast("tuple[int, ...]", arguments[len(kernel.args) :])
        check_assumptions(kernel, step.sizes, dict(zip(kernel.symbols, numbers, strict=True)))
        return launch(*arguments)

    return run


def _load(requests: Sequence[KernelRequest], cache: Cache) -> list[LoadedKernel]:
    """Loaded kernels in the order of ``requests``; one call per device type."""
    groups: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        groups.setdefault(request.device.type, []).append(number)
    result: dict[int, LoadedKernel] = {}
    for positions in groups.values():
        launcher = launcher_for(requests[positions[0]].device)
        loaded = launcher.load([requests[p] for p in positions], cache)
        result.update(zip(positions, loaded, strict=True))
    return [result[number] for number in range(len(requests))]


def _through_aten(
    fallback: Callable[..., object], problem: Unavailable, boxed: bool
) -> CompiledGraph:
    def graph(*inputs: Any) -> tuple[object, ...]:
        outputs = fallback(*inputs[0]) if boxed else fallback(*inputs)
        return tuple(outputs) if isinstance(outputs, (tuple, list)) else (outputs,)

    result = cast(CompiledGraph, graph)
    result.source = f"# runs through aten: {problem}\n"
    result.kernels = ()
    result.storable = result.built = False
    return result
