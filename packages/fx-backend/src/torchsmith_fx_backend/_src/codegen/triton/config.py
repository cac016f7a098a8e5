"""Which schedule and which tile sizes a kernel gets: a small table, no search.

The table is keyed by the kind of loop nest, its extents and the width of its elements. It aims at
16-byte accesses with several independent loads in flight per thread, and at enough programs to fill
the chip. Nothing in it is measured per kernel; a different ``Config`` changes speed, never results.
``candidates`` names others that may be faster.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from torchsmith_fx_backend._src.codegen.triton import index as ix
from torchsmith_fx_backend._src.loops.index import Index, evaluate
from torchsmith_fx_backend._src.loops.index import symbols as symbols_of
from torchsmith_fx_backend._src.loops.ir import Kernel, Load, Reduce, ReduceOp, Store
from torchsmith_fx_backend._src.loops.meeting import meeting_stores, owned_axes
from torchsmith_fx_backend._src.loops.verify import full_values, reduce_levels, walks_again

PERSISTENT_LIMIT = 16384  # longest row, in elements, that one program holds in registers
# Assumed sizes of symbols that nobody gave a hint for, the first at which there are points.
DEFAULT_HINTS = (1024, 64, 8, 2, 1 << 24)
ACCUMULATED = 96  # accumulators that a thread has registers for
PIPELINED = 96 * 1024  # bytes of shared memory for steps under way; consumer chips have 99 KiB
SMALL_SHARE = 8  # what spans less than the largest tensor by this factor is small
FEW_TERMS = {True: 256, False: 24}  # if a kernel walks them once, and if it does so again
SM_COUNT = 132  # H100 and H200; used where no device was asked


class Schedule(Enum):
    """How a kernel's iteration space is walked."""

    POINTWISE = "pointwise"  # flat blocks over all points
    TILE = "tile"  # two-dimensional blocks, for transposes
    PERSISTENT = "persistent"  # whole rows in registers, one pass
    LOOPED = "looped"  # a loop over the row, one pass per level of dependent reductions
    SCAN = "scan"  # a loop over the row that carries what came before
    SCATTER = "scatter"  # flat blocks over owned axes, a loop over points that may meet
    SPLIT = "split"  # partial results per part of the reduction, then a second kernel


@dataclass(frozen=True, slots=True)
class Config:
    """Schedule and tile sizes of one kernel.

    Attributes:
        schedule: the schedule.
        x_block: outer points per program (of the last axis for ``TILE``).
        y_block: points of ``y_axis`` per program; only for ``TILE``.
        y_axis: the axis that pairs with the last one; only for ``TILE``.
        r_block: reduction points per step; 1 for schedules without reduction.
        splits: parts of the reduction axis; only for ``SPLIT``.
        num_warps: warps per program.
        num_stages: steps whose loads are under way at once; for ``LOOPED`` and ``SPLIT``.
    """

    schedule: Schedule
    x_block: int
    y_block: int = 1
    y_axis: int = 0
    r_block: int = 1
    splits: int = 1
    num_warps: int = 4
    num_stages: int = 1

    def __str__(self) -> str:
        fields = self.to_json()
        schedule = fields.pop("schedule")
        same = {"y_block": 1, "y_axis": 0, "r_block": 1, "splits": 1, "num_stages": 1}
        told = [f"{name}={value}" for name, value in fields.items() if value != same.get(name)]
        return " ".join([schedule, *told])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "schedule": self.schedule.value}

    @staticmethod
    def from_json(fields: Mapping[str, Any]) -> Config:
        """What ``to_json`` gave."""
        return Config(**{**fields, "schedule": Schedule(fields["schedule"])})


def next_power_of_2(n: int) -> int:
    """Smallest power of two that is at least ``n`` (1 for 0)."""
    return 1 << max(n - 1, 0).bit_length()


def _clamp_power(n: int, low: int, high: int) -> int:
    return max(low, min(high, next_power_of_2(n)))


def count_points(extents: tuple[Index, ...], symbols: Mapping[str, int]) -> int:
    """How many points these axes span, for these values of size symbols."""
    return math.prod(int(evaluate(extent, (), symbols)) for extent in extents)


