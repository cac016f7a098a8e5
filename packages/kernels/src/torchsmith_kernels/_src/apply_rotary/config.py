"""Tile sizes of the rotary embedding kernel."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import ceil_div
from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """Pairs per program, most heads per program, and warps per program."""

    pairs: int
    heads: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Case:
    """The pairs of a head rounded up to a power of two, how pairs lie, and the dtype."""

    block: int
    interleaved: bool
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        order = "interleaved" if self.interleaved else "half"
        return f"{order}/{self.block}/{str(self.dtype).removeprefix('torch.')}"


def derived(case: Case) -> Config:
    """16 bytes a thread and access, two accesses a thread for each half; not measured."""
    pairs = max(4096 // case.dtype.itemsize, case.block)
    return Config(pairs, 8, 4)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries: 16 pairs a thread, since less is slow for some numbers of heads."""
    return [
        Config(pairs, heads, warps)
        for pairs, warps in ((1024, 2), (2048, 4), (4096, 8))
        for heads in (2, 8)
        if pairs >= case.block
    ]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernel runs with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.pairs, config.heads, config.num_warps))
    return powers and config.num_warps <= 16 and config.pairs <= 2**14


def head_block(q_heads: int, k_heads: int, most: int) -> int:
    """Heads per tile: the largest power of two that leaves at most an eighth of the tiles idle."""
    block = most
    while block > 1:
        tiles = ceil_div(q_heads, block) + ceil_div(k_heads, block)
        if 8 * tiles * block <= 9 * (q_heads + k_heads):
            break
        block //= 2
    return block


table: Table[Case, Config] = Table("apply_rotary", Config, derived, accepts)
