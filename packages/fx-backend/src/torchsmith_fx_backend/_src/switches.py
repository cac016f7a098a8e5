"""Parts of the compiler that ``options={"disable": [...]}`` leaves out, to find which is at fault.

Without any of them a graph gives the same results, operator by operator through aten in the end.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from torch import fx

from torchsmith_fx_backend._src.passes import FROZEN_PASSES, PASSES
from torchsmith_fx_backend._src.passes.base import Pass
from torchsmith_fx_backend._src.passes.layouts import ChannelsLast, RowsAsImages
from torchsmith_fx_backend._src.passes.patches import PatchProducts
from torchsmith_fx_backend._src.passes.positions import PoolPositions
from torchsmith_fx_backend._src.passes.random import KeyedRandom
from torchsmith_fx_backend._src.passes.scatters import ScatterTargets
from torchsmith_fx_backend._src.passes.templates import LibraryKernels
from torchsmith_fx_backend._src.schedule.scheduler import POLICIES, Policy
from torchsmith_fx_backend._src.settings import Settings
from torchsmith_fx_backend.errors import SettingError

# In the order in which they act: rules that replace operators by simpler ones, computing values
# again for the backward pass, passes by name, loops instead of aten, buffers taken over from dead
# values, and several operators in one kernel.
SWITCHES: tuple[str, ...] = (
    "decompositions",
    "partition",
    *dict.fromkeys(
        each.name for each in (*FROZEN_PASSES, PoolPositions(""), KeyedRandom(), ScatterTargets())
    ),
    "lowerings",
    "reuse",
    "fusion",
)
LOWERING = "lowering:"  # one operator's: "lowering:aten.exp.default"


def check(disabled: Iterable[str]) -> None:
    """Refuse what is no switch.

    Raises:
        SettingError: there is no such part.
    """
    for name in disabled:
        if name not in SWITCHES and not name.startswith(LOWERING):
            known = ", ".join((*SWITCHES, f"{LOWERING}aten.exp.default"))
            raise SettingError(name=f"disable={name!r}", known=known)


def passes(chosen: Settings, *, freezing: bool = False, training: bool = False) -> Iterable[Pass]:
    """The passes that run; rows as images are not measured where a backward pass reads them."""
    for each in FROZEN_PASSES if freezing else PASSES:
        if training and isinstance(each, RowsAsImages):
            continue
        if isinstance(each, LibraryKernels):
            each = replace(each, unmeasured=chosen.kernels == "all")
        if isinstance(each, ChannelsLast | PatchProducts | RowsAsImages):
            each = replace(each, same_draws=chosen.rng == "eager")
        if each.name not in chosen.disable:
            yield each


def last_passes(disabled: Collection[str], rng: str) -> Iterable[Pass]:
    """Those that run just before scheduling."""
    found: list[Pass] = [KeyedRandom()] if rng == "keyed" else []
    return (each for each in (*found, ScatterTargets()) if each.name not in disabled)


def refused(disabled: Collection[str], graph: fx.Graph) -> frozenset[str]:
    """Names of the nodes that aten computes although they have a lowering."""
    if "lowerings" in disabled:
        return frozenset(node.name for node in graph.nodes)
    off = {name.removeprefix(LOWERING) for name in disabled if name.startswith(LOWERING)}
    return frozenset(node.name for node in graph.nodes if off and str(node.target) in off)


def policies(disabled: Collection[str]) -> tuple[Policy, ...]:
    """How far scheduling may go."""
    if "fusion" in disabled:
        return (Policy(reach=-1, share=False, reuse="reuse" not in disabled, inline=False),)
    if "reuse" in disabled:
        return (Policy(reuse=False),)
    return POLICIES
