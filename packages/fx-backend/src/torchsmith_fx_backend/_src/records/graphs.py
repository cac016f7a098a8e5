"""``GraphRecord`` of one graph: what is told without a plan; ``plans.py`` tells of plans."""

from __future__ import annotations

import json
import logging

from torch import fx
from torchsmith_guards.records import GraphRecord, KernelRecord, graph_text, printing, recorder

from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph

# What is kept beside a cached graph: all that loading it does not find out.
_KEPT = ("kernels", "externs", "bytes", "peak_bytes", "eager_peak_bytes")


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


def print_sources(built: CompiledGraph) -> None:
    log = logs.logger("code")
    if log.isEnabledFor(logging.DEBUG):
        for text in (built.source, *(source for _, source in built.kernels)):
            log.debug("%s", text)


def tell_sources(told: GraphRecord, built: CompiledGraph) -> None:
    """The texts that run, where texts are kept."""
    if recorder.detailed:
        told.texts["wrapper"] = built.source
        sources = dict(built.kernels)
        told.kernels = tuple(
            KernelRecord.from_json({**kernel.to_json(), "source": sources.get(kernel.name, "")})
            for kernel in told.kernels
        )


def dump(told: GraphRecord | None) -> bytes:
    """What a cached graph keeps of its record."""
    if told is None:
        return b"{}"
    row = told.to_json()
    kept = {name: row[name] for name in _KEPT}
    for kernel in kept["kernels"]:  # type: ignore[attr-defined]
        kernel["source"] = ""  # the cache has it already
    return json.dumps(kept).encode()


def restore(key: str, built: CompiledGraph, kept: bytes | None) -> None:
    """Fill in the record under way for a graph that was found in the cache."""
    recorder.count("cache", "hit")
    print_sources(built)
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
        tell_sources(told, built)


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
