"""A matrix product whose rows start nowhere in particular, computed where it belongs.

The library is fast only where rows of the result start at multiples of 16 bytes. In a contiguous
result of an odd width each eighth row does, and those after it do from their eighth column less
one, two, ... on. So every eighth row is a product of its own, straight into the result, and a
narrow product computes what is left at both ends. Nothing as large as the result or the weight is
held beside them (the logits of a language model are often its largest tensor).
"""

from __future__ import annotations

import math

import torch

ROW = 8  # elements of two bytes


def period(columns: int) -> int:
    """How many rows of this width lie between two that start at multiples of 16 bytes."""
    return ROW // math.gcd(ROW, columns)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``x @ weight.t() + bias``, contiguous.

    Args:
        x: ``[..., inner]``, ``inner`` a multiple of ``ROW``.
        weight: ``[columns, inner]``, contiguous, at least ``2 * ROW`` columns.
        bias: ``[columns]``.
    """
    columns, inner = weight.shape
    rows = x.reshape(-1, inner)
    result = x.new_empty((*x.shape[:-1], columns))
    lines = result.view(-1, columns)
    ends = _multiply(rows, _ends(weight), None if bias is None else _ends(bias))
    lines[:, :ROW] = ends[:, :ROW]
    lines[:, -ROW:] = ends[:, ROW:]
    step = period(columns)
    for first in range(min(step, len(rows))):
        start = -first * columns % ROW
        aligned = slice(start, columns - (columns - start) % ROW)
        part = None if bias is None else bias[aligned]
        _multiply(rows[first::step], weight[aligned], part, out=lines[first::step, aligned])
    return result


def _ends(weight: torch.Tensor) -> torch.Tensor:
    return torch.cat((weight[:ROW], weight[-ROW:]))


def _multiply(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    if bias is None:
        return torch.mm(rows, weight.t(), out=out)
    return torch.addmm(bias, rows, weight.t(), out=out)
