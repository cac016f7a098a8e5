"""How matrix products are tuned: square ones, and the layers of language models, with GELU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.matmul import reference, run
from torchsmith_kernels._src.matmul.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

SHAPES = (
    *((m, n, k) for m in (16, 64, 256) for n, k in ((4096, 4096), (8192, 8192))),
    *((m, 4096, 4096) for m in (512, 1024, 2048)),
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (2048, 8192, 2048),
    (4096, 4096, 4096),
    (8192, 4096, 4096),
    (8192, 8192, 4096),
    (8192, 4096, 8192),
    (8192, 8192, 8192),
)


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(m, n, k, dtype, layout, dtype.itemsize == 2)
        for dtype in dtypes
        for m, n, k in SHAPES
        for layout in ("nt", "nn")
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    def make(rows: int, columns: int, transposed: bool) -> torch.Tensor:
        shape = (columns, rows) if transposed else (rows, columns)
        found = torch.randn(shape, device=device, dtype=case.dtype)
        return found.t() if transposed else found

    a = make(case.m, case.k, case.layout[0] == "t")
    b = make(case.k, case.n, case.layout[1] == "t")
    bias = torch.randn(case.n, device=device, dtype=case.dtype)
    activation = "gelu_tanh"
    return Problem(
        lambda config: [run.forward(a, b, bias, activation, config=config)[0]],
        lambda: [reference.activate(torch.addmm(bias, a, b), "gelu_tanh")],
    )


tunable = Tunable("matmul", _cases, candidates, _problem)
