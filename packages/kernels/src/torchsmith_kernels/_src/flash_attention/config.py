"""Tile sizes of the attention kernels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """Queries and keys per tile, warps per program, and loads in flight."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Case:
    """What tile sizes are chosen by.

    Attributes:
        kernel: ``forward``, ``keys`` or ``queries`` (the two of backward).
        dtype: of query, key and value.
        block_d: head dimension, rounded up to a power of two.
        windowed: whether a query sees only some of the keys, as under ``is_causal``.
        plain: whether scores are only scaled and masked by the window.
        small: whether a program may take only 99 KiB of shared memory; no part of the key.
    """

    kernel: str
    dtype: torch.dtype
    block_d: int
    windowed: bool
    plain: bool
    small: bool = False

    def key(self) -> str:
        """The case's name in stored tables."""
        window = "window" if self.windowed else "full"
        scores = "plain" if self.plain else "changed"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.kernel}/{self.block_d}/{dtype}/{window}/{scores}"


def block_d(head_dim: int) -> int:
    """Columns of a tile."""
    return max(next_power_of_2(head_dim), 16)


SMALL = (86, 89, 120, 121)  # compute capabilities of chips with 99 KiB


@cache
def case(
    kernel: str, dtype: torch.dtype, head_dim: int, windowed: bool, plain: bool, capability: int
) -> Case:
    """The case of a head dimension."""
    return Case(kernel, dtype, block_d(head_dim), windowed, plain, capability in SMALL)


#: What fits registers without spilling, the likely fastest first.
_CHOICES: dict[tuple[str, int], tuple[tuple[int, int, int, int], ...]] = {
    ("forward", 64): ((64, 64, 4, 3), (128, 64, 4, 3), (128, 64, 8, 3), (64, 64, 4, 2)),
    ("forward", 128): ((128, 64, 8, 3), (128, 128, 8, 3), (64, 64, 4, 3), (128, 64, 8, 4)),
    ("forward", 256): ((128, 64, 8, 2), (128, 32, 8, 3), (128, 32, 8, 2)),
    ("keys", 64): ((64, 64, 4, 3), (64, 64, 4, 2), (64, 128, 8, 3), (64, 128, 8, 2)),
    ("keys", 128): ((32, 128, 8, 3), (32, 64, 4, 2), (32, 128, 8, 2)),
    ("keys", 256): ((16, 64, 8, 2), (16, 64, 8, 3)),
    ("queries", 64): ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 2), (64, 64, 4, 3)),
    ("queries", 128): ((128, 64, 8, 3), (128, 64, 8, 2), (64, 64, 4, 2)),
    ("queries", 256): ((64, 32, 8, 3), (64, 32, 8, 2)),
}  # fmt: skip
_CHANGED: dict[str, tuple[tuple[int, int, int, int], ...]] = {
    "forward": ((64, 64, 4, 3), (64, 32, 4, 2), (128, 64, 8, 2)),
    "keys": ((32, 64, 4, 1), (32, 128, 8, 2)),
    "queries": ((64, 32, 4, 2), (64, 64, 4, 2), (128, 64, 8, 2)),
}


def derived(case: Case) -> Config:
    """As much of a multiprocessor's registers as the tiles can use; not measured."""
    return candidates(case)[0]


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    if case.dtype is torch.float32:
        small = case.block_d == 256 or (case.block_d == 128 and case.kernel == "keys")
        return [Config(16, 16, 8, 1) if small else Config(32, 32, 8, 1)]
    if not case.plain and case.block_d == 256:
        return [Config(16, 32, 4, 1) if case.kernel == "keys" else Config(32, 16, 4, 1)]
    choices = _CHOICES[case.kernel, min(max(case.block_d, 64), 256)]
    if case.small and case.block_d == 256:  # fewer stages, which a launch tries, are not enough
        choices = tuple(sizes for sizes in choices if sizes[1] <= 32) or choices
    return [Config(*sizes) for sizes in (choices if case.plain else _CHANGED[case.kernel])]


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    sizes = (config.block_m, config.block_n)
    powers = all(n >= 16 and n & (n - 1) == 0 for n in sizes)
    return powers and config.num_warps in (1, 2, 4, 8, 16) and 1 <= config.num_stages <= 8


table: Table[Case, Config] = Table("flash_attention", Config, derived, accepts)
