"""Scans: what a block of the row carries into the next, along memory and across it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from loop_reader import read_kernel
from samples import check
from torchsmith_fx_backend._src.codegen.triton.config import Config, Schedule

ROWS = """
@kernel(ranges=({sizes}), reduce_from=1, args=("{dtype} read", "{result} written"), symbols={symbols})
def _(a0, a1, i0, i1):
    v0 = load(a0, {index})
    v1 = scan_{op}(v0)
    store(a1, {index}, v1)
"""  # noqa: E501


@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "argmax", "argmin", "logsumexp"])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_rows_in_blocks(op: str, dtype: str, tmp_path: Path) -> None:
    if op == "logsumexp" and dtype == "int64":
        return
    result = "int64" if op.startswith("arg") else dtype
    values = torch.arange(5 * 19) * 7 % 5 - 2
    given = values.to(getattr(torch, dtype))
    if op in ("max", "argmin") and dtype == "float32":
        given = given.float().index_fill(0, torch.tensor([30, 47]), float("nan"))
    for index, sizes, symbols in (
        ("19 * i0 + i1", "5, 19", ()),
        ("i0 + 5 * i1", "5, s0", ("s0",)),
    ):
        text = ROWS.format(
            sizes=sizes, dtype=dtype, result=result, symbols=symbols, index=index, op=op
        )
        tensors = [given, torch.zeros(95, dtype=getattr(torch, result))]
        known = dict(zip(symbols, (19,)))
        for config in (Config(Schedule.SCAN, 1, r_block=8), Config(Schedule.SCAN, 4, r_block=32)):
            check(read_kernel(text), tensors, tmp_path, symbols=known, config=config)
