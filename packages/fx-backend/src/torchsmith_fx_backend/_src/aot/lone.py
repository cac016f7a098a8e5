"""Tangents that nobody else will read: a backward half frees them as early as eager would.

Autograd holds the arguments of a node until the node is done, which for eager's small nodes is
soon. A compiled half is one large node, so it takes their memory from the tensors that autograd
holds. It may do that only if nothing but autograd holds them: no hook, no ``.grad``, no caller.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.capture.torch_private import (
    apply_of,
    hook,
    in_storage,
    use_count,
    without_active_modes,
)

LEAST = 1 << 16  # bytes of a tangent for which it is worth the time


def holders(grads: Sequence[torch.Tensor | None]) -> list[tuple[int, int]]:
    """How often each of the arguments of a backward pass is held, in C++ and in Python. It says
    the same of arguments that are held alike only if it is called alike."""
    return [(0, 0) if g is None else (use_count(g), sys.getrefcount(g)) for g in grads]


class _Probe(torch.autograd.Function):
    """Counts the holders of its tangent."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, found: list[tuple[int, int]]) -> torch.Tensor:
        ctx.found = found
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        ctx.found += holders(grads)
        return grads[0], None


@functools.cache
def alone() -> tuple[int, int]:
    """What ``holders`` says of a tangent that autograd alone holds; -1 if that cannot be told."""
    found: list[tuple[int, int]] = []
    others: list[object] = []
    apply = apply_of(_Probe)
    with without_active_modes(), torch.enable_grad(), torch.autograd.set_detect_anomaly(False):
        x = torch.zeros(2, requires_grad=True)
        for hooked in (False, False, True, True):
            result = apply(x, found)
            if hooked:
                hook(result, others.append)
            (result * 2).sum().backward()
        (apply(x, found) * 2).sum().backward()
        # One that is held elsewhere. Not ``backward(tangent)``, which imports torch's symbolic
        # shapes and with them sympy: more than all else of a small first call.
        holder = torch.zeros(2)
        holder.grad = torch.ones(2)
        result = apply(x, found)
        hook(result, lambda _: holder.grad)
        result.sum().backward()
    told = found[0] == found[1] == found[4] and found[2] == found[3] > found[0]
    return found[0] if told and found[5][0] > found[0][0] else (-1, -1)


def taken(grad: torch.Tensor, held: tuple[int, int] | None) -> torch.Tensor:
    """``grad``, or another tensor in its memory, which goes when that one does."""
    plain = type(grad) is torch.Tensor and in_storage(grad) and not grad.requires_grad
    if held != alone() or not plain or grad.nbytes < LEAST:
        return grad
    alias = grad.detach()
    grad.data = torch.empty(0, dtype=grad.dtype, device=grad.device)
    return alias
