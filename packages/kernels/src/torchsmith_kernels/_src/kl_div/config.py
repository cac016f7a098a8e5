"""Tile sizes of the divergence kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.tables import Table


@dataclass(frozen=True, slots=True)
class Config:
    """How elements are divided.

    Attributes:
        block: elements handled at once by a program.
        num_warps: warps per program.
        programs: programs per multiprocessor, in kernels that add up.
        num_stages: how far these load ahead, through shared memory when above 1.
    """

    block: int
    num_warps: int
    programs: int = 4
    num_stages: int = 1


@dataclass(frozen=True, slots=True)
class Case:
    """What a configuration is chosen by.

    Attributes:
        kernel: ``sum``, ``each`` or ``backward``.
        divergence: ``kl`` or ``js``.
        dtype: element type of the input.
    """

    kernel: str
    divergence: str
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables, such as ``kl/sum/bfloat16``."""
        return f"{self.divergence}/{self.kernel}/{str(self.dtype).removeprefix('torch.')}"


def derived(case: Case) -> Config:
    """16 bytes a thread and access, two accesses a thread; not measured."""
    return Config(8192 // case.dtype.itemsize, 8)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    base = derived(case)
    if case.kernel != "sum":
        shapes = [(1024, 4), (2048, 4), (4096, 4), (2048, 8), (4096, 8), (8192, 8)]
        return list(dict.fromkeys([base, *(Config(*shape) for shape in shapes)]))
    found = [base]
    for block, warps, programs, stages in (
        (2048, 4, 8, 1),
        (8192, 16, 2, 1),
        (4096, 8, 4, 2),
        (4096, 8, 4, 3),
        (4096, 8, 4, 4),
        (2048, 4, 8, 3),
        (4096, 16, 2, 4),
        (8192, 16, 2, 3),
    ):
        found.append(Config(block, warps, programs, stages))
    return list(dict.fromkeys(found))


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    powers = all(n > 0 and n & (n - 1) == 0 for n in (config.block, config.num_warps))
    return powers and config.num_warps <= 32 and 1 <= config.programs <= 32


table: Table[Case, Config] = Table("kl_div", Config, derived, accepts)
