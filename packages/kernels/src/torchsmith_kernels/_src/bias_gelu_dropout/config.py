"""Tile sizes of the kernels of bias + GELU + dropout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch

from torchsmith_kernels._src.tables import Table

#: Columns of a tile: wide enough for whole memory transactions, narrow enough that a thread has
#: one piece of the bias for several rows, and that backward's partial sums stay small.
WIDEST = 256
PARTIALS_ROWS, PARTIALS_COLUMNS = 256, 16


@dataclass(frozen=True, slots=True)
class Config:
    """How work is cut and loaded.

    Attributes:
        block: elements per tile.
        num_warps: warps per program.
        per_sm: programs per multiprocessor.
        stages: depth of the pipeline through shared memory; 1 loads a tile when it is needed, 0
            loads one tile ahead into registers.
    """

    block: int
    num_warps: int
    per_sm: int
    stages: int


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward`` or ``backward``) and the dtype."""

    kernel: str
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{str(self.dtype).removeprefix('torch.')}"


#: ``Case``, of which there are few, without making it anew.
case_of = lru_cache(maxsize=None)(Case)


def derived(case: Case) -> Config:
    """One or two accesses of 16 bytes a thread; not measured."""
    once = 32 * 4 * (16 // case.dtype.itemsize)
    return Config(2 * once, 4, 8, 1) if case.kernel == "forward" else Config(once, 4, 8, 1)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries: one to four accesses of 16 bytes a thread, loaded ahead or not."""
    once = 32 * 4 * (16 // case.dtype.itemsize)
    sizes = [(1, 4, 8, 1), (1, 4, 8, 0), (1, 4, 16, 0), (2, 4, 8, 0), (2, 4, 4, 0)]
    if case.kernel == "forward":
        sizes += [(2, 4, 8, 3), (2, 4, 16, 3), (1, 4, 12, 0), (1, 4, 24, 0)]
    else:
        sizes += [(1, 4, 9, 0)]
    return [Config(once * n, warps, per_sm, stages) for n, warps, per_sm, stages in sizes]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    loops = config.per_sm > 0 and 0 <= config.stages <= 8
    return powers and loops and config.num_warps <= 32 and 32 <= config.block <= 2**16


table: Table[Case, Config] = Table("bias_gelu_dropout", Config, derived, accepts)
