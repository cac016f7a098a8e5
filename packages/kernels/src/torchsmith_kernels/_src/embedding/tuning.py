"""How embedding is tuned: rows of 128 MiB of bfloat16, indices as frequent as words."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.embedding import reference, run
from torchsmith_kernels._src.embedding.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

ROWS = 2**15


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(kernel, width, dtype)
        for dtype in dtypes
        for kernel in ("forward", "backward")
        for width in (64, 256, 1024)
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    width = 4096 if case.width == 1024 else case.width
    count = 2**26 // width
    # Zipf's law: the n-th most frequent index is 1/n as frequent as the first.
    uniform = torch.rand(count, device=device)
    indices = (float(ROWS) ** uniform).long().clamp_(1, ROWS) - 1
    if case.kernel == "forward":
        weight = torch.randn(ROWS, width, device=device, dtype=case.dtype)
        return Problem(
            lambda config: [run.forward(indices, weight, config)],
            lambda: [reference.forward(indices, weight)],
        )
    grad = torch.randn(count, width, device=device, dtype=case.dtype)
    # The first stages have no configuration: compiled here, they run when the others are compiled.
    run.backward(grad, indices, ROWS, -1)
    return Problem(
        lambda config: [run.backward(grad, indices, ROWS, -1, config)],
        lambda: [reference.backward(grad, indices, ROWS, -1)],
    )


tunable = Tunable("embedding", _cases, candidates, _problem)
