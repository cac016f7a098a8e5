"""Configurations of one kernel that may be faster than the one that the table names.

A neighbourhood, no search: twice and half of each tile size, more and fewer warps, and the other
schedules that can do the same (rows in registers or in a loop, whole or split). Which is fastest is
measured, see ``tuning``; all compute the same, up to the order in which a reduction adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from torchsmith_fx_backend._src.codegen.triton.config import (
    PERSISTENT_LIMIT,
    SM_COUNT,
    Config,
    Schedule,
    can_split,
    choose,
    count_points,
    fill_hints,
    next_power_of_2,
)
from torchsmith_fx_backend._src.loops.index import symbols
from torchsmith_fx_backend._src.loops.ir import Kernel


def candidates(
    kernel: Kernel, sizes: Mapping[str, int], sm_count: int = SM_COUNT
) -> tuple[Config, ...]:
    """What to measure, the table's choice first.

    Args:
        kernel: the loop nest.
        sizes: a likely value of each size symbol.
        sm_count: multiprocessors of the device.
    """
    sizes = fill_hints(kernel, sizes)
    table = choose(kernel, None, sm_count)
    here = choose(kernel, sizes, sm_count)
    found = [here, *_other_tiles(here), *_other_schedules(kernel, here, sizes, sm_count)]
    return tuple(dict.fromkeys([table, *filter(_fits, found)]))


def _fits(config: Config) -> bool:
    lanes = config.x_block * config.y_block * config.r_block
    threads = 32 * config.num_warps
    return 0 < lanes <= 64 * threads and 32 <= threads <= max(min(lanes, 1024), 32)


def _other_tiles(config: Config) -> Iterator[Config]:
    """The same schedule with other sizes."""
    x, y, r, warps = config.x_block, config.y_block, config.r_block, config.num_warps
    yield replace(config, num_warps=warps * 2)
    yield replace(config, num_warps=warps // 2)
    match config.schedule:
        case Schedule.POINTWISE | Schedule.SCATTER:
            yield replace(config, x_block=x * 2)
            yield replace(config, x_block=x * 2, num_warps=warps * 2)
            yield replace(config, x_block=x // 2, num_warps=max(warps // 2, 1))
        case Schedule.TILE:
            yield replace(config, x_block=x * 2, y_block=y // 2)
            yield replace(config, x_block=x // 2, y_block=y * 2)
            yield replace(config, x_block=x // 2, num_warps=max(warps // 2, 1))
            yield replace(config, schedule=Schedule.POINTWISE, x_block=1024, y_block=1, y_axis=0)
        case Schedule.PERSISTENT:
            yield replace(config, x_block=x * 2)
            yield replace(config, x_block=x * 4, num_warps=warps * 2)
            yield replace(config, x_block=x // 2)
        case Schedule.LOOPED | Schedule.SPLIT | Schedule.SCAN:
            yield replace(config, r_block=r * 2)
            yield replace(config, r_block=r // 2)
            yield replace(config, x_block=x * 2, r_block=r // 2)
            yield replace(config, x_block=x // 2, r_block=r * 2)
            if config.schedule is not Schedule.SCAN:
                yield replace(config, num_stages=4 - config.num_stages)


def _other_schedules(
    kernel: Kernel, config: Config, sizes: Mapping[str, int], sm_count: int
) -> Iterator[Config]:
    """Rows in registers or in a loop, whole or split."""
    if config.schedule not in (Schedule.PERSISTENT, Schedule.LOOPED, Schedule.SPLIT):
        return
    reduced = kernel.ranges[kernel.reduce_from :]
    rows = count_points(kernel.ranges[: kernel.reduce_from], sizes)
    columns = count_points(reduced, sizes)
    whole, x, block = next_power_of_2(columns), config.x_block, config.r_block
    if config.schedule is Schedule.PERSISTENT:
        x, block = 1, min(1024, whole)
        yield Config(Schedule.LOOPED, x, r_block=block, num_warps=max(block // 512, 1))
        yield Config(Schedule.LOOPED, x, r_block=min(4096, whole), num_warps=8)
    elif whole <= 2 * PERSISTENT_LIMIT and not any(map(symbols, reduced)):
        x_block = max(min(x, PERSISTENT_LIMIT // whole), 1)
        warps = min(max(x_block * whole // 512, 1), 32)
        yield Config(Schedule.PERSISTENT, x_block, r_block=whole, num_warps=warps)
    if config.schedule is Schedule.SPLIT:
        yield replace(config, schedule=Schedule.LOOPED, splits=1)
        yield replace(config, splits=max(config.splits // 2, 1))
        yield replace(config, splits=min(config.splits * 2, 1024))
    elif can_split(kernel):
        # As many programs as twice the chip takes, each with two steps at least.
        splits = min(2 * sm_count * x // max(rows, 1), columns // (2 * block), 1024)
        if splits > 1:
            warps = min(max(x * block // 512, 1), 8)
            yield Config(Schedule.SPLIT, x, r_block=block, splits=splits, num_warps=warps)
