"""Decode attention over a paged cache; bytes are those of the keys and values, read once."""

from __future__ import annotations

import torch
from case import Case, Versions, compiled
from torch import Tensor
from torch.nn import functional as F
from torchsmith_kernels import paged_attention


def _gathered(query: Tensor, key: Tensor, value: Tensor, tables: Tensor, mask: Tensor) -> Tensor:
    """What eager offers: gather the pages into dense tensors, then SDPA."""
    dense = [cache[tables].flatten(1, 2).transpose(1, 2) for cache in (key, value)]
    found = F.scaled_dot_product_attention(
        query[:, :, None], dense[0], dense[1], attn_mask=mask, enable_gqa=True
    )
    return found[:, :, 0]


def _case(
    batch: int,
    tokens: int,
    heads: int,
    kv_heads: int = 8,
    width: int = 128,
    page: int = 16,
    ragged: bool = False,
) -> Case:
    lengths = [(i * 37 * 64) % tokens + 1 if ragged else tokens for i in range(batch)]

    def build() -> Versions:
        each = tokens // page
        pages = batch * each
        query = torch.randn(batch, heads, width, device="cuda", dtype=torch.bfloat16)
        shape = (pages, page, kv_heads, width)
        key = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        value = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
        tables = torch.randperm(pages, device="cuda").view(batch, each).int()
        lens = torch.tensor(lengths, device="cuda", dtype=torch.int32)
        mask = (torch.arange(tokens, device="cuda") < lens[:, None])[:, None, None]
        fused = compiled(_gathered)
        return {
            "ours": lambda: paged_attention(query, key, value, tables, lens),
            "eager": lambda: _gathered(query, key, value, tables, mask),
            "compile": lambda: fused(query, key, value, tables, mask),
        }

    name = f"{batch} x {tokens}{' ragged' if ragged else ''}, {heads}/{kv_heads} heads of {width}"
    return Case(
        "paged_attention",
        f"{name}, pages of {page}",
        torch.bfloat16,
        "forward",
        build,
        bytes=sum(lengths) * kv_heads * width * 2 * 2,
    )


def cases() -> list[Case]:
    """Batches of short and few long sequences, 128 MiB to 2 GiB of keys and values."""
    return [
        _case(64, 4096, 32),
        _case(64, 4096, 64, page=64),
        _case(16, 16384, 32),
        _case(8, 32768, 32, page=256),
        _case(1, 131072, 32),
        _case(1, 32768, 64),
        _case(128, 4096, 32, ragged=True),
        _case(32, 2048, 32, kv_heads=32),
        _case(64, 8192, 64, width=64),
        _case(16, 8192, 16, kv_heads=4, width=256),
    ]
