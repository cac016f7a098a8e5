"""Reads where other tensors say, under every schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loop_reader import read_kernel
from samples import REDUCTION_CONFIGS, check
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule

ROWS = """
@kernel(ranges=(19, 5), reduce_from={from_}, args=("int64 read", "float32 read", "float32 written"), symbols=())
def _(a0, a1, a2, i0, i1):
    v0 = load(a0, i0)
    v1 = position(v0, 7, {how})
    v2 = load(a1, 5 * at(v1) + i1)
    {end}
"""  # noqa: E501
MASKED = """
@kernel(ranges=(19,), reduce_from=1, args=("int64 read", "float32 read", "float32 written"), symbols=("s0",))
def _(a0, a1, a2, i0):
    v0 = index(i0)
    v1 = literal(12, 'int64')
    v2 = lt(v0, v1)
    v3 = load(a0, i0, mask=v2)
    v4 = position(v3, s0, 'IndexError', 'index {index} of {size}', mask=v2)
    v5 = load(a1, at(v4), mask=v2)
    store(a2, i0, v5)
"""  # noqa: E501
FAULT = "'IndexError', 'index out of range in self'"


def tensors(low: int, high: int, size: int) -> list[torch.Tensor]:
    return [torch.arange(19) % (high - low) + low, torch.randn(35), torch.zeros(size)]


@pytest.mark.parametrize(
    ("how", "low", "high"), [(FAULT, 0, 7), (f"{FAULT}, wrap=True", -7, 7), ("", -3, 12)]
)
def test_rows_that_are_looked_up(how: str, low: int, high: int, tmp_path: Path) -> None:
    text = ROWS.format(from_=2, how=how, end="store(a2, 5 * i0 + i1, v2)")
    for config in (Config(Schedule.POINTWISE, 32), Config(Schedule.TILE, 16, 16)):
        check(read_kernel(text), tensors(low, high, 95), tmp_path, config=config, exact=True)


@pytest.mark.parametrize("schedule", REDUCTION_CONFIGS)
def test_reductions_over_rows_that_are_looked_up(schedule: str, tmp_path: Path) -> None:
    text = ROWS.format(from_=1, how=FAULT, end="v3 = reduce_sum(v2)\n    store(a2, i0, v3)")
    config = REDUCTION_CONFIGS[schedule]
    check(read_kernel(text), tensors(0, 7, 19), tmp_path, config=config)


def test_masked_positions(tmp_path: Path) -> None:
    given = tensors(0, 7, 19)
    given[0][12:] = 99
    check(read_kernel(MASKED), given, tmp_path, symbols={"s0": 35}, exact=True)


SCATTER = """
@kernel(ranges=({sizes}), reduce_from=3, args=("int64 read", "{dtype} read", "{dtype} written"), symbols={symbols})
def _(a0, a1, a2, i0, i1, i2):
    v0 = load(a0, {read})
    v1 = position(v0, 6, 'IndexError', 'index')
    v2 = load(a1, 20 * i0 + 5 * i1 + i2)
    store(a2, {place}, v2, {mode!r})
"""  # noqa: E501
PLACES = {
    "rows": ("4 * i0 + i1", "5 * at(v1) + i2"),
    "rows of batches": ("4 * i0 + i1", "30 * i0 + 5 * at(v1) + i2"),
    "columns": ("20 * i0 + 5 * i1 + i2", "24 * i0 + 6 * i1 + at(v1)"),
    "all": ("20 * i0 + 5 * i1 + i2", "at(v1)"),
}


@pytest.mark.parametrize(
    ("mode", "place", "dtype"),
    [
        *((mode, "rows", "float32") for mode in ("last", "add", "mul", "max", "min")),
        *(("add", place, "float32") for place in PLACES),
        *((mode, "all", dtype) for dtype in ("int32", "bfloat16") for mode in ("add", "max")),
        ("add", "columns", "bool"),
    ],
)
def test_points_that_meet(mode: str, place: str, dtype: str, tmp_path: Path) -> None:
    read, where = PLACES[place]
    for sizes, symbols in (("3, 4, 5", ()), ("s0, 4, s1", ("s0", "s1"))):
        text = SCATTER.format(
            sizes=sizes, dtype=dtype, symbols=symbols, read=read, place=where, mode=mode
        )
        values = (torch.arange(60) % 5 - 2).to(getattr(torch, dtype))
        given = [torch.arange(60) * 7 % 6, values, torch.ones(90, dtype=values.dtype)]
        known = dict(zip(symbols, (3, 5)))
        check(read_kernel(text), given, tmp_path, symbols=known, exact=True)
