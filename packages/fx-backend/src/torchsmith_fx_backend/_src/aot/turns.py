"""In which order gradients reach leaves, which hooks and optimizers in hooks see.

Eager is done with one leaf after the other, those of the last layer first. The leaves of a compiled
graph are all ready when its one node is done, and autograd takes them from its queue in an order
that depends on their number alone. The node is given its inputs so that this is eager's order.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import apply_of, hook, without_active_modes


class _Probe(torch.autograd.Function):
    """A node of many inputs."""

    @staticmethod
    def forward(ctx: Any, *inputs: torch.Tensor) -> torch.Tensor:
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads * len(ctx.needs_input_grad)


@functools.cache
def _queue(leaves: int, others: int) -> tuple[int, ...]:
    """The order in which autograd takes the leaves that a node has before its other inputs."""
    found: list[int] = []
    with without_active_modes(), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
        given = [torch.zeros((), requires_grad=True) for _ in range(leaves + others)]
        for place, leaf in enumerate(given[:leaves]):
            hook(leaf, functools.partial(lambda place, _: found.append(place), place))
        given[leaves:] = [x.clone() for x in given[leaves:]]
        apply_of(_Probe)(*given).sum().backward()
    return tuple(found)


def in_turn(turns: Sequence[int], leaves: Collection[int]) -> tuple[int, ...]:
    """Inputs as a node is given them so that autograd takes those of ``leaves`` in the order of
    ``turns``; the others come last."""
    first = [i for i in turns if i in leaves]
    others = [i for i in turns if i not in leaves]
    placed = dict(zip(_queue(len(first), len(others)), first))
    return (*(placed[i] for i in range(len(first))), *others)
