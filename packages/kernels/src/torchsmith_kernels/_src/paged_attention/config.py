"""Tile sizes of paged decode attention, and into how many parts a sequence is cut."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch

from torchsmith_kernels._src.sizes import ceil_div, next_power_of_2
from torchsmith_kernels._src.tables import Table

MOST_SPLITS = 128
SHARED_MEMORY = 227 * 1024
#: What starting a program costs, in steps.
START_STEPS = 4
#: How much slower a multiprocessor is with one program, which cannot keep the memory busy.
LONE_PENALTY = 1.8


@dataclass(frozen=True, slots=True)
class Config:
    """Tiles of the split kernel.

    Attributes:
        block_t: tokens per step.
        num_warps: warps per program.
        num_stages: loads in flight.
    """

    block_t: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Case:
    """Head width and query heads per key/value head, both as powers of two, and the cache's dtype.

    Attributes:
        width: elements per head.
        group: query heads of one program, at least 16.
        dtype: of query and cache.
    """

    width: int
    group: int
    dtype: torch.dtype

    @staticmethod
    def of(width: int, group: int, dtype: torch.dtype) -> Case:
        """The case of exact sizes."""
        most = 64 if width <= 128 else 32
        group = min(max(next_power_of_2(group), 16), most)
        return Case(max(next_power_of_2(width), 16), group, dtype)

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.width}/{self.group}/{str(self.dtype).removeprefix('torch.')}"


def derived(case: Case) -> Config:
    """Tiles of 16 KiB of keys; not measured."""
    block_t = max(16, min(128, 16384 // (case.width * case.dtype.itemsize)))
    if case.dtype is torch.float32:
        return Config(16 if case.width > 128 else 32, 4, 2)
    return Config(block_t, 4 if case.width * case.group <= 4096 else 8, 3)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    base = derived(case)
    if case.dtype is torch.float32:
        return [base, Config(16, 4, 2), Config(32, 8, 2), Config(16, 4, 3)]
    sizes = [(32, 4, 4), (64, 4, 3), (64, 4, 4), (64, 8, 3)]
    if case.group == 16 and case.width <= 128:
        sizes += [(128, 4, 2), (128, 8, 2)]
    return list(dict.fromkeys([base, *(Config(*size) for size in sizes)]))


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block_t, config.num_warps))
    small = config.block_t * case.width * 2 * case.dtype.itemsize <= 128 * 1024
    return powers and config.block_t >= 16 and config.num_warps <= 16 and small


def occupancy(case: Case, config: Config) -> int:
    """Programs that fit a multiprocessor at once, by shared memory and registers."""
    tile = 2 * config.block_t * case.width * case.dtype.itemsize
    buffers = max(config.num_stages - 1, 1) * tile + 8192
    return max(1, min(SHARED_MEMORY // buffers, 16 // config.num_warps))


@lru_cache(maxsize=4096)
def splits(case: Case, config: Config, programs: int, longest: int, multiprocessors: int) -> int:
    """Parts of each sequence, from what is known without looking at the lengths.

    Programs run in rounds of as many as fit the chip, and a round that leaves multiprocessors with
    less to do wastes bandwidth; on the other hand a program costs some steps to start, and its part
    of the result is written and read again.

    Args:
        case: the sizes.
        config: the tiles.
        programs: sequences times heads, or what runs without splits.
        longest: tokens that a row of the block table has room for.
        multiprocessors: of the device.
    """
    fit = occupancy(case, config)
    steps = ceil_div(longest, config.block_t)
    best, least = 1, math.inf
    for parts in range(1, max(1, min(steps // 2, MOST_SPLITS)) + 1):
        full, rest = divmod(programs * parts, fit * multiprocessors)
        last = ceil_div(rest, multiprocessors)
        rounds = full * fit + (LONE_PENALTY if last == 1 else last)
        start = START_STEPS if parts == 1 else START_STEPS + 2 * case.group / config.block_t
        cost = rounds * (ceil_div(steps, parts) + start)
        if cost < least:
            best, least = parts, cost
    return best


table: Table[Case, Config] = Table("paged_attention", Config, derived, accepts)
