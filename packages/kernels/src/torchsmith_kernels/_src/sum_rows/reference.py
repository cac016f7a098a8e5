"""Sums by index in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import ceil_div, compute_dtype
from torchsmith_kernels._src.sum_rows.config import LENGTH


def sort(
    index: Tensor, rows: int, padding: int, wrap: bool, checked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``op.sort_rows``."""
    flat = index.reshape(-1).long()
    if wrap:
        flat = torch.where(flat < 0, flat + rows, flat)
    inside = (flat >= 0) & (flat < rows)
    if checked and not bool(inside.all()):
        wrong = int(index.reshape(-1)[~inside][0])
        raise IndexError(f"index {wrong} is out of bounds for dimension 0 with size {rows}")
    keys, order = torch.sort(torch.where(inside & (flat != padding), flat, rows), stable=True)
    offsets = torch.searchsorted(keys, torch.arange(rows + 1, device=keys.device))
    slot = torch.arange(2 * ceil_div(len(keys), LENGTH), device=keys.device)
    place = slot // 2 * LENGTH + slot % 2 * (LENGTH - 1)
    return order, offsets, keys[place.clamp(max=len(keys) - 1)]


def total(values: Tensor, order: Tensor, offsets: Tensor, ends: Tensor) -> Tensor:
    """See ``op.sum_rows``."""
    rows = torch.arange(offsets.numel() - 1, device=order.device)
    rows = rows.repeat_interleave(offsets.diff())
    wide = values.to(compute_dtype(values.dtype))
    result = wide.new_zeros((offsets.numel() - 1, values.shape[1]))
    return result.index_add_(0, rows, wide[order[: len(rows)]]).to(values.dtype)
