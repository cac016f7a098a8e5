"""Tile sizes of the squared ReLU kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """Elements per program and warps per program."""

    block: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Case:
    """The kernel (``forward`` or ``backward``) and the dtype."""

    kernel: str
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{str(self.dtype).removeprefix('torch.')}"


def derived(case: Case) -> Config:
    """16 bytes a thread and access, two accesses a thread; not measured."""
    block = 8192 // case.dtype.itemsize
    return Config(block, 8)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    base = derived(case).block
    return [
        Config(block, warps)
        for block in (base // 2, base, base * 2, base * 4)
        for warps in (4, 8)
        if 8 <= block // (32 * warps) <= 64
    ]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 32


table: Table[Case, Config] = Table("relu_squared", Config, derived, accepts)
