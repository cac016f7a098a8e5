"""Paged decode attention in plain PyTorch: the meaning of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def forward(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    """Gathers each sequence's keys and values and attends to them; one at a time, for memory."""
    _, heads, width = query.shape
    block_size, kv_heads = key_cache.shape[1], key_cache.shape[2]
    compute = compute_dtype(query.dtype)
    output = torch.zeros_like(query, memory_format=torch.contiguous_format)
    for index, length in enumerate(seq_lens.tolist()):
        if length <= 0:
            continue
        blocks = block_tables[index, : -(-length // block_size)].long()
        key = key_cache[blocks].flatten(0, 1)[:length].to(compute)  # [length, kv_heads, width]
        value = value_cache[blocks].flatten(0, 1)[:length].to(compute)
        grouped = query[index].to(compute).view(kv_heads, heads // kv_heads, width)
        scores = torch.einsum("hgd,thd->hgt", grouped, key) * scale
        result = torch.einsum("hgt,thd->hgd", scores.softmax(-1), value)
        output[index] = result.reshape(heads, width).to(query.dtype)
    return output
