"""Tile sizes of the softmax kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from torchsmith_kernels._src.sizes import next_power_of_2
from torchsmith_kernels._src.tables import Table

LONG = 65536  # width class of all longer lines


@dataclass(frozen=True, slots=True)
class Config:
    """How lines are divided.

    Attributes:
        lines: lines per program.
        block: elements of each line held at once; the whole line where that is long enough.
        num_warps: warps per program.
        num_stages: how far loops over a line load ahead, through shared memory when above 1.
        registers: the most for each thread, so that more programs fit; 0 if the compiler decides.
        twice: whether a line is read twice even if a block holds it: fewer registers, and the
            second read is from the nearest cache.
    """

    lines: int
    block: int
    num_warps: int
    num_stages: int = 1
    registers: int = 0
    twice: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """What a configuration is chosen by.

    Attributes:
        kernel: ``forward`` or ``backward``.
        layout: ``rows`` or ``columns``.
        width: length of a line, rounded up to a power of two, at most ``LONG``.
        few: whether there are too few lines to fill the chip with one program each.
        dtype: element type of the input.
    """

    kernel: str
    layout: str
    width: int
    few: bool
    dtype: torch.dtype

    def key(self) -> str:
        """The case's name in stored tables, such as ``forward/rows/4096/bfloat16``."""
        width = "long" if self.width >= LONG else str(self.width)
        few = "few/" if self.few else ""
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.kernel}/{self.layout}/{few}{width}/{dtype}"


def whole_limit(case: Case) -> int:
    """Longest row that is kept in registers; backward keeps two."""
    return 16384 if case.kernel == "forward" else 8192


def derived(case: Case) -> Config:
    """From the sizes alone, not measured.

    A thread holds 16 elements, or 32 of rows too long for that. Columns are read 128 bytes wide,
    down to the 32 bytes of a memory sector where that keeps whole columns in registers.
    """
    block = next_power_of_2(case.width)
    if case.layout == "rows":
        if case.few or block > whole_limit(case):
            return Config(1, 8192, 16 if case.kernel == "forward" else 32)
        lines = max(1, 2048 // block)
        return Config(lines, block, min(16, max(1, lines * block // 512)))
    tile = 8192 if case.kernel == "forward" else 4096
    widest = 128 // case.dtype.itemsize
    if case.few or block * (widest // 4) > tile:
        return Config(widest, 2048 // widest, 4)
    lines = min(widest, tile // block)
    return Config(lines, block, min(8, max(1, lines * block // 512)))


def _whole_rows(kernel: str, width: int) -> list[Config]:
    """Rows kept in registers, of which there are 64 for each of 1024 threads."""
    found = []
    for size in (8, 16, 32, 64):  # elements per thread; backward keeps two tensors
        for warps in (1, 2, 4, 8, 16, 32):
            lines, rest = divmod(size * 32 * warps, width)
            fits = size * (1 if kernel == "forward" else 2) <= (32 if warps == 32 else 64)
            enough = lines * width >= 1024 and (warps <= 8 or lines == 1)
            if not rest and fits and enough and (lines == 1 or lines * width <= 2048):
                found.append(Config(lines, width, warps))
    return found


def candidates(case: Case) -> list[Config]:
    """What ``tune()`` tries."""
    base = derived(case)
    width = next_power_of_2(case.width)
    found = [base]
    if case.layout == "columns":
        tiles = [(64, 32), (64, 64), (128, 32), (128, 64), (256, 16), (256, 32)]
        if not case.few and width <= 256:
            tiles = [(lines, width) for lines in (16, 32, 64, 128, 256)] + tiles[1:]
        for lines, block in tiles:
            for warps in (2, 4, 8, 16):
                held = lines * block // (32 * warps)
                if block <= width and held in ((32,) if case.kernel == "backward" else (32, 64)):
                    found.append(Config(lines, block, warps))
        return list(dict.fromkeys(found))
    if not case.few:
        found += _whole_rows(case.kernel, width)
    long = case.few or width >= 16384
    if case.kernel == "backward" and not long and width >= 1024:
        found += [Config(1, width, width // size, 1, 0, True) for size in (256, 512)]
    if long:
        for block, warps, registers in (
            (4096, 16, 32),
            (8192, 16, 0),
            (8192, 32, 32),
            (16384, 32, 32),
            (16384, 32, 0),
            (32768, 32, 0),
        ):
            fits = case.kernel == "forward" or block * (1 + registers // 32) <= 16384
            if fits and block < width and (block >= 8192 or width <= 32768):
                found.append(Config(1, block, warps, 1, registers))
    return list(dict.fromkeys(found))


def accepts(case: Case, config: Config) -> bool:
    """Whether the kernels run with a stored configuration."""
    sizes = (config.lines, config.block, config.num_warps)
    powers = all(n > 0 and n & (n - 1) == 0 for n in sizes)
    limited = config.registers == 0 or 16 <= config.registers <= 255
    # More elements of two tensors than this do not fit into registers.
    limited &= case.kernel == "forward" or config.lines * config.block <= 16384
    return powers and limited and config.num_warps <= 32 and 1 <= config.num_stages <= 8


table: Table[Case, Config] = Table("softmax", Config, derived, accepts)
