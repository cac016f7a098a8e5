"""Tile sizes of sums by index: from the sizes alone, not measured."""

from __future__ import annotations

from dataclasses import dataclass

from torchsmith_kernels._src.sizes import next_power_of_2

#: Places per block, and the longest segment that is not summed in pieces. Changes results in their
#: last bit; therefore not tuned.
LENGTH = 128
_ELEMENTS = 1024  # of a tile, per warp: 32 a thread
_WARPS = 2  # few, since programs take as long as their longest segment


@dataclass(frozen=True, slots=True)
class Config:
    """Segments and columns per program, places of a segment that are added at once, warps."""

    rows: int
    entries: int
    columns: int
    num_warps: int = 4


def derived(width: int, count: int, rows: int) -> Config:
    """The tiles for ``count`` rows of ``width`` that are summed to ``rows``.

    A segment of usual length is one step, and a step is of several places in any case, since some
    are longer than usual. Rows that are not loaded by 16 bytes take an address for each element.
    """
    columns = min(next_power_of_2(width), 1024)
    usual = min(max(next_power_of_2(-(-count // rows)), 8), 32)
    elements = _WARPS * _ELEMENTS if width % 8 == 0 else _ELEMENTS // 2
    entries = max(min(usual, elements // columns), 4)
    segments = max(elements // (columns * entries), 1)
    warps = max(segments * entries * columns // _ELEMENTS, _WARPS)
    return Config(segments, entries, columns, warps)


def of_pieces(columns: int) -> Config:
    """The tiles for pieces of ``LENGTH``, each a program's own."""
    return Config(1, max(min(4 * _ELEMENTS // columns, LENGTH), 4), columns)
