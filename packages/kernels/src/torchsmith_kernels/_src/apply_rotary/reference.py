"""Rotary position embedding in plain PyTorch: the meaning of the kernel, differentiable.

A head's first ``rotary_dim`` elements form pairs: element ``i`` with ``i + rotary_dim / 2``, or
when interleaved ``2 i`` with ``2 i + 1``. Each pair is turned by the angle of its token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def split_pairs(x: Tensor, interleaved: bool) -> tuple[Tensor, Tensor]:
    """The first and the second elements of the pairs along the last dimension."""
    if interleaved:
        return x[..., 0::2], x[..., 1::2]
    first, second = x.chunk(2, -1)
    return first, second


def join_pairs(first: Tensor, second: Tensor, interleaved: bool) -> Tensor:
    """The inverse of ``split_pairs``."""
    if interleaved:
        return torch.stack((first, second), -1).flatten(-2)
    return torch.cat((first, second), -1)


def expand_table(
    table: Tensor, positions: Tensor | None, length: int, rotary_dim: int, interleaved: bool
) -> Tensor:
    """The factors of the pairs, ``[batch or 1, length, rotary_dim / 2]``."""
    if positions is not None:
        table = torch.nn.functional.embedding(positions, table)
    elif table.dim() == 2:
        table = table[:length]
    if table.dim() == 2:
        table = table[None]
    if table.shape[-1] == rotary_dim:  # each factor twice
        return split_pairs(table, interleaved)[0]
    return table


def rotate(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor | None,
    rotary_dim: int,
    interleaved: bool,
    layout: str,
    inverse: bool,
) -> Tensor:
    """``x`` with its pairs turned, back when ``inverse``; rounded once."""
    heads = 1 if layout == "bhsd" else 2
    length = x.shape[3 - heads]
    compute = compute_dtype(x.dtype)
    c, s = (
        expand_table(table, positions, length, rotary_dim, interleaved).to(compute).unsqueeze(heads)
        for table in (cos, sin)
    )
    if inverse:
        s = -s
    x1, x2 = split_pairs(x[..., :rotary_dim].to(compute), interleaved)
    turned = join_pairs(x1 * c - x2 * s, x2 * c + x1 * s, interleaved).to(x.dtype)
    return turned if rotary_dim == x.shape[-1] else torch.cat((turned, x[..., rotary_dim:]), -1)
