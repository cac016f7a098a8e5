"""Launching the cross entropy kernels."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.cross_entropy.config import (
    FEW_ROWS,
    Case,
    Config,
    group,
    size_class,
    table,
)
from torchsmith_kernels._src.sizes import as_rows, ceil_div, next_power_of_2

_KERNELS = "torchsmith_kernels._src.cross_entropy.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")
reduce_kernel = launch.Kernel(_KERNELS, "reduce_kernel")

REDUCE_BLOCK = 8192

_plans: tables.Remembered[launch.Plan] = tables.Remembered()


@cache
def _case(kernel: str, width: int, dtype: torch.dtype, few: bool) -> Case:
    return Case(kernel, size_class(width), dtype, few)


def fitting(
    kernel: str, like: Tensor, count: int, width: int, config: Config | None
) -> tuple[int, int, int]:
    """Block, warps and stages for ``count`` rows of ``width``."""
    dtype = like.dtype
    if config is None:
        case = _case(kernel, width, dtype, kernel == "forward" and count <= FEW_ROWS)
        config = table.choose(case, launch.capability(like.device))
    vector = group(dtype)
    block, warps = config.block, config.num_warps
    if block > width:
        block = min(block, max(next_power_of_2(width + vector), 32 * vector))
        while warps > 1 and warps * 32 * vector > block:
            warps //= 2
    return block, warps, config.stages


def is_shifted(logits: Tensor, stride: int, width: int) -> bool:
    """Whether rows begin between vector boundaries, from which the kernels can step back."""
    vector = group(logits.dtype)
    # An int argument that is a multiple of 16 is known to be one; other rows need the step back.
    if logits.shape[0] < 2 and width % 16 == 0:
        return False
    aligned = stride % 16 == 0 and width % 16 == 0
    return not aligned and stride == width and logits.data_ptr() % (vector * logits.itemsize) == 0


def plain_weight(weight: Tensor | None) -> Tensor | None:
    """Class weights as the kernels read them: contiguous, and in float32 if they were wider.

    Beside a float64 tensor the kernels' numbers would be float64 too.
    """
    if weight is None:
        return None
    return (weight.float() if weight.dtype is torch.float64 else weight).contiguous()


def weight_sum(weight: Tensor | None, label_smoothing: float) -> Tensor | None:
    """Sum of the class weights; any tensor where it is not used."""
    if weight is None:
        return None
    if not label_smoothing:
        return weight
    return weight.sum(dtype=torch.float32)


def saved_size(count: int, reduction: str) -> int:
    """Numbers that forward leaves for backward.

    They are each row's ``logsumexp``; with a reduction the rows' losses and the divisor of the
    mean; and what rounding has lost of each ``logsumexp``, which confident float32 logits need.
    """
    return 2 * count if reduction == "none" else 3 * count + 1


def forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    dtype: torch.dtype,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss, and what backward needs, see ``saved_size``.

    ``config`` overrides the table, for tuning.
    """
    count, width = input.shape
    device = input.device
    input, stride = as_rows(input, width, 1)
    weight = plain_weight(weight)
    saved = torch.empty(saved_size(count, reduction), dtype=torch.float32, device=device)
    if reduction == "none":
        loss = torch.empty(count, dtype=dtype, device=device)
        losses, losses_offset = loss, 0
    else:
        loss = torch.empty((), dtype=dtype, device=device)
        losses, losses_offset = saved, count
    settings = (ignore_index, label_smoothing, z_loss, softcap)
    sums = weight_sum(weight, label_smoothing)
    rows_forward(
        input, stride, target, weight, sums, losses, saved, losses_offset, 0, settings, config
    )
    if reduction != "none":
        reduce(losses, target, weight, saved, loss, count, width, ignore_index, reduction)
    return loss, saved


