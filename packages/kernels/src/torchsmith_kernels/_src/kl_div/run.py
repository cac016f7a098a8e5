"""Laying out tensors for the divergence kernels and launching them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.kl_div.config import Case, Config, table
from torchsmith_kernels._src.kl_div.reference import divisor
from torchsmith_kernels._src.sizes import LOW_PRECISION, as_rows, ceil_div, next_power_of_2

_KERNELS = "torchsmith_kernels._src.kl_div.kernel"
sum_kernel = launch.Kernel(_KERNELS, "sum_kernel")
finish_kernel = launch.Kernel(_KERNELS, "finish_kernel")
each_kernel = launch.Kernel(_KERNELS, "each_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")


@dataclass(frozen=True, slots=True)
class Divergence:
    """Which divergence, as the kernels know it.

    Attributes:
        mode: one of the kernels' constants.
        name: ``kl`` or ``js``, the part of a configuration's key.
        swapped: whether input and target change places.
        beta: weight of the target in a mixture.
    """

    mode: int
    name: str = "kl"
    swapped: bool = False
    beta: float = 0.0


PROBABILITIES = Divergence(0)
LOGARITHMS = Divergence(1)


@lru_cache(64)
def mixture(beta: float) -> Divergence:
    """Jensen-Shannon, or what it tends to at 0 and 1: forward and reverse Kullback-Leibler."""
    if beta == 0:
        return Divergence(2)
    if beta == 1:
        return Divergence(2, swapped=True)
    return Divergence(3, "js", beta=beta)


class Layout(NamedTuple):
    """Rows of elements; one row if all tensors have the same layout without gaps."""

    rows: int
    width: int
    tensors: tuple[Tensor, ...]
    strides: tuple[int, ...]

    def cut(self, block: int) -> tuple[int, int, int]:
        """Size of a chunk, chunks per row and chunks in all."""
        if self.rows > 1:
            block = min(block, max(16, next_power_of_2(self.width)))
        chunks = ceil_div(self.width, block)
        return block, chunks, self.rows * chunks


def _arrange(like: Tensor, *tensors: Tensor) -> Layout:
    """``tensors`` as rows; ``like`` has no gaps, and the layout of what is written."""
    strides = like.stride()
    if all(tensor.stride() == strides for tensor in tensors):
        return Layout(1, like.numel(), tensors, (0,) * len(tensors))
    if like.is_contiguous():
        width = like.shape[-1]
        pairs = [as_rows(tensor, width, 1) for tensor in tensors]
        return Layout(
            like.numel() // width,
            width,
            tuple(tensor for tensor, _ in pairs),
            tuple(stride for _, stride in pairs),
        )
    copies = tuple(
        torch.empty_strided(like.shape, strides, dtype=t.dtype, device=t.device).copy_(t)
        for t in tensors
    )
    return Layout(1, like.numel(), copies, (0,) * len(tensors))


def _fast(input: Tensor, target: Tensor) -> bool:
    """Whether logarithms and exponentials may be approximate, see the kernels."""
    return input.dtype in LOW_PRECISION and target.dtype in LOW_PRECISION


def forward(
    input: Tensor,
    target: Tensor,
    reduction: str,
    divergence: Divergence,
    config: Config | None = None,
) -> Tensor:
    """The divergence of tensors with elements; ``config`` overrides the table, for tuning."""
    dtype, device = input.dtype, input.device
    if target.dtype is not dtype:
        dtype = torch.promote_types(dtype, target.dtype)
    each = reduction == "none"
    if config is None:
        case = Case("each" if each else "sum", divergence.name, input.dtype)
        config = table.choose(case, launch.capability(device))
    if each:
        output = torch.empty_like(target, dtype=dtype)
        layout = _arrange(output, input, target)
    else:
        output = torch.empty((), dtype=dtype, device=device)
        dense = input.is_contiguous() and target.is_contiguous()
        layout = _arrange(input if dense else torch.empty_like(input, device="meta"), input, target)
    (x, t), (x_stride, t_stride) = layout.tensors, layout.strides
    if divergence.swapped:
        x, t, x_stride, t_stride = t, x, t_stride, x_stride
    block, chunks, units = layout.cut(config.block)
    beta = divergence.beta
    constants = {
        "MODE": divergence.mode,
        "FAST": _fast(input, target),
        "FLAT": layout.rows == 1,
        "EVEN": layout.width % block == 0,
        "BLOCK": block,
    }
    if each:
        each_kernel(
            (units, 1, 1),
            (x, t, output, chunks, layout.width, x_stride, t_stride, beta, 1.0 - beta),
            constants,
            config.num_warps,
        )
        return output
    constants["STAGES"] = config.num_stages
    programs = min(units, config.programs * launch.sm_count(device))
    partial, over = output, divisor(reduction, input)
    if programs > 1:
        partial = torch.empty(programs, dtype=torch.float32, device=device)
    sum_kernel(
        (programs, 1, 1),
        (
            *(x, t, partial, units, chunks, layout.width, x_stride, t_stride),
            *(1.0 if programs > 1 else over, beta, 1.0 - beta),
        ),
        constants,
        config.num_warps,
    )
    if programs > 1:
        finish_kernel(
            (1, 1, 1),
            (partial, output, programs, over),
            {"BLOCK": next_power_of_2(programs)},
            4,
        )
    return output


def backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    reduction: str,
    divergence: Divergence,
    needed: tuple[bool, bool],
    config: Config | None = None,
) -> tuple[Tensor | None, Tensor | None]:
    """The ``needed`` gradients of input and target, in the layouts of ``torch.empty_like``."""
    grad_input = torch.empty_like(input) if needed[0] else None
    grad_target = torch.empty_like(target) if needed[1] else None
    outputs = [tensor for tensor in (grad_input, grad_target) if tensor is not None]
    if not outputs:
        return None, None
    if config is None:
        case = Case("backward", divergence.name, input.dtype)
        config = table.choose(case, launch.capability(input.device))
    scalar = reduction != "none"
    like = outputs[0]
    given = (input, target) if scalar else (input, target, grad_output)
    if any(tensor.stride() != like.stride() for tensor in outputs):
        like = torch.empty(input.shape, dtype=input.dtype, device="meta")
    layout = _arrange(like, *given)
    x, t = layout.tensors[:2]
    x_stride, t_stride = layout.strides[:2]
    grad, grad_stride = (grad_output, 0) if scalar else (layout.tensors[2], layout.strides[2])
    dx, dt = (
        tensor
        if tensor is None or tensor.stride() == like.stride()
        else torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        for tensor in (grad_input, grad_target)
    )
    places = ((x, x_stride, dx), (t, t_stride, dt))
    if divergence.swapped:
        places = places[::-1]
    (a, a_stride, da), (b, b_stride, db) = places
    block, chunks, units = layout.cut(config.block)
    backward_kernel(
        (units, 1, 1),
        (
            *(grad, a, b, da, db, chunks, layout.width, grad_stride, a_stride, b_stride),
            *(divisor(reduction, input), divergence.beta, 1.0 - divergence.beta),
        ),
        {
            "MODE": divergence.mode,
            "FAST": _fast(input, target),
            "SCALAR": scalar,
            "NEED_X": da is not None,
            "NEED_T": db is not None,
            "FLAT": layout.rows == 1,
            "EVEN": layout.width % block == 0,
            "BLOCK": block,
        },
        config.num_warps,
    )
    for result, computed in ((grad_input, dx), (grad_target, dt)):
        if result is not None and computed is not None and result is not computed:
            result.copy_(computed)
    return grad_input, grad_target
