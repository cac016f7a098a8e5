"""Repeated calls: all that follows from shapes, strides and options is worked out once.

A forward call has some forty arguments to check and to pass on; a plan keeps them, so that a call
like an earlier one costs little more than its launch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.flash_attention import run_forward, run_hopper
from torchsmith_kernels._src.flash_attention.call import Call, regular


class Plan(NamedTuple):
    """A launch, the shape of its second result, and whether it takes a counter of tiles."""

    launch: launch.Prepared
    lse_shape: tuple[int, ...]
    counted: bool

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Attention of other tensors of the same kind."""
        output = torch.empty_like(query)
        lse = query.new_empty(self.lse_shape, dtype=torch.float32)
        if self.counted:
            number = torch.zeros(1, dtype=torch.int32, device=query.device)
            self.launch(query, key, value, output, lse, number)
        else:
            self.launch(query, key, value, output, lse)
        return output, lse


def key_of(call: Call) -> object | None:
    """What a plan depends on, or None for a call that has none."""
    query, key, value = call.query, call.key, call.value
    dtype = query.dtype
    if call[3:8] != _NOTHING or dtype is torch.float32:  # whose precision is a global setting
        return None
    return (
        query.shape, query.stride(), key.shape, key.stride(), value.shape, value.stride(), dtype,
        key.dtype, value.dtype, query.device, key.device, value.device, call[8:],
        (query.data_ptr() | key.data_ptr() | value.data_ptr()) & 15,
    )  # fmt: skip


_NOTHING = (None,) * 5

#: By ``key_of``.
plans: tables.Remembered[Plan] = tables.Remembered(most=1000)


def keep(key: object, call: Call, output: Tensor, lse: Tensor) -> None:
    """Remembers how a call was launched, if that needed no copies."""
    if not all(t.stride(-1) == 1 and regular(t) for t in (*call[:3], output)):
        return
    number = None
    if run_hopper.fits(call):
        number = run_hopper.counter(call)
        arguments = run_hopper.arguments(call, output, lse, number)
        prepared = launch.Prepared(run_hopper.forward_kernel, *arguments)
    else:
        arguments = run_forward.arguments(call, output, lse)
        prepared = launch.Prepared(run_forward.forward_kernel, *arguments)
    plans.keep(key, Plan(prepared, tuple(lse.shape), number is not None))
