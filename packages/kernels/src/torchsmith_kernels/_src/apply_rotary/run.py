"""Launching the rotary embedding kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.apply_rotary.config import Case, Config, head_block, table
from torchsmith_kernels._src.sizes import ceil_div, compute_dtype, next_power_of_2

_KERNELS = "torchsmith_kernels._src.apply_rotary.kernel"
rotary_kernel = launch.Kernel(_KERNELS, "rotary_kernel")

_BSHD = (0, 1, 2)  # axes of batch, sequence and heads
_BHSD = (0, 2, 1)

_plans: tables.Remembered[launch.Plan] = tables.Remembered()


def _plan(
    q: Tensor,
    k: Tensor | None,
    q_out: Tensor,
    k_out: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
    config: Config | None = None,
) -> launch.Plan:
    """Grid, sizes and strides of a launch with tensors like these."""
    b, s, h = _BHSD if layout == "bhsd" else _BSHD
    batch, length, q_heads, dim = q.shape[b], q.shape[s], q.shape[h], q.shape[3]
    half = rotary_dim // 2
    block = next_power_of_2(half)
    if config is None:
        config = table.choose(Case(block, interleaved, q.dtype), launch.capability(q.device))
    k_heads = 0 if k is None else k.shape[h]
    heads = head_block(q_heads, k_heads, config.heads)
    q_blocks = ceil_div(q_heads, heads)
    blocks = q_blocks + ceil_div(k_heads, heads)
    block_t = max(config.pairs // (block * heads), 1)
    tokens = batch * length
    strides: list[int] = []
    for tensor in (q, k, q_out, k_out):
        strides += [0, 0, 0] if tensor is None else [tensor.stride(axis) for axis in (b, s, h)]
    for tensor in (cos, sin):
        shared = tensor.dim() == 2 or tensor.shape[0] == 1
        strides += [0 if shared else tensor.stride(0), tensor.stride(-2)]
    if positions is not None:
        shared = positions.dim() == 1 or positions.shape[0] == 1
        strides += [0 if shared else positions.stride(0), positions.stride(-1)]
    else:
        strides += [0, 0]
    # A table with a column per element holds each factor twice; one of them is read.
    repeated = cos.shape[-1] == rotary_dim
    # Elements past the pairs are copied, unless they are in place already.
    rest = 0 if q_out is q else dim - rotary_dim
    return launch.Plan(
        rotary_kernel,
        (ceil_div(tokens, block_t) * blocks, 1, 1),
        (tokens, length, cos.shape[-2], q_heads, k_heads, q_blocks, blocks, *strides),
        {
            "HALF": half,
            "REST": rest,
            "INTERLEAVED": interleaved,
            "STEP": 2 if repeated and interleaved else 1,
            "INVERSE": inverse,
            "COMPUTE": launch.triton_dtype(compute_dtype(q.dtype)),
            "BLOCK_T": block_t,
            "BLOCK_H": heads,
            "BLOCK_D": block,
            "BLOCK_REST": next_power_of_2(rest),
        },
        config.num_warps,
    )


def rotate(
    q: Tensor,
    k: Tensor | None,
    q_out: Tensor,
    k_out: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    *options: Any,
) -> None:
    """Writes the turned ``q`` and ``k`` to ``q_out`` and ``k_out``, which may be the same tensors.

    Last dimensions must be contiguous. ``options`` are those of the operator, and a configuration
    that overrides the table, for tuning.
    """
    if cos.stride(-1) != 1 or sin.stride(-1) != 1:
        cos, sin = cos.contiguous(), sin.contiguous()
    key = (
        q.device,
        q.dtype,
        q.shape,
        q.stride(),
        q_out is q,
        k is not None and (k.shape, k.stride()),
        cos.dtype,
        cos.shape,
        cos.stride(),
        sin.stride(),
        positions is not None and (positions.dtype, positions.shape, positions.stride()),
        options,
    )
    plan = _plans.get(key)
    if plan is None:
        plan = _plan(q, k, q_out, k_out, cos, sin, positions, *options)
        _plans.keep(key, plan)
    plan(q, k, q_out, k_out, cos, sin, positions)


def forward(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None, *options: Any
) -> tuple[Tensor, Tensor]:
    """The turned ``q`` and ``k`` as new tensors of the same layouts; ``options`` as above."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if q.numel() == 0 and k.numel() == 0:
        return q_out, k_out
    if q.stride(3) == k.stride(3) == q_out.stride(3) == k_out.stride(3) == 1:
        rotate(q, k, q_out, k_out, cos, sin, positions, *options)
        return q_out, k_out
    q, k = q.contiguous(), k.contiguous()
    q_to, k_to = torch.empty_like(q), torch.empty_like(k)
    rotate(q, k, q_to, k_to, cos, sin, positions, *options)
    return q_out.copy_(q_to), k_out.copy_(k_to)
