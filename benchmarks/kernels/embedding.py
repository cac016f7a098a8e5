"""Embedding lookup and its gradient, with indices as frequent as words are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from case import Case, Versions, compiled

DTYPE = torch.bfloat16
#: Indices, rows and columns of the table, and how often each index occurs.
SHAPES = [
    (2048, 32000, 2048, "zipf"),
    (16384, 32000, 4096, "zipf"),
    (16384, 131072, 4096, "zipf"),
    (16384, 131072, 4096, "uniform"),
    (65536, 131072, 2048, "zipf"),
    (65536, 50304, 1024, "30 % one"),
    (524288, 32000, 128, "zipf"),
]


def indices(count: int, rows: int, frequency: str) -> torch.Tensor:
    """Random indices: equally frequent, by Zipf's law, or 30 % of them the same."""
    generator = torch.Generator("cuda").manual_seed(0)
    uniform = torch.rand(count, device="cuda", generator=generator)
    if frequency == "zipf":
        return (float(rows) ** uniform).long().clamp_(1, rows) - 1
    index = (uniform * rows).long().clamp_(0, rows - 1)
    if frequency == "30 % one":
        index[torch.rand(count, device="cuda", generator=generator) < 0.3] = 7
    return index


def distinct(count: int, rows: int, frequency: str) -> int:
    """How many different indices are expected: the rows of the table that a lookup has to read."""
    place = torch.arange(1, rows + 1, dtype=torch.float64)
    share = torch.full_like(place, 1 / rows)
    if frequency == "zipf":
        share = torch.log((place + 1) / place) / math.log(rows)
    elif frequency != "uniform":
        count = int(0.7 * count)
    return int((1 - (1 - share) ** count).sum())


def _build(count: int, rows: int, width: int, frequency: str, direction: str) -> Versions:
    index = indices(count, rows, frequency)
    weight = torch.randn(rows, width, device="cuda", dtype=DTYPE)
    functions: dict[str, Callable[..., Any]] = {
        "ours": tk.embedding,
        "eager": F.embedding,
        "compile": compiled(lambda index, weight: F.embedding(index, weight)),
    }
    if find_spec("liger_kernel") is not None:
        from liger_kernel.ops.experimental.embedding import LigerEmbeddingFunction

        functions["liger"] = lambda index, weight: LigerEmbeddingFunction.apply(weight, index)
    if direction == "forward":
        return {name: partial(function, index, weight) for name, function in functions.items()}
    weight.requires_grad_()
    upstream = torch.randn(count, width, device="cuda", dtype=DTYPE)

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        y = function(index, weight)
        return lambda: torch.autograd.grad(y, weight, upstream, retain_graph=True)

    return {name: backward(function) for name, function in functions.items()}


def cases() -> list[Case]:
    """All lines of the table."""
    found = []
    for direction in ("forward", "backward"):
        for count, rows, width, frequency in SHAPES:
            # Backward writes the whole table, zeros included.
            table = distinct(count, rows, frequency) if direction == "forward" else rows
            moved = count + table
            found.append(
                Case(
                    op="embedding",
                    shape=f"{count} of {rows} x {width}, {frequency}",
                    dtype=DTYPE,
                    direction=direction,
                    build=partial(_build, count, rows, width, frequency, direction),
                    bytes=moved * width * DTYPE.itemsize,
                )
            )
    return found
