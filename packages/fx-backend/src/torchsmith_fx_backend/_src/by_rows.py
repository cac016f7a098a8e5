"""A matrix product whose padded columns are held for a few rows at a time.

The library is fast only where rows of the result start at multiples of 16 bytes. A result of
another width is computed wider and copied; all of it at once would take twice the memory (the
logits of a language model are often its largest tensor).
"""

from __future__ import annotations

import torch

ROWS = 1024  # at a time: enough programs for any GPU


def product(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, columns: int
) -> torch.Tensor:
    """The first ``columns`` columns of ``x @ weight + bias``, contiguous.

    Args:
        x: ``[..., inner]``.
        weight: ``[inner, wide]``, ``wide`` at least ``columns``.
        bias: ``[wide]``.
        columns: how many are wanted.
    """
    rows = x.reshape(-1, x.shape[-1])
    result = x.new_empty((*x.shape[:-1], columns))
    wide = x.new_empty((min(ROWS, len(rows)), weight.shape[1]))
    lines = result.view(-1, columns)
    for start in range(0, len(rows), ROWS):
        these = rows[start : start + ROWS]
        part = wide[: len(these)]
        if bias is None:
            torch.mm(these, weight, out=part)
        else:
            torch.addmm(bias, these, weight, out=part)
        lines[start : start + ROWS].copy_(part[:, :columns])
    return result
