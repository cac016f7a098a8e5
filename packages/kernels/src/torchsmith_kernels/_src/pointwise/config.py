"""Tile sizes of element-wise kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from torchsmith_kernels._src.sizes import ceil_div, next_power_of_2

NARROWEST = 64  # elements a tile is wide, where rows are that long: 128 bytes of bfloat16
WASTE = 1.07  # lanes a tile may spend beyond the end of a row, for wider accesses


@dataclass(frozen=True, slots=True)
class Config:
    """Elements per program and warps per program."""

    block: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward`` or ``backward``), the dtype, and whether the walk is flat."""

    kernel: str
    dtype: torch.dtype
    flat: bool = True

    def key(self) -> str:
        """The case's name in stored tables."""
        walk = "flat" if self.flat else "rows"
        return f"{self.kernel}/{walk}/{str(self.dtype).removeprefix('torch.')}"


#: ``Case``, of which there are few, without making it anew.
case_of = lru_cache(maxsize=None)(Case)


def derived(case: Case) -> Config:
    """16 bytes a thread and access, one access a thread and tensor; not measured."""
    block = 4096 // case.dtype.itemsize
    return Config(block, 8)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries: one to four 16-byte accesses a thread."""
    per_thread = 16 // case.dtype.itemsize
    return [
        Config(32 * warps * per_thread * accesses, warps)
        for warps in (4, 8)
        for accesses in (1, 2, 4)
    ]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 32 and 32 <= config.block <= 2**17


@lru_cache(maxsize=4096)
def tile(rows: int, width: int, block: int, widest: int = 2**20) -> tuple[int, int, int]:
    """Rows and columns of a tile of ``block`` elements, and how many tiles cover everything.

    The widest tile, up to ``widest`` columns, that leaves few lanes idle at the ends of rows.
    """
    if rows == 1:
        return 1, block, ceil_div(width, block)
    columns = min(block, widest, next_power_of_2(width))
    while columns > NARROWEST and ceil_div(width, columns) * columns > WASTE * width:
        columns //= 2
    height = block // columns
    return height, columns, ceil_div(rows, height) * ceil_div(width, columns)
