"""Launching the row normalization kernels; takes checked arguments where the kernels run."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.row_norm.config import MOST_PARTS, Config, choose
from torchsmith_kernels._src.sizes import as_rows, ceil_div, new_like, next_power_of_2

_KERNELS = "torchsmith_kernels._src.row_norm.kernel"
forward_kernel = launch.Kernel(_KERNELS, "forward_kernel")
forward_wide_kernel = launch.Kernel(_KERNELS, "forward_wide_kernel")
backward_kernel = launch.Kernel(_KERNELS, "backward_kernel")
statistics_kernel = launch.Kernel(_KERNELS, "statistics_kernel")
sum_kernel = launch.Kernel(_KERNELS, "sum_kernel")


def forward(
    op: str,
    input: Tensor,
    residual: Tensor | None,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mean: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The normalized rows and, if there is a residual, the sum that was normalized.

    ``config`` overrides the table of ``op``, for tuning.
    """
    width = math.prod(normalized_shape)
    x, x_stride = input, width
    if input.is_contiguous():
        output = torch.empty_like(input)
    else:
        output = new_like(input, input.shape)
        x, x_stride = as_rows(input, width, len(normalized_shape))
    total = None if residual is None else torch.empty_like(output)
    result = output, output if total is None else total
    count = output.numel()
    if count == 0:
        return result
    rows = count // width
    residual_stride = width
    if residual is not None and not residual.is_contiguous():
        residual, residual_stride = as_rows(residual, width, len(normalized_shape))
    if config is None:
        config = choose("forward", width, input.dtype, op, launch.capability(input.device))
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    if bias is not None and not bias.is_contiguous():
        bias = bias.contiguous()
    args = (x, residual, weight, bias, output, total, rows, x_stride, residual_stride, eps)
    dense = x_stride == width == residual_stride
    if config.block_n < width:
        forward_wide_kernel(
            (rows, 1, 1),
            args,
            {"N": width, "DENSE": dense, "MEAN": mean, "BLOCK_N": config.block_n},
            config.num_warps,
        )
        return result
    programs = ceil_div(rows, config.block_m)
    if config.programs_per_sm:
        programs = min(programs, config.programs_per_sm * launch.sm_count(input.device))
    forward_kernel(
        (programs, 1, 1),
        args,
        {
            "N": width,
            "DENSE": dense,
            "MEAN": mean,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "STAGES": config.stages,
        },
        config.num_warps,
    )
    return result


def backward(
    op: str,
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mean: bool,
    need_input: bool,
    need_weight: bool,
    need_bias: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of input, weight and bias; one that is not needed comes back empty.

    ``config`` overrides the table of ``op``, for tuning.
    """
    need_weight = need_weight and weight is not None
    need_bias = need_bias and bias is not None
    dx = new_like(input, input.shape if need_input else (0,))
    dw = new_like(input if weight is None else weight, normalized_shape if need_weight else (0,))
    db = new_like(input if bias is None else bias, normalized_shape if need_bias else (0,))
    result = dx, dw, db
    count = input.numel()
    if count == 0:
        dw.zero_()
        db.zero_()
        return result
    if not (need_input or need_weight or need_bias):
        return result
    width, dims = math.prod(normalized_shape), len(normalized_shape)
    rows = count // width
    grad_output, grad_stride = as_rows(grad_output, width, dims)
    x, x_stride = as_rows(input, width, dims)
    sum_stride = width
    if grad_sum is not None:
        grad_sum, sum_stride = as_rows(grad_sum, width, dims)
    if weight is not None and not weight.is_contiguous():
        weight = weight.contiguous()
    device = input.device
    if config is None:
        config = choose("backward", width, input.dtype, op, launch.capability(device))
    dense = grad_stride == sum_stride == x_stride == width
    parts = ceil_div(width, config.block_n)
    statistics = None
    if parts > MOST_PARTS:
        statistics = torch.empty((rows, 4), dtype=torch.float32, device=device)
        statistics_kernel(
            (rows, 1, 1),
            (grad_output, x, weight, statistics, rows, grad_stride, x_stride, eps),
            {"N": width, "DENSE": dense, "MEAN": mean, "BLOCK_N": 8192},
            16,
        )
    shares = max(1, config.programs_per_sm * launch.sm_count(device) // parts)
    shares = min(shares, ceil_div(rows, config.block_m))
    sums = need_weight + need_bias
    partial = torch.empty((sums, shares, width), dtype=torch.float32, device=device)
    backward_kernel(
        (parts, shares, 1),
        (
            grad_output, grad_sum, x, weight, statistics, dx if need_input else None, partial,
            rows, grad_stride, sum_stride, x_stride, eps,
        ),
        {
            "N": width,
            "DENSE": dense,
            "MEAN": mean,
            "DW": need_weight,
            "DB": need_bias,
            "BLOCK_M": config.block_m,
            "BLOCK_N": config.block_n,
            "STAGES": config.stages,
        },
        config.num_warps,
    )  # fmt: skip
    if sums:
        # Tall tiles where rows are narrow, since few programs then add up many shares.
        block_n = min(128, max(16, next_power_of_2(width) // 128))
        sum_kernel(
            (ceil_div(width, block_n), sums, 1),
            (partial, dw if need_weight else db, db if sums == 2 else None, shares),
            {"N": width, "BLOCK_M": 4096 // block_n, "BLOCK_N": block_n},
            8,
        )
    return result
