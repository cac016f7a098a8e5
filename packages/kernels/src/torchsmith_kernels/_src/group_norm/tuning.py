"""How group norm is tuned: 128 MiB of bfloat16 in groups of one size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsmith_kernels._src.group_norm import reference, run
from torchsmith_kernels._src.group_norm.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

EPS, GROUPS = 1e-5, 32
SIZES = (2**9, 2**11, 2**12, 2**13, 2**14, 2**15, 2**16)
#: Shapes of the steps of several programs per group.
SHARED = {"sums": (1, 128, 512, 512), "apply": (1, 128, 512, 512)}
LAST = {"sums_last": (16, 320, 64, 64), "apply_last": (16, 320, 64, 64)}


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    single = [
        Case(kernel, size, dtype)
        for dtype in dtypes
        for kernel in ("forward", "backward")
        for size in SIZES
    ]
    return single + [Case(kernel, 0, dtype) for dtype in dtypes for kernel in (*SHARED, *LAST)]


def _input(case: Case, device: torch.device) -> Tensor:
    if case.size:
        per_group = 8 if case.size < 2**13 else 16
        batch, pixels = 2**26 // (GROUPS * case.size), case.size // per_group
        return torch.randn(batch, GROUPS * per_group, pixels, device=device, dtype=case.dtype)
    x = torch.randn((SHARED | LAST)[case.kernel], device=device, dtype=case.dtype)
    return x.contiguous(memory_format=torch.channels_last) if case.kernel in LAST else x


def _problem(case: Case, device: torch.device) -> Problem:
    x = _input(case, device)
    weight, bias = (torch.randn(x.shape[1], device=device, dtype=case.dtype) for _ in range(2))
    y, mean, rstd = run.forward(x, GROUPS, weight, bias, EPS)
    if case.kernel != "backward":
        # The two steps are timed together; each case keeps the best of one size for both.
        return Problem(
            lambda config: run.forward(x, GROUPS, weight, bias, EPS, config)[:1],
            lambda: reference.forward(x, GROUPS, weight, bias, EPS)[:1],
        )
    return Problem(
        lambda config: run.backward(y, x, mean, rstd, weight, True, config)[:1],
        lambda: reference.backward(y, x, weight, GROUPS, EPS)[:1],
    )


tunable = Tunable("group_norm", _cases, candidates, _problem)
