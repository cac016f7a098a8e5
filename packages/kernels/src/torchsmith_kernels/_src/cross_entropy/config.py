"""Tile sizes of the cross entropy kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table

NARROWEST, WIDEST = 1024, 131072
#: A multiprocessor of an H200 holds 16 programs of 4 warps.
FEW_ROWS = 2048


@dataclass(frozen=True, slots=True)
class Config:
    """How a kernel runs.

    Attributes:
        block: elements per step or program.
        num_warps: warps per program.
        stages: loads in flight.
    """

    block: int
    num_warps: int
    stages: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward``, ``backward`` or ``gradient``), the row's size class, the dtype.

    ``few`` is whether forward has so few rows that small programs would not fill the GPU.

    ``gradient`` is the kernel of the fused linear version, which reads a row twice and overwrites
    it.
    """

    kernel: str
    width: int
    dtype: torch.dtype
    few: bool = False

    def key(self) -> str:
        """The case's name in stored tables."""
        few = "few rows/" if self.few else ""
        return f"{self.kernel}/{few}{self.width}/{str(self.dtype).removeprefix('torch.')}"


def size_class(width: int) -> int:
    """Widths that share a configuration: powers of 4 from 1024 to 65536, then 131072 and up."""
    if width > 65536:
        return WIDEST
    size = NARROWEST
    while size < width:
        size *= 4
    return size


def group(dtype: torch.dtype) -> int:
    """Elements that a thread loads at once: 16 bytes."""
    return 16 // dtype.itemsize


def derived(case: Case) -> Config:
    """16 or 32 bytes a thread and step; rows of a few blocks get fewer warps. Not measured."""
    vector = group(case.dtype)
    if case.kernel == "gradient":
        return Config(8 * 32 * vector * 2, 8)
    warps = 4
    if case.kernel == "forward":
        warps = 1 if case.width <= 1024 else 4
    return Config(warps * 32 * vector * (4 if case.few else 2), warps)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    if case.kernel == "backward":
        shapes = [(4, 1), (4, 2), (8, 1), (8, 2), (4, 4)]
    elif case.kernel == "gradient":
        shapes = [(4, 2), (8, 1), (8, 2), (16, 1), (16, 2), (32, 1)]
    elif case.few:
        shapes = [(4, 2), (4, 4), (8, 1), (8, 2), (16, 1)]
    elif case.width <= 4096:
        shapes = [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4), (4, 1), (4, 2)]
    else:
        shapes = [(2, 2), (4, 1), (4, 2), (4, 4), (8, 1), (8, 2)]
    vector = group(case.dtype)
    found = [Config(warps * 32 * vector * each, warps) for warps, each in shapes]
    return [config for config in found if config.block <= next_power_of_2(case.width)]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 32 and config.block >= 16 and 1 <= config.stages <= 8


table: Table[Case, Config] = Table("cross_entropy", Config, derived, accepts)
