"""What a compiled graph runs, from its parts; noted when they are built, kept with them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import Any

from torch import fx

from torchsmith_fx_backend._src.page.roof import roof


def dump_schedule(schedule: Mapping[str, Any] | None, gm: fx.GraphModule) -> bytes:
    """A schedule as text, for captured graphs that are equal but for the names of their nodes."""
    numbers = {node.name: number for number, node in enumerate(gm.graph.nodes)}
    return json.dumps(_renamed(schedule, numbers)).encode()


def load_schedule(data: bytes | None, gm: fx.GraphModule) -> dict[str, Any] | None:
    """What ``dump_schedule`` wrote, for the graph ``gm``."""
    if data is None:
        return None
    names = {number: node.name for number, node in enumerate(gm.graph.nodes)}
    return _renamed(json.loads(data), names)


def _renamed(schedule: Mapping[str, Any] | None, names: Mapping[Any, Any]) -> dict[str, Any] | None:
    if schedule is None:
        return None
    steps = [
        {**step, "nodes": [names[n] for n in step["nodes"] if n in names]}
        for step in schedule["steps"]
    ]
    return {**schedule, "steps": steps}


def schedules(parts: Sequence[tuple[str, Any]]) -> list[dict[str, Any]]:
    """What each of ``parts`` runs; a compiled graph has this as its attribute ``schedules``.

    Args:
        parts: the programs that a compiled graph consists of so far, by name: ``inference``, or
            ``forward`` and then backward ones.

    Returns:
        One mapping for each; a tracer's report says what is in it.
    """
    return [made for name, part in parts if (made := _schedule(name, part)) is not None]


def _schedule(name: str, part: Any) -> dict[str, Any] | None:
    found = getattr(part, "schedule", None)
    if not isinstance(found, dict):
        return None
    device = str(found.get("device", ""))
    language = "Triton" if device.startswith("cuda") else "C" if device.startswith("cpu") else ""
    return {
        "name": name,
        **found,
        "kernels": [
            {"name": kernel, "language": language, "source": source, "tuned": tuned}
            for (kernel, source), tuned in zip(part.kernels, chain(_tuned(part), repeat("")))
        ],
        "wrapper": part.source,
        "roof": roof(device) if device else None,
    }


def notes(parts: Sequence[tuple[str, Any]]) -> list[str]:
    """Lines about ``parts`` for the text of a report: what measuring has chosen.

    Kernels of which the same is to be said share a line.
    """
    found: dict[str, list[str]] = {}
    for _, part in parts:
        for (kernel, _), tuned in zip(part.kernels, _tuned(part)):
            found.setdefault(tuned, []).append(kernel)
    return [f"Tuning of {', '.join(kernels)}: {tuned}" for tuned, kernels in found.items()]


def _tuned(part: Any) -> list[str]:
    schedule = getattr(part, "schedule", None)
    return list(schedule.get("tuned", ())) if isinstance(schedule, dict) else []
