"""``tensor.data`` read and assigned, which no dispatch mode sees.

What is read lies in the same place, without a history, and its writes are not counted by autograd.
What is assigned to lies, from then on, where the other tensor does.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torchsmith_guards import same_sizes

from torchsmith_fx_backend._src.aot.functional import FunctionalMode
from torchsmith_fx_backend._src.aot.views import UNCOUNTED
from torchsmith_fx_backend.errors import UnsupportedError


def read(mode: FunctionalMode, tensor: torch.Tensor) -> torch.Tensor:
    """``tensor.data``, a tensor of its own."""
    value = mode.value_of(tensor)
    result = mode.snapshot(value.tensor)
    node = mode.apply(UNCOUNTED.target, (value.node,))
    mode.know(replace(value, tensor=result, steps=(*value.steps, UNCOUNTED), node=node))
    return result


def assign(mode: FunctionalMode, tensor: torch.Tensor, source: torch.Tensor) -> None:
    """``tensor.data = source``.

    Raises:
        UnsupportedError: sizes, types, or strides of what has been differentiated differ.
    """
    old, new = mode.value_of(tensor), mode.value_of(source)
    if not same_sizes(tensor.shape, source.shape) or tensor.dtype is not source.dtype:
        raise UnsupportedError(what="data of another size or type")
    if tensor.stride() != source.stride():
        if tensor.requires_grad and old.node.users:
            raise UnsupportedError(what="data of other strides for a tensor with a history")
        mode.note_layout(tensor)
    tensor.data = source
    steps = tuple(step for step in new.steps if step != UNCOUNTED)
    if old.base is new.base and old.steps == steps:
        return
    if tensor.requires_grad and old.node.users:
        mode.moved.append((tensor, old.base))
    mode.know(replace(new, tensor=tensor))
