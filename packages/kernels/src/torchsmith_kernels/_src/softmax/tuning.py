"""How softmax is tuned: 128 MiB of bfloat16 a tensor, less where the case is about little."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.softmax import reference, run
from torchsmith_kernels._src.softmax.config import LONG, Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

ELEMENTS = 2**26


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    found = []
    for dtype in dtypes:
        for kernel in ("forward", "backward"):
            widths = [2**power for power in range(7, 17)]
            found += [Case(kernel, "rows", width, False, dtype) for width in widths]
            found.append(Case(kernel, "rows", LONG, True, dtype))
            found += [Case(kernel, "columns", width, False, dtype) for width in (64, 256, 4096)]
            found.append(Case(kernel, "columns", 4096, True, dtype))
    return found


def _shape(case: Case) -> tuple[tuple[int, ...], int]:
    """A shape of this case and the dimension to sum over."""
    if case.layout == "rows":
        width = 2 * case.width if case.width == LONG else case.width
        return ((64, 2 * width) if case.few else (ELEMENTS // width, width)), 1
    if case.few:
        return (ELEMENTS // 2048, 2048), 0
    return (ELEMENTS // case.width // 1024, case.width, 1024), 1


def _problem(case: Case, device: torch.device) -> Problem:
    shape, dim = _shape(case)
    dtype = case.dtype
    x = torch.randn(shape, device=device, dtype=dtype)
    if case.kernel == "forward":
        return Problem(
            lambda config: [run.forward(x, dim, dtype, None, 1.0, False, config)],
            lambda: [reference.forward(x, dim)],
        )
    y = torch.softmax(x, dim)
    return Problem(
        lambda config: [run.backward(x, y, dim, dtype, None, 1.0, False, config)],
        lambda: [torch.ops.aten._softmax_backward_data(x, y, dim, dtype)],
    )


tunable = Tunable("softmax", _cases, candidates, _problem)
