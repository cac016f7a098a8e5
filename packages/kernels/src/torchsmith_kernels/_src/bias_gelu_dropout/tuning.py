"""How bias + GELU + dropout is tuned: 64 MiB of bfloat16 a tensor, exact GELU."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.bias_gelu_dropout import reference, run
from torchsmith_kernels._src.bias_gelu_dropout.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

STREAM = None, 1, 4


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [Case(kernel, dtype) for dtype in dtypes for kernel in ("forward", "backward")]


def _problem(case: Case, device: torch.device) -> Problem:
    x = torch.randn(2**13, 2**12, device=device, dtype=case.dtype)
    bias = torch.randn(2**12, device=device, dtype=case.dtype)
    if case.kernel == "forward":
        return Problem(
            lambda config: [run.forward(x, bias, 0.1, STREAM, "gelu", config)],
            lambda: [reference.forward(x, bias, 0.1, STREAM, "gelu")],
        )
    grad = torch.randn_like(x)
    return Problem(
        lambda config: run.backward(grad, x, bias, 0.1, STREAM, "gelu", config),
        lambda: reference.backward(grad, x, bias, 0.1, STREAM, "gelu"),
    )


tunable = Tunable("bias_gelu_dropout", _cases, candidates, _problem)
