"""Tile sizes of the embedding kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """Rows and columns per program, warps per program."""

    rows: int
    columns: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward`` or ``backward``), the width's power of two up to 1024, the dtype."""

    kernel: str
    width: int
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{self.width}/{str(self.dtype).removeprefix('torch.')}"


#: Sorted positions per block of the backward pass. Changes results, in their last bit, only for
#: indices that occur more often; therefore not tuned.
LENGTH = 32

WIDEST = 1024


def case(kernel: str, width: int, dtype: torch.dtype) -> Case:
    """The case of a table with rows of ``width`` elements."""
    return Case(kernel, min(next_power_of_2(width), WIDEST), dtype)


def derived(case: Case) -> Config:
    """16 bytes a thread and access; not measured.

    Forward four accesses a thread; backward one, in small programs, since most of them end at once
    and the others take as long as their longest run.
    """
    elements = (8192 if case.kernel == "forward" else 2048) // case.dtype.itemsize
    columns = min(case.width, elements)
    return Config(max(elements // case.width, 1), columns, 4)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    sizes = [(1024, 2), (1024, 4), (2048, 2), (2048, 4), (4096, 4), (4096, 8), (8192, 8)]
    if case.kernel == "backward":
        sizes = [(256, 1), (256, 2), (512, 2), (512, 4), (1024, 4), (2048, 8)]
    shapes = ((min(case.width, elements), elements, warps) for elements, warps in sizes)
    return [Config(elements // columns, columns, warps) for columns, elements, warps in shapes]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(
        n > 0 and n & (n - 1) == 0 for n in (config.rows, config.columns, config.num_warps)
    )
    return powers and config.num_warps <= 16 and config.rows * config.columns <= 2**15


table: Table[Case, Config] = Table("embedding", Config, derived, accepts)
