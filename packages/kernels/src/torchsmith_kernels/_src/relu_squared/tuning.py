"""How squared ReLU is tuned: 128 MiB of bfloat16 a tensor, dense and as rows at a distance."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.pointwise.config import Case, candidates
from torchsmith_kernels._src.relu_squared import reference, run
from torchsmith_kernels._src.tuning import Problem, Tunable


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(kernel, dtype, flat)
        for dtype in dtypes
        for kernel in ("forward", "backward")
        for flat in (True, False)
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    x = torch.randn(2**13, 2**14, device=device, dtype=case.dtype)[:, : 2**13]
    if case.flat:
        x = x.contiguous()
    if case.kernel == "forward":
        return Problem(
            lambda config: [run.forward(x, config)],
            lambda: [reference.forward(x)],
        )
    grad = torch.randn(x.shape, device=device, dtype=case.dtype)
    return Problem(
        lambda config: [run.backward(grad, x, config)],
        lambda: [reference.backward(grad, x)],
    )


tunable = Tunable("relu_squared", _cases, candidates, _problem)
