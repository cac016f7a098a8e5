"""Which kernel a matrix product runs with, and its tile sizes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import LOW_PRECISION, ceil_div, next_power_of_2
from torchsmith_kernels._src.tables import Table

SHARED_MEMORY = 227 * 1024
MULTIPROCESSORS = 132


@dataclass(frozen=True, slots=True)
class Config:
    """The kernel and its tiles.

    Attributes:
        block_m: rows of a tile.
        block_n: columns of a tile.
        block_k: columns of ``input`` read at a time.
        group: tile rows in a band that shares columns of ``other`` in the L2 cache.
        num_warps: warps per program.
        num_stages: loads in flight.
        split: parts that K is cut into; their sums are added in a second kernel.
        persistent: one program per multiprocessor (times ``waves``), tensor descriptors.
        pieces: parts that the persistent kernel's epilogue is cut into.
        flatten: whether the persistent kernel overlaps a tile's epilogue with the next tile.
        specialize: whether loads get warps of their own in the persistent kernel.
        waves: persistent programs per multiprocessor.
        library: cuBLAS computes the product and a kernel the epilogue.
    """

    block_m: int = 128
    block_n: int = 128
    block_k: int = 64
    group: int = 8
    num_warps: int = 8
    num_stages: int = 3
    split: int = 1
    persistent: bool = False
    pieces: int = 1
    flatten: bool = False
    specialize: bool = False
    waves: int = 1
    library: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A class of products.

    Attributes:
        m: rows of the result, rounded up to a power of two within 16 and 8192.
        n: columns, likewise within 16 and 8192.
        k: likewise within 64 and 8192.
        dtype: of both operands.
        layout: ``n`` or ``t`` for each operand, ``t`` where its transpose is contiguous.
        descriptors: whether the tensors' addresses and pitches suit tensor descriptors.
        batched: whether there is more than one product.
    """

    m: int
    n: int
    k: int
    dtype: torch.dtype
    layout: str
    descriptors: bool
    batched: bool = False

    @staticmethod
    def of(
        m: int, n: int, k: int, dtype: torch.dtype, layout: str, descriptors: bool, batched: bool
    ) -> Case:
        """The class of a product of these sizes."""
        return Case(
            min(max(next_power_of_2(m), 16), 8192),
            min(max(next_power_of_2(n), 16), 8192),
            min(max(next_power_of_2(k), 64), 8192),
            dtype,
            layout,
            descriptors,
            batched,
        )

    def key(self) -> str:
        """The case's name in stored tables."""
        name = str(self.dtype).removeprefix("torch.")
        way = "descriptors" if self.descriptors else "pointers"
        batch = "/batched" if self.batched else ""
        return f"{self.m}x{self.n}x{self.k}/{self.layout}/{name}/{way}{batch}"


def _splits(tiles: int, k: int, block_k: int) -> int:
    """Parts of K that fill the chip once without going below four steps each."""
    return max(1, min(MULTIPROCESSORS // tiles, k // (4 * block_k), 16))


def derived(case: Case) -> Config:
    """From the number of tiles alone; not measured."""
    if case.dtype not in LOW_PRECISION:
        # Triton's float32 products are far from cuBLAS's unless rounded to TF32.
        return Config(32, 64, 32, num_warps=4, library=True)
    if case.descriptors and not case.batched:
        if ceil_div(case.m, 128) * ceil_div(case.n, 256) >= MULTIPROCESSORS:
            return Config(
                128, 256, 64, num_warps=8, num_stages=3, persistent=True, pieces=4, flatten=True
            )
        if ceil_div(case.m, 128) * ceil_div(case.n, 128) >= MULTIPROCESSORS // 2:
            return Config(
                128, 128, 64, num_warps=8, num_stages=4, persistent=True, pieces=2, flatten=True
            )
    if case.m <= 64:
        tiles = ceil_div(case.n, 64)
        return Config(
            max(16, case.m), 64, 128, num_warps=4, num_stages=4, split=_splits(tiles, case.k, 128)
        )
    if case.m * case.n >= 128 * 128 * MULTIPROCESSORS:
        return Config(128, 128, 64, num_warps=8, num_stages=3)
    tiles = ceil_div(case.m, 64) * ceil_div(case.n, 64)
    return Config(64, 64, 64, num_warps=4, num_stages=4, split=_splits(tiles, case.k, 64))


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    if case.dtype not in LOW_PRECISION:
        return [
            derived(case),
            Config(64, 64, 16, num_warps=4, num_stages=3),
            Config(128, 64, 16, num_warps=8, num_stages=3),
        ]
    found = [derived(case)]
    if case.m <= 64:
        rows = max(16, case.m)
        found += [
            Config(rows, columns, depth, num_warps=4, num_stages=stages, split=split)
            for columns, depth, stages in ((32, 256, 3), (64, 128, 4), (128, 64, 5))
            for split in (1, 2, 4, 8)
            if case.k >= 2 * split * depth
        ]
    elif case.descriptors and not case.batched:
        found += [
            Config(m, n, 64, group, warps, stages, 1, True, pieces, flatten, False, waves)
            for m, n, group, warps, stages, pieces, flatten, waves in (
                (128, 256, 8, 8, 3, 2, True, 1),
                (128, 256, 8, 8, 3, 4, True, 1),
                (128, 256, 8, 8, 4, 4, True, 1),
                (128, 256, 8, 8, 3, 1, False, 1),
                (128, 128, 8, 4, 3, 2, True, 2),
                (128, 128, 8, 8, 4, 2, True, 1),
            )
            if m <= 2 * case.m and n <= 2 * case.n
        ]
        if ceil_div(case.m, 128) * ceil_div(case.n, 128) < 2 * MULTIPROCESSORS:
            found += [
                Config(m, n, k, 8, 4, stages, 1, True)
                for m, n, k, stages in ((128, 64, 64, 5), (64, 128, 64, 5), (64, 64, 128, 4))
            ]
            found += [Config(64, 64, 64, num_warps=4, num_stages=4, split=s) for s in (1, 4)]
    else:
        found += [
            Config(m, n, k, 8, warps, stages)
            for m, n, k, warps, stages in (
                (128, 128, 64, 8, 3),
                (128, 64, 64, 4, 4),
                (128, 256, 64, 8, 3),
                (64, 128, 64, 4, 4),
                (64, 64, 64, 4, 4),
            )
        ]
    return list(dict.fromkeys(found))


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run a case with a stored configuration."""
    sizes = (config.block_m, config.block_n, config.block_k, config.num_warps)
    if any(n <= 0 or n & (n - 1) for n in sizes) or min(sizes[:3]) < 16:
        return False
    if config.pieces not in (1, 2, 4) or config.split < 1 or config.waves < 1:
        return False
    if config.persistent and (not case.descriptors or case.batched or config.split > 1):
        return False
    if config.library:
        return True
    tile = (config.block_m + config.block_n) * config.block_k * case.dtype.itemsize
    return tile * max(config.num_stages - 1, 1) <= SHARED_MEMORY


table: Table[Case, Config] = Table("matmul", Config, derived, accepts)
