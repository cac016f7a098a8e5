"""``GraphRecord`` of one graph: kernels with their bytes and lines, from the plan or the cache."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Protocol

from torch import fx
from torchsmith_guards.records import GraphRecord, KernelRecord, graph_text, printing, recorder

from torchsmith_fx_backend._src.loops.index import Const
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.choices import Choice
from torchsmith_fx_backend._src.records.kernels import print_kernel
from torchsmith_fx_backend._src.records.plans import print_plan
from torchsmith_fx_backend._src.schedule.plan import ExternCall, Launch, Plan

# What is kept beside a cached graph: all that loading it does not find out.
_KEPT = ("kernels", "externs", "bytes", "peak_bytes", "eager_peak_bytes")
_LANGUAGES = {"cpu": "c", "cuda": "triton"}


class Built(Protocol):
    """What records want of a compiled graph."""

    source: str
    kernels: tuple[tuple[str, str], ...]
    built: bool


def tell_plan(plan: Plan, built: Built) -> None:
    """Fill in the record under way from what was scheduled and built."""
    _print_sources(built)
    told = recorder.current_graph()
    if told is None:
        return
    with recorder.safely("a record"):
        told.externs = sum(isinstance(step, ExternCall) for step in plan.steps)
        if not built.built:
            told.outcome, told.reason = "eager", built.source.strip("# \n")
        told.kernels = _kernels(plan, built)
        told.bytes = _sum([kernel.bytes for kernel in told.kernels])
        _tell_sources(told, built)


def tell_functional(module: fx.GraphModule) -> None:
    """The text of the graph after the passes, where texts are kept."""
    told = recorder.current_graph()
    if told is None or not recorder.detailed:
        return
    with recorder.safely("a record"):
        told.texts["functional"] = graph_text(module.graph)
        if recorder.debugging:
            title = f"Graph {told.graph_id}, {told.kind}, after the passes."
            told.texts["functional.py"] = printing.runnable(module, title=title)


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


def _print_sources(built: Built) -> None:
    log = logs.logger("code")
    if log.isEnabledFor(logging.DEBUG):
        for text in (built.source, *(source for _, source in built.kernels)):
            log.debug("%s", text)


def _tell_sources(told: GraphRecord, built: Built) -> None:
    """The texts that run, where texts are kept."""
    if recorder.detailed:
        told.texts["wrapper"] = built.source
        sources = dict(built.kernels)
        told.kernels = tuple(
            KernelRecord.from_json({**kernel.to_json(), "source": sources.get(kernel.name, "")})
            for kernel in told.kernels
        )


def _kernels(plan: Plan, built: Built) -> tuple[KernelRecord, ...]:
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


def dump(told: GraphRecord | None) -> bytes:
    """What a cached graph keeps of its record."""
    if told is None:
        return b"{}"
    row = told.to_json()
    kept = {name: row[name] for name in _KEPT}
    for kernel in kept["kernels"]:  # type: ignore[attr-defined]
        kernel["source"] = ""  # the cache has it already
    return json.dumps(kept).encode()


def restore(key: str, built: Built, kept: bytes | None) -> None:
    """Fill in the record under way for a graph that was found in the cache."""
    recorder.count("cache", "hit")
    _print_sources(built)
    told = recorder.current_graph()
    if told is None:
        return
    told.cache, told.cache_reason = "hit", key[:16]
    with recorder.safely("a record"):
        found = GraphRecord.from_json({**json.loads(kept or b"{}"), "graph_id": told.graph_id})
        for name in _KEPT:
            setattr(told, name, getattr(found, name))
        if not found.kernels:
            told.kernels = tuple(KernelRecord(name) for name, _ in built.kernels)
        _tell_sources(told, built)


def tell_restart(reason: str, seconds: float) -> None:
    """That scheduling begins again, because of what was refused."""
    told = recorder.current_graph()
    if told is not None:
        told.restarts = (*told.restarts, reason)
        told.restart_seconds += seconds


def tell_eager(reason: str | Exception) -> None:
    """That the graph runs operator by operator, and why."""
    told = recorder.current_graph()
    if told is not None:
        told.outcome, told.reason = "eager", str(reason)
        told.failure = type(reason).__name__ if isinstance(reason, Exception) else ""


def tell_cache(result: str, reason: str) -> None:
    """That no cached graph is used, and why: ``miss`` or ``bypass``."""
    recorder.count("cache", result)
    told = recorder.current_graph()
    if told is not None:
        told.cache, told.cache_reason = result, reason  # type: ignore[assignment]