def fill_hints(kernel: Kernel, hints: Mapping[str, int]) -> dict[str, int]:
    """A value for every symbol that extents and indices mention."""
    names: set[str] = set(kernel.symbols)
    for expression in (*kernel.ranges, *ix.index_expressions(kernel)):
        names |= symbols_of(expression)
    for default in DEFAULT_HINTS:
        values = {name: hints.get(name, default) for name in names}
        with contextlib.suppress(ZeroDivisionError):  # 96 // (96 // n) at more than 96
            if all(evaluate(extent, (), values) > 0 for extent in kernel.ranges):
                return values
    return dict.fromkeys(names, DEFAULT_HINTS[0]) | dict(hints)


def choose(
    kernel: Kernel, hints: Mapping[str, int] | None = None, sm_count: int = SM_COUNT
) -> Config:
    """Picks schedule and tile sizes.

    Args:
        kernel: the loop nest.
        hints: likely values of the size symbols; correctness never depends on them.
        sm_count: multiprocessors of the device, to decide when a reduction is split.
    """
    symbols = fill_hints(kernel, hints or {})
    if meeting_stores(kernel):
        owned = count_points(tuple(kernel.ranges[axis] for axis in owned_axes(kernel)), symbols)
        block = _clamp_power(owned, 1, 256 if owned >= 256 * sm_count else 64)
        return Config(Schedule.SCATTER, block, num_warps=_clamp_power(block // 64, 1, 4))
    if kernel.reduce_from == len(kernel.ranges):
        return _choose_pointwise(kernel, symbols, sm_count)
    if kernel.scans:
        return _choose_scan(kernel, symbols)
    return _with_stages(kernel, _with_room(kernel, _choose_reduction(kernel, symbols, sm_count)))


def _with_room(kernel: Kernel, config: Config) -> Config:
    """Shorter steps where many reductions have a tile of accumulators each in a loop."""
    if config.schedule is Schedule.PERSISTENT:
        return config
    levels = reduce_levels(kernel.body)
    counts = Counter(levels[i] for i, node in enumerate(kernel.body) if isinstance(node, Reduce))
    x, r, threads = config.x_block, config.r_block, 32 * config.num_warps
    most = ACCUMULATED * threads // max(counts.values())
    while x * r > max(most, threads):
        x, r = (x, r // 2) if r > 1 else (x // 2, r)
    return replace(config, x_block=x, r_block=r)


def _with_stages(kernel: Kernel, config: Config) -> Config:
    """Fewer steps under way where many tensors are read: all of them but one wait in shared
    memory."""
    loads = (kernel.args[node.arg] for node in kernel.body if isinstance(node, Load))
    step = sum(arg.dtype.itemsize for arg in loads) * config.x_block * config.r_block
    most = 1 + PIPELINED // step if step else config.num_stages
    return replace(config, num_stages=min(config.num_stages, most))


def _choose_pointwise(kernel: Kernel, symbols: Mapping[str, int], sm_count: int) -> Config:
    if (axis := _transposed_axis(kernel, symbols)) is not None:
        extent_x = int(evaluate(kernel.ranges[-1], (), symbols))
        extent_y = int(evaluate(kernel.ranges[axis], (), symbols))
        x_block = _clamp_power(extent_x, 16, 64)
        y_block = _clamp_power(extent_y, 16, 4096 // x_block)
        x_block = _clamp_power(extent_x, 16, 4096 // y_block)
        warps = _clamp_power(x_block * y_block // 512, 1, 8)
        return Config(Schedule.TILE, x_block, y_block, axis, num_warps=warps)
    points = count_points(kernel.ranges, symbols)
    # 8 elements a thread are one 16-byte access of bf16 and two of fp32; small kernels use smaller
    # blocks so that every multiprocessor gets some.
    block = 1024 if all(arg.dtype.itemsize <= 4 for arg in kernel.args) else 512
    block = _for_all(points, block, sm_count)
    return Config(Schedule.POINTWISE, block, num_warps=max(1, block // 256))


def _for_all(points: int, block: int, sm_count: int) -> int:
    """``block``, or as much less as lets every multiprocessor have two."""
    while block > 128 and points < block * sm_count * 2:
        block //= 2
    return block


@dataclass(frozen=True, slots=True)
class _Access:
    """A load or a store: how far it moves per step of each axis, and the bytes that it spans."""

    steps: tuple[int | None, ...]
    bytes: int


def _accesses(kernel: Kernel, symbols: Mapping[str, int]) -> list[_Access]:
    """Those that matter; small tables stay in caches however they are read."""
    extents = [int(evaluate(extent, (), symbols)) for extent in kernel.ranges]
    found = []
    for node in kernel.body:
        if isinstance(node, Load | Store):
            steps = tuple(ix.step(node.index, axis, symbols) for axis in range(len(extents)))
            points = math.prod(n for n, step in zip(extents, steps) if step != 0)
            found.append(_Access(steps, points * kernel.args[node.arg].dtype.itemsize))
    most = max((access.bytes for access in found), default=0)
    return [access for access in found if access.bytes * SMALL_SHARE >= most]


def _transposed_axis(kernel: Kernel, symbols: Mapping[str, int]) -> int | None:
    """An axis that some load walks contiguously while the stores walk the last one."""
    last = len(kernel.ranges) - 1
    extents = [int(evaluate(extent, (), symbols)) for extent in kernel.ranges]
    if last < 1 or extents[last] < 8:
        return None
    for access in _accesses(kernel, symbols):
        if access.steps[last] in (None, -1, 0, 1):
            continue
        for axis in range(last):
            if access.steps[axis] == 1 and extents[axis] >= 8:
                return axis
    return None


def _choose_reduction(kernel: Kernel, symbols: Mapping[str, int], sm_count: int) -> Config:
    """Sums across contiguous rows, and sums that write or read such rows beside others (the
    gradient of a bias whose terms are laid out anew), go in tiles; others row by row. On an H200
    the second took 2.3 to 14 times as long row by row, the most for images."""
    rows = count_points(kernel.ranges[: kernel.reduce_from], symbols)
    cols = count_points(kernel.ranges[kernel.reduce_from :], symbols)
    outer = kernel.reduce_from - 1
    accesses = _accesses(kernel, symbols)
    once, several = can_split(kernel), rows >= 8 * sm_count
    crossed = cols >= 128 and any(_crosses(access, outer) for access in accesses)
    in_tiles = once and crossed and cols > (8192 if several else 1024)
    if in_tiles or _reduces_outer_axis(accesses, outer):
        if len(accesses) == 1 and rows >= 512 and 512 <= cols <= PERSISTENT_LIMIT:
            widest = max(arg.dtype.itemsize for arg in kernel.args)
            return _choose_columns(rows, widest, sm_count)
        few = cols <= FEW_TERMS[once] and rows >= 256 * sm_count
        if cols <= 8 or (few and not any(_follows(access, outer) for access in accesses)):
            return _choose_few_terms(rows, 512 if once or cols <= 4 else 256, sm_count)
        # As many sums per program as fill it.
        x_block = _clamp_power(rows, 1, max(64, 1024 // next_power_of_2(cols)))
        r_block = _clamp_power(cols, 1, 4096 // x_block if x_block >= 16 else 512)
        warps = _clamp_power(x_block * r_block // 512, 1, 8)
    else:
        static = all(not symbols_of(extent) for extent in kernel.ranges[kernel.reduce_from :])
        if crossed and several:
            return _choose_crossed(static, cols, len(accesses))
        if static and cols <= PERSISTENT_LIMIT:
            r_block = next_power_of_2(cols)
            x_block = 1
            # Short rows share a program, as long as the chip stays full.
            while x_block * r_block < 1024 and rows > x_block * 2 * sm_count * 4:
                x_block *= 2
            warps = _clamp_power(x_block * r_block // 512, 1, 16)
            return Config(Schedule.PERSISTENT, x_block, r_block=r_block, num_warps=warps)
        x_block = 1
        r_block = _clamp_power(cols, 128, 4096)
        warps = _clamp_power(r_block // 512, 1, 8)
    programs = -(-rows // x_block)
    splits = min(-(-cols // (r_block * 4)), -(-2 * sm_count // max(programs, 1)), 1024)
    if splits > 1 and once:
        # Loads of three steps under way hide memory, unless positions take long to compute.
        stages = 3 if x_block > 1 and outer == len(kernel.ranges) - 2 else 1
        return Config(Schedule.SPLIT, x_block, 1, 0, r_block, splits, warps, stages)
    return Config(Schedule.LOOPED, x_block, r_block=r_block, num_warps=warps)


def _choose_few_terms(rows: int, x_block: int, sm_count: int) -> Config:
    """For few terms that lie apart: a sum per lane, which walks its terms by itself. On an H200 0.1
    to 1.0 of the time of steps over several terms, least for types of 16 bits."""
    x_block = _for_all(rows, x_block, sm_count)
    return Config(Schedule.LOOPED, x_block, num_warps=min(4, x_block // 64))


def _choose_columns(rows: int, itemsize: int, sm_count: int) -> Config:
    """For one matrix that is reduced along its columns, as in the product of a row with it: long
    steps, of which several are under way where programs are few. On an H200 0.7 to 0.95 of the
    time of split columns, and one launch instead of two."""
    if rows >= 32 * sm_count:
        stages = 1 if rows >= 64 * sm_count else 3
        return Config(Schedule.LOOPED, 32, r_block=256, num_warps=8, num_stages=stages)
    r_block = 512 if itemsize <= 2 else 256  # three steps fit into any chip's shared memory
    return Config(Schedule.LOOPED, 16, r_block=r_block, num_warps=8, num_stages=3)


def _choose_crossed(static: bool, cols: int, accesses: int) -> Config:
    """For rows of which some tensors are read or written across: several rows per program, so that
    those accesses meet whole cache lines. With many tensors fewer registers are left for a row."""
    if static and cols <= 1024 and accesses <= 6:
        r_block = next_power_of_2(cols)
        warps = max(4, r_block // 128)
        return Config(Schedule.PERSISTENT, 4096 // r_block, r_block=r_block, num_warps=warps)
    return Config(Schedule.LOOPED, 8, r_block=128, num_warps=8)


def _choose_scan(kernel: Kernel, symbols: Mapping[str, int]) -> Config:
    rows = count_points(kernel.ranges[: kernel.reduce_from], symbols)
    cols = count_points(kernel.ranges[kernel.reduce_from :], symbols)
    across = _reduces_outer_axis(_accesses(kernel, symbols), kernel.reduce_from - 1)
    x_block = _clamp_power(rows, 1, 32 if across else 1)
    r_block = _clamp_power(cols, 1, 1024 // x_block)
    warps = _clamp_power(x_block * r_block // 256, 1, 4)
    return Config(Schedule.SCAN, x_block, r_block=r_block, num_warps=warps)


def _crosses(access: _Access, outer: int) -> bool:
    """Whether an access is contiguous along the axis ``outer``, not along the last one."""
    return outer >= 0 and access.steps[outer] == 1 and access.steps[-1] not in (0, 1)


def _follows(access: _Access, outer: int) -> bool:
    """Whether an access is contiguous along the last axis, not along the axis ``outer``."""
    return outer >= 0 and access.steps[-1] == 1 and access.steps[outer] != 1


def _reduces_outer_axis(accesses: list[_Access], outer: int) -> bool:
    """Whether most bytes are contiguous along the last outer axis, not the last reduced one."""
    across = sum(access.bytes for access in accesses if _crosses(access, outer))
    along = sum(access.bytes for access in accesses if _follows(access, outer))
    return across > along


def can_split(kernel: Kernel) -> bool:
    """Whether partial reductions can be combined by a second kernel.

    That needs every reduction to be independent of the others, and no full value to depend on one.
    """
    return not walks_again(kernel.body, full_values(kernel))


ARG_REDUCTIONS = (ReduceOp.ARGMAX, ReduceOp.ARGMIN)
