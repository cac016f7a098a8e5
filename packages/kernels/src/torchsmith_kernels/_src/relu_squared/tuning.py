"""How squared ReLU is tuned: 128 MiB of bfloat16 a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.relu_squared import reference, run
from torchsmith_kernels._src.relu_squared.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [Case(kernel, dtype) for dtype in dtypes for kernel in ("forward", "backward")]


def _problem(case: Case, device: torch.device) -> Problem:
    x = torch.randn(2**26, device=device, dtype=case.dtype)
    if case.kernel == "forward":
        return Problem(
            lambda config: [run.forward(x, config)],
            lambda: [reference.forward(x)],
        )
    grad = torch.randn_like(x)
    return Problem(
        lambda config: [run.backward(grad, x, config)],
        lambda: [reference.backward(grad, x)],
    )


tunable = Tunable("relu_squared", _cases, candidates, _problem)
