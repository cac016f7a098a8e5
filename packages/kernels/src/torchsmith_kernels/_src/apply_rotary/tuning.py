"""How rotary embedding is tuned: 160 MiB of bfloat16 queries and keys, read and written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.apply_rotary import reference, run
from torchsmith_kernels._src.apply_rotary.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(block, interleaved, dtype)
        for dtype in dtypes
        for block in (32, 64, 128)
        for interleaved in (False, True)
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    dim, length = 2 * case.block, 2**20 // (2 * case.block)
    q, k = (
        torch.randn(2, length, heads, dim, device=device, dtype=case.dtype).transpose(1, 2)
        for heads in (32, 8)
    )
    cos, sin = (
        torch.randn(2, length, case.block, device=device, dtype=case.dtype) for _ in range(2)
    )
    options = (None, dim, case.interleaved, "bhsd", False)
    return Problem(
        lambda config: run.forward(q, k, cos, sin, *options, config),
        lambda: [reference.rotate(x, cos, sin, *options) for x in (q, k)],
    )


tunable = Tunable("apply_rotary", _cases, candidates, _problem)