def rows_forward(
    logits: Tensor,
    stride: int,
    target: Tensor,
    weight: Tensor | None,
    weights_sum: Tensor | None,
    losses: Tensor,
    saved: Tensor,
    losses_offset: int,
    first_row: int,
    settings: tuple[int, float, float, float | None],
    config: Config | None = None,
) -> None:
    """Losses and ``logsumexp`` of rows, the first of which is ``first_row`` of ``target``.

    Args:
        logits: ``[rows, classes]``.
        stride: distance of its rows.
        target: classes.
        weight: class weights, contiguous.
        weights_sum: their sum, where there is label smoothing.
        losses: where losses go, from ``losses_offset + first_row`` on.
        saved: where ``logsumexp`` goes, from ``first_row`` on, and at the end what it has lost.
        losses_offset: see ``losses``.
        first_row: see above.
        settings: ignored class, label smoothing, factor of the z-loss, soft cap.
        config: overrides the table, for tuning.
    """
    count, width = logits.shape
    key = (
        count, width, stride, logits.dtype, logits.data_ptr() & 15, logits.device,
        target.dtype, target.stride(0), None if weight is None else weight.dtype, losses.dtype,
        losses_offset, saved.numel(), first_row, settings,
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None or config is not None:
        block, warps, stages = fitting("forward", logits, count, width, config)
        ignore_index, label_smoothing, z_loss, softcap = settings
        numbers = (
            stride, target.stride(0), losses_offset, saved.numel() - len(target), first_row, count,
            width, ignore_index, float(label_smoothing), float(z_loss), float(softcap or 0.0),
        )  # fmt: skip
        constants = {
            "SMOOTHING": label_smoothing != 0,
            "SOFTCAP": softcap is not None,
            "BLOCK": block,
            "GROUP": group(logits.dtype),
            "STAGES": stages,
            "SHIFTED": is_shifted(logits, stride, width),
        }
        if config is not None:
            tensors = (logits, target, weight, weights_sum, losses, saved)
            forward_kernel((count, 1, 1), (*tensors, *numbers), constants, warps)
            return
        plan = launch.Plan(forward_kernel, (count, 1, 1), numbers, constants, warps)
        _plans.keep(key, plan)
    plan(logits, target, weight, weights_sum, losses, saved)


def reduce(
    losses: Tensor,
    target: Tensor,
    weight: Tensor | None,
    saved: Tensor,
    result: Tensor | None,
    count: int,
    width: int,
    ignore_index: int,
    reduction: str,
) -> None:
    """Reduces ``saved[count : 2 * count]`` to ``result``; what it divides by goes to the end."""
    key = (
        count, width, losses.device, target.dtype, target.stride(0),
        None if weight is None else weight.dtype, None if result is None else result.dtype,
        ignore_index, reduction,
    )  # fmt: skip
    plan = _plans.get(key)
    if plan is None:
        plan = launch.Plan(
            reduce_kernel,
            (1, 1, 1),
            (target.stride(0), count, 2 * count, count, width, ignore_index),
            {
                "LOSSES": result is not None,
                "COUNT": reduction == "mean",
                "BLOCK": min(REDUCE_BLOCK, max(128, next_power_of_2(count))),
            },
            32 if count > 1024 else 4,
        )
        _plans.keep(key, plan)
    plan(losses, target, weight, saved, result)


def backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    saved: Tensor,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
    config: Config | None = None,
    inplace: bool = False,
    first_row: int = 0,
) -> Tensor:
    """The gradient; with ``inplace`` it overwrites ``input``, whose rows must be regular then.

    The first row of ``input`` is row ``first_row`` of what ``saved`` is about.
    """
    count, width = input.shape
    input, stride = as_rows(input, width, 1)
    weight = plain_weight(weight)
    result = input if inplace else torch.empty_like(input, memory_format=torch.contiguous_format)
    block, warps, _ = fitting("backward", input, count, width, config)
    vector = group(input.dtype)
    shifted = not inplace and is_shifted(input, stride, width)
    blocks = ceil_div(width + vector - 1 if shifted else width, block)
    grad_stride = grad_output.stride(0) if grad_output.dim() else 0
    lost = saved.numel() // 2 if reduction == "none" else 2 * count + 1
    backward_kernel(
        (count * blocks, 1, 1),
        (
            grad_output, input, result, target, weight, weight_sum(weight, label_smoothing), saved,
            grad_stride, stride, result.stride(0), target.stride(0), first_row, lost, 2 * count,
            blocks, width, ignore_index, float(label_smoothing), float(z_loss),
            float(softcap or 0.0),
        ),
        {
            "MEAN": reduction == "mean",
            "SMOOTHING": label_smoothing != 0,
            "SOFTCAP": softcap is not None,
            "BLOCK": block,
            "GROUP": vector,
            "SHIFTED": shifted,
        },
        warps,
    )  # fmt: skip
    return result
