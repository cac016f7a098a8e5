"""Tile sizes of the group norm kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """Elements per program and step, and warps per program.

    A ``block`` of at least a group's elements keeps the group in registers.
    """

    block: int
    num_warps: int


@dataclass(frozen=True, slots=True)
class Case:
    """What a program does, for which size, in which dtype.

    Attributes:
        kernel: ``forward`` or ``backward`` by one program per group, or the steps ``sums`` and
            ``apply`` of several programs per group, with ``_last`` for channels last.
        size: a power of two: elements of a group, at most ``LARGEST``; of the other steps 0.
        dtype: the input's.
    """

    kernel: str
    size: int
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{self.size}/{str(self.dtype).removeprefix('torch.')}"


LARGEST = 2**16
#: Most elements that a program keeps in registers, forward and backward (two tensors).
MOST = {"forward": 2**15, "backward": 2**14}


def case(kernel: str, elements: int, dtype: torch.dtype) -> Case:
    """The case of groups of ``elements``, 0 for the steps that share them."""
    size = min(next_power_of_2(elements), LARGEST) if elements else 0
    return Case(kernel, size, dtype)


def _warps(elements: int) -> int:
    """Warps for 16 elements per thread, between 1 and 16."""
    return min(max(elements // 512, 1), 16)


def derived(case: Case) -> Config:
    """Registers as far as they reach, 16 elements per thread; not measured."""
    if case.size == 0:
        return Config(4096, 16)
    if case.size <= MOST[case.kernel]:
        # Small groups share a program.
        block = max(case.size, 1024)
        return Config(block, _warps(block))
    return Config(8192 if case.kernel == "forward" else 4096, 16 if case.kernel == "forward" else 8)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    if case.size == 0:
        pairs = [(512, 2), (1024, 4), (2048, 8), (4096, 16)]
        return [Config(block, warps) for block, warps in pairs]
    base = _warps(case.size)
    found = [derived(case)]
    if case.size <= MOST[case.kernel]:
        block = max(case.size, 1024)
        found += [Config(block, warps) for warps in (base // 2, 2 * base) if 1 <= warps <= 16]
        if block <= 2048:
            found += [Config(2 * block, warps) for warps in (base, 2 * base)]
    if case.size >= 2**13:
        loops = [(2048, 4), (4096, 8), (4096, 16), (8192, 16)]
        found += [Config(block, warps) for block, warps in loops if block < case.size]
    return found


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 16 and config.block <= 2**15


table: Table[Case, Config] = Table("group_norm", Config, derived, accepts)
