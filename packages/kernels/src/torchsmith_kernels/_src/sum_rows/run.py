"""Launching the kernels of sums by index.

``sort`` makes what any number of sums share: a stable sort of the index (``rank`` for few, ``keys``
and torch's radix sort for many) and, in one launch, where each row's segment begins. ``total`` is
one launch for segments of up to ``LENGTH`` places, and one more, which ends at once where there are
no longer ones, for what could have them. All sums have a fixed order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.sizes import as_rows, ceil_div, compute_dtype
from torchsmith_kernels._src.sum_rows.config import LENGTH, Config, derived, of_pieces

_KERNELS = "torchsmith_kernels._src.sum_rows.kernel"
keys_kernel = launch.Kernel(_KERNELS, "keys_kernel")
rank_kernel = launch.Kernel(_KERNELS, "rank_kernel")
offsets_kernel = launch.Kernel(_KERNELS, "offsets_kernel")
pieces_kernel = launch.Kernel(_KERNELS, "pieces_kernel")
sum_kernel = launch.Kernel(_KERNELS, "sum_kernel")

#: Up to here comparing all pairs of indices takes less time than the launches of a radix sort.
_RANKED = 8192

_plans: tables.Remembered[tuple[launch.Plan | None, launch.Plan]] = tables.Remembered()


def _key_dtype(rows: int) -> torch.dtype:
    """The narrowest type that holds ``0 ... rows``: a radix sort takes time per byte."""
    if rows < 2**15:
        return torch.int16
    return torch.int32 if rows < 2**31 else torch.int64


def sort(
    index: Tensor, rows: int, padding: int, wrap: bool, checked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``op.sort_rows``."""
    count, device = index.numel(), index.device
    blocks = ceil_div(count, LENGTH)
    offsets = torch.empty(rows + 1, dtype=torch.int64, device=device)
    ends = torch.empty(2 * blocks, dtype=torch.int64, device=device)
    if count == 0:
        return ends, offsets.zero_(), ends.clone()
    index = index.contiguous()
    keys = torch.empty(count, dtype=_key_dtype(rows), device=device)
    options = {"WRAP": wrap, "CHECKED": checked}
    if count > _RANKED:
        sizes, grid = {**options, "BLOCK": 1024}, (ceil_div(count, 1024), 1, 1)
        keys_kernel(grid, (index, keys, count, rows, padding), sizes)
        keys, order = torch.sort(keys, stable=True)
    else:
        order = torch.empty(count, dtype=torch.int64, device=device)
        sizes, grid = {**options, "ROWS": 16, "COLUMNS": 256}, (ceil_div(count, 16), 1, 1)
        rank_kernel(grid, (index, keys, order, count, rows, padding), sizes)
    offsets_kernel(
        (ceil_div(max(rows + 1, 2 * blocks), 256), 1, 1),
        (keys, offsets, ends, count, rows, blocks),
        {"BLOCK": 256, "LENGTH": LENGTH},
    )
    return order, offsets, ends


def total(
    values: Tensor, order: Tensor, offsets: Tensor, ends: Tensor, config: Config | None = None
) -> Tensor:
    """See ``op.sum_rows``; ``config`` overrides the derived tiles, for tuning."""
    (count, width), rows = values.shape, offsets.numel() - 1
    result = torch.empty((rows, width), dtype=values.dtype, device=values.device)
    if count == 0 or result.numel() == 0:
        return result.zero_()
    values, stride = as_rows(values, width, 1)
    key = (count, width, rows, stride, values.dtype, values.device, config)
    plans = _plans.get(key)
    if plans is None:
        plans = _planned(values, stride, rows, config or derived(width, count, rows))
        _plans.keep(key, plans)
    pieces, sums = plans
    partial = None
    if pieces is not None:
        kind = compute_dtype(values.dtype)
        partial = torch.empty((ends.numel(), width), dtype=kind, device=values.device)
        pieces(values, order, offsets, ends, partial)
    sums(values, order, offsets, partial, result)
    return result


def _planned(
    values: Tensor, stride: int, rows: int, config: Config
) -> tuple[launch.Plan | None, launch.Plan]:
    """The launches for pieces, if a segment may have some, and for all segments."""
    count, width = values.shape
    columns = ceil_div(width, config.columns)
    integers = (rows, width, stride, columns)
    tile = {"ENTRIES": config.entries, "COLUMNS": config.columns, "LENGTH": LENGTH}
    pieces = None
    if count > LENGTH:
        grid = (2 * ceil_div(count, LENGTH) * columns, 1, 1)
        step = {**tile, "ENTRIES": of_pieces(config.columns).entries}
        pieces = launch.Plan(pieces_kernel, grid, integers, step, 4)
    kind = launch.triton_dtype(compute_dtype(values.dtype))
    tile = {"ROWS": config.rows, **tile, "DTYPE": kind}
    grid = (ceil_div(rows, config.rows) * columns, 1, 1)
    return pieces, launch.Plan(sum_kernel, grid, integers, tile, config.num_warps)
