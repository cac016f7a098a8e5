"""Plans as records, and as text for ``TORCHSMITH_LOGS=schedule``."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from torchsmith_guards.records import KernelRecord, recorder

from torchsmith_fx_backend._src.loops.index import Const, Index
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.choices import Choice
from torchsmith_fx_backend._src.records.graphs import print_sources, tell_sources
from torchsmith_fx_backend._src.records.kernels import print_kernel
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    ExternCall,
    Free,
    Launch,
    Name,
    Plan,
    Step,
)

_LANGUAGES = {"cpu": "c", "cuda": "triton"}


def _text(value: object) -> str:
    match value:
        case Name(name):
            return name
        case Index():
            return str(value)
        case list():
            return "[" + ", ".join(map(_text, value)) + "]"
        case tuple():
            return "(" + ", ".join(map(_text, value)) + ("," if len(value) == 1 else "") + ")"
        case _:
            return repr(value)


def print_step(step: Step, kernel_name: str = "kernel") -> str:
    """One step as a line of Python-like text."""
    match step:
        case Allocate(name, _, reuse, True):
            return f"{name} = {reuse}"
        case Allocate(name, layout, reuse):
            place = "empty_strided" if reuse is None else f"{reuse}.as_strided"
            dtype = str(layout.dtype).removeprefix("torch.")
            return f"{name} = {place}({_text(layout.size)}, {_text(layout.stride)})  # {dtype}"
        case Launch(_, args, _, origins):
            return f"{kernel_name}({', '.join(args)})  # {', '.join(origins)}"
        case ExternCall(target, args, kwargs, results, _, out, _):
            words = [_text(a) for a in args] + [f"{k}={_text(v)}" for k, v in kwargs]
            if out is not None:
                words.append(f"out={out}")
            names = ", ".join("_" if r is None else r for r in results)
            return f"{names} = {target}({', '.join(words)})"
        case BindSymbol(symbol, tensor):
            return f"{symbol} = {tensor}.{step.call}"
        case Free(name):
            return f"del {name}"
        case Bump(name, times):
            return f"{name}._version += {times}"


def print_plan(plan: Plan) -> str:
    """All steps, with equal kernels under one name, numbered in order of first use."""
    names: dict[object, str] = {}
    lines = [f"def run({', '.join(plan.inputs)}):"]
    for step in plan.steps:
        name = "kernel"
        if isinstance(step, Launch):
            name = names.setdefault(step.kernel, f"kernel{len(names)}")
        lines.append(f"    {print_step(step, name)}")
    lines.append(f"    return {_text(tuple(plan.outputs))}")
    return "\n".join(lines) + "\n"


def tell_plan(plan: Plan, built: CompiledGraph) -> None:
    """Fill in the record under way from what was scheduled and built."""
    print_sources(built)
    told = recorder.current_graph()
    if told is None:
        return
    with recorder.safely("a record"):
        told.externs = sum(isinstance(step, ExternCall) for step in plan.steps)
        if not built.built:
            told.outcome, told.reason = "eager", built.source.strip("# \n")
        told.kernels = _kernels(plan, built)
        told.bytes = _sum([kernel.bytes for kernel in told.kernels])
        tell_sources(told, built)


def tell_lowered(plan: Plan) -> None:
    """The texts of the plan and of its kernels' loops, where they are kept or printed."""
    told = recorder.current_graph()
    kernels = dict.fromkeys(s.kernel for s in plan.steps if isinstance(s, Launch))
    if (log := logs.logger("loops")).isEnabledFor(logging.DEBUG):
        for number, kernel in enumerate(kernels):
            log.debug("kernel%d\n%s", number, print_kernel(kernel))
    if (log := logs.logger("schedule")).isEnabledFor(logging.DEBUG):
        log.debug("plan\n%s", print_plan(plan))
    if told is None or not recorder.detailed:
        return
    with recorder.safely("a record"):
        told.texts["plan"] = print_plan(plan)
        if recorder.debugging:
            told.texts["loops"] = "\n\n".join(map(print_kernel, kernels))


def _kernels(plan: Plan, built: CompiledGraph) -> tuple[KernelRecord, ...]:
    """One record for each distinct kernel; none where all runs through aten."""
    groups: list[list[Launch]] = [[] for _ in built.kernels]
    steps = (step for step in plan.steps if isinstance(step, Launch))
    for number, step in zip(getattr(built, "launches", ()), steps):
        groups[number].append(step)
    choices: Sequence[Choice] = getattr(built, "choices", ())
    return tuple(
        KernelRecord(
            name,
            _LANGUAGES.get(launches[0].device.type, ""),
            str(launches[0].device),
            len(launches),
            _bytes(launches),
            tuple(node for step in launches for node in step.nodes),
            tuple(dict.fromkeys(text for step in launches for text in step.origins)),
            tuned=str(choice) if choices else "",
            seconds=choice.seconds,
            table_seconds=choice.table_seconds,
        )
        for (name, _), launches, choice in zip(
            built.kernels, groups, choices or [Choice()] * len(groups)
        )
    )


def _bytes(launches: Sequence[Launch]) -> int | None:
    """What ``launches`` read and write; None where a size is a symbol."""
    moved = [
        step.moved_bytes(lambda n: n.value if isinstance(n, Const) else None) for step in launches
    ]
    return _sum(moved)


def _sum(numbers: Sequence[int | None]) -> int | None:
    known = [n for n in numbers if n is not None]
    return sum(known) if len(known) == len(numbers) else None
