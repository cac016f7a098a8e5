"""How paged decode attention is tuned: 512 MiB of keys and values in pages of 16 tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.paged_attention import reference, run
from torchsmith_kernels._src.paged_attention.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

PAGE = 16
BATCH = 16
KV_HEADS = 8


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(width, group, dtype)
        for dtype in dtypes
        for width, group in ((64, 16), (128, 16), (128, 64), (256, 16))
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    pages = 2**28 // (PAGE * KV_HEADS * case.width * case.dtype.itemsize)
    shape = (pages, PAGE, KV_HEADS, case.width)
    key = torch.randn(shape, device=device, dtype=case.dtype)
    value = torch.randn(shape, device=device, dtype=case.dtype)
    heads = KV_HEADS * (8 if case.group == 16 else case.group)
    query = torch.randn(BATCH, heads, case.width, device=device, dtype=case.dtype)
    tables = torch.randperm(pages, device=device).view(BATCH, -1).int()
    lengths = torch.full((BATCH,), tables.size(1) * PAGE, device=device, dtype=torch.int32)
    scale = case.width**-0.5
    args = (query, key, value, tables, lengths, scale)
    return Problem(lambda config: [run.forward(*args, config)], lambda: [reference.forward(*args)])


tunable = Tunable("paged_attention", _cases, candidates, _problem)
