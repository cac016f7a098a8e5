"""Launching the rotary embedding kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.apply_rotary.config import Case, Config, head_block, table
from torchsmith_kernels._src.sizes import ceil_div, compute_dtype, next_power_of_2

_KERNELS = "torchsmith_kernels._src.apply_rotary.kernel"
rotary_kernel = launch.Kernel(_KERNELS, "rotary_kernel")

_BSHD = (0, 1, 2)  # axes of batch, sequence and heads
_BHSD = (0, 2, 1)


def _table_strides(table: Tensor, batch: int) -> tuple[Tensor, int, int]:
    """The table with contiguous rows, its batch stride (0 where all share it) and row stride."""
    if table.stride(-1) != 1:
        table = table.contiguous()
    strides = table.stride()
    if len(strides) == 2:
        return table, 0, strides[0]
    return table, 0 if table.shape[0] == 1 else strides[0], strides[1]


def rotate(
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
) -> None:
    """Writes the turned ``q`` and ``k`` to ``q_out`` and ``k_out``, which may be the same tensors.

    Last dimensions must be contiguous. ``config`` overrides the table, for tuning.
    """
    b, s, h = _BHSD if layout == "bhsd" else _BSHD
    q_shape, q_strides, q_out_strides = q.shape, q.stride(), q_out.stride()
    batch, length, q_heads, dim = q_shape[b], q_shape[s], q_shape[h], q_shape[3]
    k_heads = 0
    k_strides = k_out_strides = q_strides
    if k is not None and k_out is not None:
        k_heads, k_strides, k_out_strides = k.shape[h], k.stride(), k_out.stride()
    half = rotary_dim // 2
    block = next_power_of_2(half)
    if config is None:
        config = table.choose(Case(block, interleaved, q.dtype), launch.capability(q.device))
    # Where a head's tokens follow each other in memory, a tile is best made of them.
    heads = 1
    if q_strides[h] <= q_strides[s]:
        heads = head_block(q_heads, k_heads, config.heads)
    tokens = batch * length
    block_t = max(config.pairs // (block * heads), 1)
    q_blocks = ceil_div(q_heads, heads)
    blocks = q_blocks + ceil_div(k_heads, heads)
    cos, cos_b, cos_s = _table_strides(cos, batch)
    sin, sin_b, sin_s = _table_strides(sin, batch)
    positions_b = positions_s = 0
    if positions is not None:
        strides = positions.stride()
        positions_s = strides[-1]
        positions_b = strides[0] if len(strides) == 2 and positions.shape[0] != 1 else 0
    # Elements past the pairs are copied, unless they are in place already.
    rest = 0 if q_out is q else dim - rotary_dim
    rotary_kernel(
        (ceil_div(tokens, block_t) * blocks, 1, 1),
        (
            q,
            k,
            q_out,
            k_out,
            cos,
            sin,
            positions,
            tokens,
            length,
            cos.shape[-2],
            q_heads,
            k_heads,
            q_blocks,
            blocks,
            q_strides[b],
            q_strides[s],
            q_strides[h],
            k_strides[b],
            k_strides[s],
            k_strides[h],
            q_out_strides[b],
            q_out_strides[s],
            q_out_strides[h],
            k_out_strides[b],
            k_out_strides[s],
            k_out_strides[h],
            cos_b,
            cos_s,
            sin_b,
            sin_s,
            positions_b,
            positions_s,
        ),
        {
            "HALF": half,
            "REST": rest,
            "INTERLEAVED": interleaved,
            "FULL": cos.shape[-1] == rotary_dim,
            "INVERSE": inverse,
            "COMPUTE": launch.triton_dtype(compute_dtype(q.dtype)),
            "BLOCK_T": block_t,
            "BLOCK_H": heads,
            "BLOCK_D": block,
            "BLOCK_REST": next_power_of_2(rest),
        },
        config.num_warps,
    )


def forward(
    q: Tensor,
    k: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """The turned ``q`` and ``k`` as new tensors of the same layouts."""
    q_out, k_out = torch.empty_like(q), torch.empty_like(k)
    if q.numel() == 0 and k.numel() == 0:
        return q_out, k_out
    if q.stride(-1) != 1:
        q = q.contiguous()
    if k.stride(-1) != 1:
        k = k.contiguous()
    q_to = q_out if q_out.stride(-1) == 1 else torch.empty_like(q)
    k_to = k_out if k_out.stride(-1) == 1 else torch.empty_like(k)
    rotate(q, k, q_to, k_to, cos, sin, positions, rotary_dim, interleaved, layout, inverse, config)
    if q_to is not q_out:
        q_out.copy_(q_to)
    if k_to is not k_out:
        k_out.copy_(k_to)
    return q_out, k_out
