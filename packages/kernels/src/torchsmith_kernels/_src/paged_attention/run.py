"""Launching the kernels of paged decode attention."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.paged_attention.config import Case, Config, splits, table
from torchsmith_kernels._src.sizes import ceil_div, next_power_of_2

_KERNELS = "torchsmith_kernels._src.paged_attention.kernel"
split_kernel = launch.Kernel(_KERNELS, "split_kernel")
combine_kernel = launch.Kernel(_KERNELS, "combine_kernel")

LOG2E = 1.4426950408889634


def forward(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    config: Config | None = None,
    parts: int | None = None,
) -> Tensor:
    """The kernels; ``config`` and ``parts`` override the choice, for tuning and tests."""
    batch, heads, width = query.shape
    page, kv_heads = key_cache.size(1), key_cache.size(2)
    group = heads // kv_heads
    case = Case.of(width, group, query.dtype)
    if config is None:
        config = table.choose(case, launch.capability(query.device))
    if query.stride(2) != 1:
        query = query.contiguous()
    if block_tables.stride(1) != 1:
        block_tables = block_tables.contiguous()
    seq_lens = seq_lens if seq_lens.stride(0) == 1 else seq_lens.contiguous()
    programs = batch * kv_heads * ceil_div(group, case.group)
    if parts is None:
        longest = block_tables.size(1) * page
        parts = splits(case, config, programs, longest, launch.sm_count(query.device))
    output = torch.empty((batch, heads, width), dtype=query.dtype, device=query.device)
    partial, sums = output, None
    if parts > 1:
        shape = (batch, heads, parts, width)
        partial = torch.empty(shape, dtype=torch.float32, device=query.device)
        sums = torch.empty(shape[:3], dtype=torch.float32, device=query.device)
    split_kernel(
        (programs * parts, 1, 1),
        (
            query,
            key_cache,
            value_cache,
            block_tables,
            seq_lens,
            partial,
            sums,
            float(scale * LOG2E),
            *query.stride()[:2],
            *key_cache.stride()[:3],
            *value_cache.stride()[:3],
            block_tables.stride(0),
            kv_heads,
            parts,
        ),
        {
            "GROUP": group,
            "PAGE": page,
            "WIDTH": width,
            "SPLIT": parts > 1,
            "PRECISION": "ieee",
            "BLOCK_G": case.group,
            "BLOCK_T": config.block_t,
            "BLOCK_D": case.width,
            "STAGES": config.num_stages,
        },
        config.num_warps,
        config.num_stages,
    )
    if parts > 1:
        combine_kernel(
            (batch * heads, 1, 1),
            (partial, sums, seq_lens, output, heads, parts),
            {"WIDTH": width, "BLOCK_S": next_power_of_2(parts), "BLOCK_D": case.width},
            4,
        )
    return output
