"""Gradients of values that were written where a mask is true.

``x[mask] = values`` has the gradient ``grad[mask]``, whose size is data. But it is known: that of
the values, or they are one value for all places, whose gradient is a sum over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_fx_backend._src.aot.functional import FunctionalMode, Rule
from torchsmith_fx_backend._src.capture.rules.registry import scalar, view, where
from torchsmith_fx_backend._src.capture.torch_private import (
    OpOverload,
    gradient_clock,
    running_gradient,
)

aten = torch.ops.aten


def _note(
    mode: FunctionalMode,
    x: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
) -> Any:
    if torch.is_grad_enabled() and values.requires_grad:
        viewed = bool(mode.value_of(x).steps)  # else the node was made right before
        mode.put[gradient_clock() - (not viewed)] = values.shape
    return NotImplemented


def _taken(mode: FunctionalMode, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Any:
    sizes = mode.put.get(running_gradient())
    given = [(place, index) for place, index in enumerate(indices) if index is not None]
    if sizes is None or len(given) != 1 or given[0][1].dtype is not torch.bool:
        return NotImplemented
    ((place, mask),) = given
    after = x.dim() - place - mask.dim()
    count = sizes[-after - 1] if len(sizes) > after else 1
    if type(count) is int and count == 1:  # autograd takes the sum over the places
        spread = view(mode, mask, [*mask.shape, *[1] * after])
        chosen = where(mode, spread, x, scalar(mode, 0, x))
        whole = [*x.shape[:place], mask.numel(), *x.shape[place + mask.dim() :]]
        return mode.tensor(aten.reshape.default, chosen, whole)
    found = mode.tensor(aten.nonzero_static.default, mask, size=count)
    own = [mode.tensor(aten.select.int, found, 1, i) for i in range(mask.dim())]
    return mode.tensor(aten.index.Tensor, x, [*indices[:place], *own])


MASK_RULES: dict[OpOverload, Rule] = {
    aten.index_put_.default: _note,
    aten.index_put.default: _note,
    aten.index.Tensor: _taken,
}
