"""Tile sizes of the cross entropy kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table

NARROWEST, WIDEST = 1024, 131072


@dataclass(frozen=True, slots=True)
class Config:
    """How a kernel runs.

    Attributes:
        block: elements per step or program.
        num_warps: warps per program.
        stages: loads in flight.
        per_sm: programs per multiprocessor that go through the rows; 0 is a program per row.
    """

    block: int
    num_warps: int
    stages: int = 1
    per_sm: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward``, ``backward`` or ``gradient``), the row's size class, the dtype.

    ``gradient`` is the kernel of the fused linear version, which reads a row twice and overwrites
    it.
    """

    kernel: str
    width: int
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{self.width}/{str(self.dtype).removeprefix('torch.')}"


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
    warps = 4 if case.width <= 4096 else 8
    if case.kernel == "gradient":
        # One program a multiprocessor: its row stays in L2 until it is read again.
        return Config(32 * 32 * vector, 32)
    return Config(warps * 32 * vector * 2, warps)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    vector = group(case.dtype)
    if case.kernel == "backward":
        shapes = [(4, 1), (4, 2), (8, 1), (8, 2), (4, 4), (8, 4)]
        return [Config(warps * 32 * vector * each, warps) for warps, each in shapes]
    if case.kernel == "gradient":
        shapes = [(8, 1), (8, 2), (16, 1), (16, 2), (32, 1), (32, 2)]
        return [Config(warps * 32 * vector * each, warps) for warps, each in shapes]
    found = []
    for warps, each, stages in [
        (4, 1, 1), (4, 2, 1), (8, 1, 1), (8, 2, 1), (16, 1, 1), (16, 2, 1),
        (4, 1, 3), (8, 1, 3), (16, 1, 3), (8, 2, 3),
    ]:  # fmt: skip
        block = warps * 32 * vector * each
        if block <= next_power_of_2(case.width):
            found.append(Config(block, warps, stages))
    return found


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 32 and config.block >= 16 and 1 <= config.stages <= 8


table: Table[Case, Config] = Table("cross_entropy", Config, derived, accepts)
