"""From a ``Plan`` to a callable, and from the cache back to the same callable.

``build`` asks each device's launcher for the plan's distinct kernels, writes the wrapper source
into the cache directory (so that debuggers and tracebacks show it) and executes it.
``save_graph``/``load_graph`` keep a finished graph as text: wrapper source plus the content
addresses of its kernels. Loading needs no lowering, no scheduling and no compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from torchsmith_fx_backend._src.runtime.cache import Cache
from torchsmith_fx_backend._src.schedule.plan import Plan


class CompiledGraph(Protocol):
    """What ``build`` returns: a function of the plan's inputs that returns a tuple of its outputs.

    Attributes:
        source: text of the wrapper that runs.
        kernels: name and source text of each distinct kernel.
        storable: whether ``save_graph`` can keep it (all its externs have names).
    """

    source: str
    kernels: tuple[tuple[str, str], ...]
    storable: bool

    def __call__(self, *inputs: object) -> tuple[object, ...]:
        """Run the graph on tensors and symbol values, in the order of ``Plan.inputs``."""
        ...


def build(
    plan: Plan,
    *,
    cache: Cache | None = None,
    fallback: Callable[..., object] | None = None,
    name: str = "graph",
) -> CompiledGraph:
    """Compile what ``plan`` needs and return the callable that executes it.

    Args:
        plan: the schedule's result.
        cache: where kernels and wrapper text are kept; the process-wide cache by default.
        fallback: computes the same outputs from the same inputs through aten; used when a device
            has no usable compiler. Without it, kernels run in the reference evaluator then.
        name: the generated function's name, as tracebacks show it.
    """
    raise RuntimeError("being written")


def save_graph(key: str, graph: CompiledGraph, *, cache: Cache | None = None) -> bool:
    """Keep ``graph`` under ``key`` (which must cover everything that it was compiled from).

    Returns:
        Whether it is stored; graphs with unnamed callables are not.
    """
    raise RuntimeError("being written")


def load_graph(
    key: str,
    *,
    cache: Cache | None = None,
    constants: Mapping[str, torch.Tensor] | None = None,
) -> CompiledGraph | None:
    """The graph that ``save_graph`` kept under ``key``, in this or an earlier process, or None.

    Args:
        key: as given to ``save_graph``.
        cache: the process-wide cache by default.
        constants: the plan's lifted tensors by name; those not given come from the entry.
    """
    raise RuntimeError("being written")
