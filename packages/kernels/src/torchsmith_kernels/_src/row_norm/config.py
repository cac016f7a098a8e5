"""Tile sizes of the row normalization kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table

FORWARD_LIMIT = 8192  # columns of the widest row that the forward kernel keeps in registers
BACKWARD_LIMIT = 16384  # bytes of a row, or of a part of one, that a backward program keeps
MOST_PARTS = 2  # of a row in the backward kernel; rows with more get a pass of their own for sums
NARROWEST = 16


@dataclass(frozen=True, slots=True)
class Config:
    """Tile sizes of one kernel.

    Attributes:
        block_m: rows per step.
        block_n: columns per step. In forward, less than the width means that rows are walked in
            steps; in backward, that several programs share a row.
        num_warps: warps per program.
        stages: depth of software pipelining over steps of rows.
        programs_per_sm: persistent programs per multiprocessor; 0 (forward only) stands for one
            program per step.
    """

    block_m: int
    block_n: int
    num_warps: int
    stages: int = 1
    programs_per_sm: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """What a configuration is chosen by. Compared by identity, see ``choose``.

    Attributes:
        kernel: ``forward`` or ``backward``.
        width: the power of two that a row fits.
        dtype: that of the rows.
        op: public name of the op.
    """

    kernel: str
    width: int
    dtype: torch.dtype
    op: str = "rms_norm"

    def key(self) -> str:
        """The case's name in stored tables."""
        return f"{self.kernel}/{self.width}/{str(self.dtype).removeprefix('torch.')}"


def width_class(width: int) -> int:
    """``Case.width`` for a row's width."""
    return max(NARROWEST, next_power_of_2(width))


def derived(case: Case) -> Config:
    """What follows from the sizes alone; not measured.

    Forward takes one tile of 16 to 32 elements a thread per program, and more programs at a time
    than there are multiprocessors hide its latency. Backward is persistent, since fewer programs
    mean fewer partial sums, and prefetches two steps.
    """
    width = case.width
    if case.kernel == "forward":
        if width > FORWARD_LIMIT:
            return Config(1, 8192, 16)
        tile = max(width, 2048)
        return Config(tile // width, width, 2 if width < 2048 else 4 if width == 2048 else 8)
    size = width * case.dtype.itemsize
    if size > MOST_PARTS * BACKWARD_LIMIT:
        return Config(2, 1024, 4, 3, 4)
    if size > BACKWARD_LIMIT:
        return Config(1, width // MOST_PARTS, 8, 3, 1)
    tile = max(width, 2048)
    warps = 2 if width < 2048 else min(8, tile // 512)
    return Config(tile // width, width, warps, 3, 8192 // tile)


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries: the derived configuration first, then its neighbours."""
    base = derived(case)
    width, size = case.width, case.width * case.dtype.itemsize
    found = [base]
    if case.kernel == "forward":
        if width > FORWARD_LIMIT:
            found += [Config(1, 4096, 8), Config(1, 4096, 16), Config(1, 16384, 32)]
        elif width > 1024:
            found += [Config(1, width, base.num_warps // 2), Config(2, width, base.num_warps)]
            found += [Config(1, width // 2, 4), Config(1, width // 2, 8)]
        else:
            found += [replace(base, num_warps=4), replace(base, num_warps=1)]
            found += [Config(4096 // width, width, 4), Config(8192 // width, width, 16)]
    elif size > BACKWARD_LIMIT:
        found += [Config(2, 1024, 4, 3, 4), Config(2, 2048, 8, 3, 2), Config(4, 512, 4, 3, 4)]
        if size == MOST_PARTS * BACKWARD_LIMIT and case.op == "rms_norm":
            found.append(Config(1, width, 16, 3, 1))
    else:
        found += [replace(base, stages=4), replace(base, num_warps=base.num_warps * 2)]
        if width in (2048, 4096):
            found.append(replace(base, num_warps=base.num_warps // 2))
        if width < 2048:
            found.append(replace(base, num_warps=4, programs_per_sm=3))
            found.append(Config(4096 // width, width, 4, 3, 2))
    return list(dict.fromkeys(found))


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run ``case`` with a stored configuration."""
    powers = (config.block_m, config.block_n, config.num_warps)
    if not all(n > 0 and n & (n - 1) == 0 for n in powers):
        return False
    if config.num_warps > 32 or config.block_n < NARROWEST or not 1 <= config.stages <= 8:
        return False
    if case.kernel == "forward":
        looped = config.block_n < case.width
        return config.programs_per_sm >= 0 and (config.block_m == 1 or not looped)
    return config.programs_per_sm >= 1


def _table(op: str) -> Table[Case, Config]:
    return Table(op, Config, derived, accepts)


OPS = ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm")
_tables = {op: _table(op) for op in OPS}


@cache
def _case(kernel: str, width: int, dtype: torch.dtype, op: str) -> Case:
    return Case(kernel, width_class(width), dtype, op)


def choose(kernel: str, width: int, dtype: torch.dtype, op: str, capability: int) -> Config:
    """The configuration for rows of ``width`` from the table of ``op``.

    A case is one object here, so that a call hashes an address and not the fields.
    """
    return _tables[op].choose(_case(kernel, width, dtype, op), capability)
