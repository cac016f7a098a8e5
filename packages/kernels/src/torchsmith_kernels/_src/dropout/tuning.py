"""How dropout is tuned: 128 MiB of bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.dropout import reference, run
from torchsmith_kernels._src.pointwise.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

STREAM = None, 1, 4


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [Case("forward", dtype, flat) for dtype in dtypes for flat in (True, False)]


def _problem(case: Case, device: torch.device) -> Problem:
    x = torch.randn(2**13, 2**14, device=device, dtype=case.dtype)
    if not case.flat:
        x = x[:, : 2**13]
    return Problem(
        lambda config: [run.dropout(x, 0.1, STREAM, config)],
        lambda: [reference.dropout(x, 0.1, STREAM)],
    )


tunable = Tunable("dropout", _cases, candidates, _problem)
