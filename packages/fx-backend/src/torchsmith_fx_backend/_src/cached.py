"""Compiled graphs of earlier processes: when they are looked for, found, and kept."""

from __future__ import annotations

import json
import logging
import operator
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torchsmith_guards.records import recorder

from torchsmith_fx_backend._src import graph_key
from torchsmith_fx_backend._src.aot.frame import Frame
from torchsmith_fx_backend._src.capture.torch_private import below_autocast
from torchsmith_fx_backend._src.captured import is_boxed, named_tensors
from torchsmith_fx_backend._src.page.parts import dump_schedule, load_schedule
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.graphs import dump, restore, tell_cache
from torchsmith_fx_backend._src.runtime.cache import default_cache
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph, load_graph, save_graph
from torchsmith_fx_backend._src.settings import Settings

log = logging.getLogger("torchsmith.backend")

_NO_KEY = "the graph has no key: sizes from data, or functions without a stable name"


def key_of(gm: fx.GraphModule, inputs: Sequence[object], chosen: Settings) -> str | None:
    """The key of ``gm`` for ``inputs``; None, and told, where it is neither looked for nor kept."""
    reason = _bypass(chosen)
    key = None if reason else graph_key.of(gm, inputs, _variant(chosen))
    if key is None:
        tell_cache("bypass", reason or _NO_KEY)
    return key


def _bypass(chosen: Settings) -> str:
    """Why graphs on disk are neither looked for nor kept; empty if they are."""
    if not chosen.graph_cache:
        return "the setting graph_cache is off"
    if chosen.freezing:
        return "frozen graphs hold values of weights"
    if chosen.disable:
        return f"parts are left out: {chosen.disable}"
    stages = logs.wanted()
    return f"TORCHSMITH_LOGS wants the stages {', '.join(stages)}" if stages else ""


def _variant(chosen: Settings) -> str:
    """What of the settings is part of a graph that is kept."""
    return f"{chosen.rng}, {chosen.kernels}" + (", tuned" if chosen.tuning_seconds else "")


def load(
    key: str, gm: fx.GraphModule, inputs: Sequence[object]
) -> tuple[CompiledGraph, Frame] | None:
    """The graph that an earlier run stored under ``key``, and how it is called."""
    cache, sizes = default_cache(), graph_key.Sizes.of(gm, inputs)
    for place in graph_key.places(key, sizes):
        files = cache.get(f"frame {place}")
        if files is not None and sizes.take(json.loads(files["sizes.json"])):
            break
    else:
        tell_cache("miss", cache.misses[-1].reason if cache.misses else "absent")
        return None
    frame = Frame.load(files["frame.json"])
    named = named_tensors(gm)
    constants = {name: named[path] for name, path in frame.attributes}
    once = load_graph(f"once {place}") if frame.once else None
    if once is not None:
        with below_autocast():
            results: Any = once()
        constants |= {name: results[number] for name, number in frame.once}
    built = load_graph(place, constants=constants) if once or not frame.once else None
    if built is None:
        tell_cache("miss", "its kernels are gone, or belong to another machine")
        return None
    log.debug("graph from the cache: %s", key)
    _restore(key, built, files, gm)
    return built, frame


def _restore(key: str, built: Any, files: Mapping[str, bytes], gm: fx.GraphModule) -> None:
    """Tell what was told of ``built`` when it was made."""
    restore(key, built, files.get("record.json"))
    built.schedule = load_schedule(files.get("schedule.json"), gm)


def _told(built: Any, gm: fx.GraphModule) -> dict[str, bytes]:
    """What ``_restore`` reads."""
    schedule = dump_schedule(built.schedule, gm)
    return {"record.json": dump(recorder.current_graph()), "schedule.json": schedule}


def half_key(module: fx.GraphModule, inputs: Sequence[object], chosen: Settings) -> str | None:
    """``key_of`` for a half of a differentiated graph."""
    key = key_of(module, inputs, chosen)
    return key and f"{'boxed ' if is_boxed(module.graph) else ''}half {key}"


def load_half(key: str, module: fx.GraphModule, gm: fx.GraphModule) -> CompiledGraph | None:
    """The half ``module`` of the captured graph ``gm`` that an earlier run stored under ``key``."""
    files = default_cache().get(f"frame {key}")
    found = None if files is None else load_graph(key, constants=_constants(module))
    if files is None or found is None:
        tell_cache("miss", "absent, or its kernels are gone")
        return None
    _restore(key, found, files, gm)
    return found


def save_half(key: str, built: Any, module: fx.GraphModule, gm: fx.GraphModule) -> None:
    """Keep a half for later processes."""
    if save_graph(key, built, given=_constants(module)):
        default_cache().put(f"frame {key}", _told(built, gm))


def _constants(module: fx.GraphModule) -> dict[str, torch.Tensor]:
    read = module.graph.find_nodes(op="get_attr")
    return {n.name: operator.attrgetter(str(n.target))(module) for n in read}


def save(
    key: str,
    sizes: graph_key.Sizes,
    frame: Frame,
    built: Any,
    gm: fx.GraphModule,
    once: CompiledGraph | None = None,
) -> None:
    """Keep a graph for later processes, with what it assumes about sizes, and ``once``, which
    computes some of its constants."""
    cache, assumed = default_cache(), sizes.assumed()
    free = (p for p in graph_key.places(key, sizes) if cache.get(f"frame {p}") is None)
    place = next(free, None)
    if assumed is None or place is None:
        return
    given = dict((*frame.attributes, *frame.once))
    if not save_graph(place, built, given=given) or (
        once and not save_graph(f"once {place}", once)
    ):
        return
    files = {
        "frame.json": frame.dump(),
        "sizes.json": json.dumps(assumed).encode(),
        **_told(built, gm),
    }
    cache.put(f"frame {place}", files)
