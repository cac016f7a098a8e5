"""What a backward half is compiled for: how tangents, and what hooks have saved, lie in memory, and
which gradients are asked.

Strides say it where all sizes are known. Where some are symbolic the order of the dimensions does,
so that one half serves all sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torchsmith_guards as guards

from torchsmith_fx_backend._src.capture.torch_private import in_storage, settled, will_run

# Per tangent, its strides or the order of its dimensions; None for an undefined one.
Key = tuple[tuple[int, ...] | None, ...]

_MOST_ASKED = 8  # leaves, past which it takes too long to hear of each by an exception
_QUIET = 50  # passes that are not asked about
_CALM = 8  # passes that want all gradients, after which one of so many is asked about
_NONE: frozenset[int] = frozenset()


def strides_in(order: Sequence[int], sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Strides of a tensor without gaps whose dimensions have this order, the outermost first; those
    that it leaves out are expanded."""
    strides: list[Any] = [0] * len(sizes)
    step: Any = 1
    for dim in reversed(order):
        strides[dim] = step
        step = step * sizes[dim]
    return tuple(strides)


def order_of(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The dimensions that are not expanded, that with the largest stride first."""
    dims = [dim for dim, stride in enumerate(strides) if stride]
    return tuple(sorted(dims, key=lambda dim: -strides[dim]))


def ordered(tangents: list[torch.Tensor | None]) -> Key:
    """The orders of tangents; those with gaps are replaced by copies without."""
    orders: list[tuple[int, ...] | None] = []
    for i, tangent in enumerate(tangents):
        if tangent is None:
            orders.append(None)
            continue
        sizes, strides = tangent.shape, tangent.stride()
        order = order_of(sizes, strides)
        usual = strides_in(order, sizes)
        if any(a != b and n != 1 for a, b, n in zip(strides, usual, sizes)):
            tangents[i] = tangent.new_empty_strided(sizes, usual).copy_(tangent)
        orders.append(order)
    return tuple(orders)


def as_saved(given: torch.Tensor | None, laid: tuple[Any, ...]) -> torch.Tensor | None:
    """What a hook gave back for a saved tensor, as kernels read that."""
    given, (size, stride, dtype, device) = settled(given), laid
    if given is None:
        return None
    if given.size() != size or not in_storage(given):
        found = f"a {type(given).__name__} of size {[*given.size()]}"
        raise RuntimeError(f"a saved tensor of size {[*size]} came out of its hooks as {found}")
    if (size, given.stride(), given.dtype, given.device) == laid:
        return given
    fresh = torch.empty_strided(size, stride, dtype=dtype, device=device)
    once = tuple(slice(None if step else 1) for step in stride)  # not what is expanded
    fresh[once] = given.detach()[once]
    return fresh


def order_at_hand(root: torch.Tensor) -> tuple[int, ...] | None:
    """The order of a fake tensor of symbolic sizes; None where it has gaps."""
    sizes, strides = (
        [n if type(n) is int else int(guards.hint_of(n) or 0) for n in part]
        for part in (root.shape, root.stride())
    )
    order = order_of(sizes, strides)
    return order if strides_in(order, sizes) == tuple(strides) else None


class Asking:
    """Asks which gradients a backward pass does nothing with: ``torch.autograd.grad`` asks for what
    it is told alone. Asking takes long where torch tells of leaves by exceptions, and longer than
    computing a few small gradients: where there was nothing to leave out, later passes are not
    asked about for a while."""

    def __init__(self, *, small: bool) -> None:
        """Nothing is known yet of gradients that are all ``small``, or not."""
        self.small, self.quiet, self.calm = small, 0, 0  # passes

    def unasked(self, function: Any, places: Sequence[int]) -> frozenset[int]:
        """Which of ``places``, those of the gradients of a node of autograd's that runs now."""
        if self.quiet:
            self.quiet -= 1
            return _NONE
        found, asked = [], 0
        for place, (node, _) in zip(places, function.next_functions):
            try:
                if node is not None and not will_run(node):
                    found.append(place)
            except RuntimeError:  # what torch says of a leaf whose gradient is asked
                asked += 1
                if asked > _MOST_ASKED:
                    found.clear()
                    break
        self.calm = 0 if found else self.calm + 1
        if not found and (asked or (self.small and self.calm > _CALM)):
            self.quiet = _QUIET if asked else _CALM
        return frozenset(found)
