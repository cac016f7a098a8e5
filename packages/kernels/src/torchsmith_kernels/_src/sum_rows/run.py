"""Launching the kernels of sums by index.

``sort`` makes what any number of sums share: a stable sort of the index (``rank`` for few, ``keys``
and torch's radix sort for many) and, in one launch, where each row's segment begins. ``total`` is
one launch for segments of up to ``LENGTH`` places, and one more, which ends at once where there are
no longer ones, for what could have them. All sums have a fixed order.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Collection
from typing import Any

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

_Launch = tuple[launch.Kernel, tuple[int, int, int], tuple[Any, ...], dict[str, Any]]

_plans: tables.Remembered[tuple[launch.Plan | None, launch.Plan]] = tables.Remembered()


def _key_dtype(rows: int) -> torch.dtype:
    """The narrowest type that holds ``0 ... rows``: a radix sort takes time per byte."""
    if rows < 2**15:
        return torch.int16
    return torch.int32 if rows < 2**31 else torch.int64


def _first(
    index: Tensor, keys: Tensor, order: Tensor, count: int, rows: int, padding: int, options: Any
) -> _Launch:
    """Keys of places for a radix sort, or their order."""
    if count > _RANKED:
        given, sizes = (index, keys, count, rows, padding), {**options, "BLOCK": 1024}
        return keys_kernel, (ceil_div(count, 1024), 1, 1), given, sizes
    sizes = {**options, "ROWS": 16, "COLUMNS": 256}
    return (
        rank_kernel,
        (ceil_div(count, 16), 1, 1),
        (index, keys, order, *(count, rows, padding)),
        sizes,
    )


def _last(keys: Tensor, offsets: Tensor, ends: Tensor, count: int, rows: int) -> _Launch:
    """Where segments begin."""
    blocks = ceil_div(count, LENGTH)
    grid = (ceil_div(max(rows + 1, 2 * blocks), 256), 1, 1)
    given = keys, offsets, ends, count, rows, blocks
    return offsets_kernel, grid, given, {"BLOCK": 256, "LENGTH": LENGTH}


def ordered(
    index: Tensor, rows: int, padding: int, wrap: bool = False, checked: bool = False
) -> tuple[Tensor, Tensor]:
    """The entries of ``index`` in order, stably, and the places that they come from; those that
    ``sort_rows`` leaves out are ``rows``, and last. There is one at least."""
    count, new = index.numel(), functools.partial(torch.empty, device=index.device)
    keys = order = new(count, dtype=_key_dtype(rows))
    if count <= _RANKED:
        order = new(count, dtype=torch.int64)
    options, numbers = {"WRAP": wrap, "CHECKED": checked}, (count, rows, padding)
    kernel, grid, given, sizes = _first(index.contiguous(), keys, order, *numbers, options)
    kernel(grid, given, sizes)
    return torch.sort(keys, stable=True) if count > _RANKED else (keys, order)


def sort(
    index: Tensor, rows: int, padding: int, wrap: bool, checked: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``op.sort_rows``."""
    count, new = index.numel(), functools.partial(torch.empty, device=index.device)
    offsets = new(rows + 1, dtype=torch.int64)
    ends = new(2 * ceil_div(count, LENGTH), dtype=torch.int64)
    if count == 0:
        return ends, offsets.zero_(), ends.clone()
    keys, order = ordered(index, rows, padding, wrap, checked)
    kernel, grid, given, sizes = _last(keys, offsets, ends, count, rows)
    kernel(grid, given, sizes)
    return order, offsets, ends


def prepare(
    index: Tensor, rows: int, padding: int, wrap: bool, sums: Collection[tuple[int, torch.dtype]]
) -> None:
    """Compile, beside what else the process does, what ``sort`` launches for an index and ``total``
    for rows of these widths and types. Of ``index`` only the metadata is read."""
    count, device = index.numel(), index.device
    if count == 0 or device.type != "cuda" or not launch.usable(device, "sum_rows"):
        return
    import triton  # noqa: F401  (whole, before threads import parts of it at the same time)

    def one(dtype: torch.dtype) -> Tensor:
        return torch.empty(1, dtype=dtype, device=device)

    def order() -> None:
        places, keys = one(torch.int64), one(_key_dtype(rows))
        numbers, options = (count, rows, padding), {"WRAP": wrap, "CHECKED": True}
        first = _first(one(index.dtype), keys, places, *numbers, options)
        for kernel, _, given, sizes in (first, _last(keys, places, places, count, rows)):
            kernel.prepare(given, sizes)

    def sums_of(width: int, dtype: torch.dtype, of_pieces: bool) -> None:
        tiles = derived(width, count, rows)
        pieces, plan = _planned(count, width, width, rows, dtype, tiles)
        values, places = one(dtype), one(torch.int64)
        partial = None if pieces is None else one(compute_dtype(dtype))
        if not of_pieces:
            plan.prepare(values, places, places, partial, values)
        elif pieces is not None:
            pieces.prepare(values, places, places, places, partial)

    def quietly(task: Callable[[], None]) -> None:
        with contextlib.suppress(Exception):  # the launch says it again
            task()

    kinds = itertools.product(sums, (False, True))
    tasks = [functools.partial(sums_of, *kind, of_pieces) for kind, of_pieces in kinds]
    for task in (order, *tasks):
        threading.Thread(target=quietly, args=(task,), name="torchsmith kernels").start()


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
        tiles = config or derived(width, count, rows)
        plans = _planned(count, width, stride, rows, values.dtype, tiles)
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
    count: int, width: int, stride: int, rows: int, dtype: torch.dtype, config: Config
) -> tuple[launch.Plan | None, launch.Plan]:
    """The launches for pieces, if a segment may have some, and for all segments."""
    columns = ceil_div(width, config.columns)
    integers = (rows, width, stride, columns)
    tile = {"ENTRIES": config.entries, "COLUMNS": config.columns, "LENGTH": LENGTH}
    pieces = None
    if count > LENGTH:
        grid = (2 * ceil_div(count, LENGTH) * columns, 1, 1)
        step = {**tile, "ENTRIES": of_pieces(config.columns).entries}
        pieces = launch.Plan(pieces_kernel, grid, integers, step, 4)
    kind = launch.triton_dtype(compute_dtype(dtype))
    tile = {"ROWS": config.rows, **tile, "DTYPE": kind}
    grid = (ceil_div(rows, config.rows) * columns, 1, 1)
    return pieces, launch.Plan(sum_kernel, grid, integers, tile, config.num_warps)
