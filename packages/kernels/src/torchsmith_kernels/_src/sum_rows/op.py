"""The operators ``torchsmith::sort_rows`` and ``torchsmith::sum_rows``.

A gradient of indexing adds up rows by index. ``sort_rows`` is what depends on the index alone, for
all gradients that have it in common, and ``sum_rows`` adds up the rows of one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.sum_rows import reference, run
from torchsmith_kernels._src.sum_rows.config import LENGTH

INDICES = (torch.int32, torch.int64)


def _sort(
    index: Tensor, rows: int, padding: int, wrap: bool, checked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    found: Any = run if launch.usable(index.device, "sort_rows") else reference
    return found.sort(index, rows, padding, wrap, checked)  # type: ignore[no-any-return]


def _sort_fake(
    index: Tensor, rows: int, padding: int, wrap: bool, checked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    new, count = index.new_empty, index.numel()
    sizes = (count, rows + 1, (count + LENGTH - 1) // LENGTH * 2)
    order, offsets, ends = (new((size,), dtype=torch.int64) for size in sizes)
    return order, offsets, ends


def _sum(values: Tensor, order: Tensor, offsets: Tensor, ends: Tensor, size: list[int]) -> Tensor:
    found: Any = run if launch.usable(values.device, "sum_rows") else reference
    rows = values.reshape(order.numel(), math.prod(size) // max(offsets.numel() - 1, 1))
    return found.total(rows, order, offsets, ends).view(size)  # type: ignore[no-any-return]


def _sum_fake(
    values: Tensor, order: Tensor, offsets: Tensor, ends: Tensor, size: list[int]
) -> Tensor:
    return values.new_empty(size)


#: Of an index of any shape: the places of its entries by their rows, stably; where each of ``rows``
#: begins among them; and the first and last row in each block of ``LENGTH``. Entries that are
#: ``padding`` are left out, and so are others that are no row, which with ``checked`` are an error;
#: with ``wrap`` negative ones count from the end.
sort_rows = Op(
    "sort_rows(Tensor index, SymInt rows, SymInt padding, bool wrap, bool checked)"
    " -> (Tensor, Tensor, Tensor)",
    kernel=_sort,
    fake=_sort_fake,
)
#: Of values, which have the index's shape and then that of a row, and what ``sort_rows`` gives: the
#: sum of those of each row, in a fixed order, in float32 or float64, rounded once. ``size`` is the
#: result's, its first dimensions together as many as there are rows.
sum_rows = Op(
    "sum_rows(Tensor values, Tensor order, Tensor offsets, Tensor ends, SymInt[] size) -> Tensor",
    kernel=_sum,
    fake=_sum_fake,
)
