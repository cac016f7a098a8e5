"""How row normalization is tuned: 128 MiB a tensor, for each power of two that a row may fit."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.row_norm import reference, run
from torchsmith_kernels._src.row_norm.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

WIDTHS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
EPS = 1e-5


def _problem(case: Case, device: torch.device) -> Problem:
    mean, added = case.op.endswith("layer_norm"), case.op.startswith("add_")
    width, shape = case.width, (case.width,)

    def make(*sizes: int) -> torch.Tensor:
        return torch.randn(*sizes, device=device, dtype=case.dtype)

    rows = 2**27 // (width * case.dtype.itemsize)
    x, weight, bias = make(rows, width), make(width), make(width) if mean else None
    other = make(rows, width) if added else None
    if case.kernel == "forward":
        return Problem(
            lambda config: run.forward(case.op, x, other, shape, weight, bias, EPS, mean, config)[
                : 2 if added else 1
            ],
            lambda: _forward_reference(x, other, weight, bias, mean),
        )
    grad = make(rows, width)
    needed = True, True, mean
    arguments = grad, other, x, shape, weight, bias, EPS, mean
    return Problem(
        lambda config: run.backward(case.op, *arguments, *needed, config)[: 3 if mean else 2],
        lambda: [one for one in reference.backward(*arguments) if one is not None],
    )


def _forward_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    mean: bool,
) -> list[torch.Tensor]:
    total = reference.add(x, residual)
    normed = reference.forward(total, weight.shape, weight, bias, EPS, mean)
    return [normed] if residual is None else [normed, total]


def tunable(op: str) -> Tunable:
    """The ``Tunable`` of one of the four ops."""

    def cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
        return [
            Case(kernel, width, dtype, op)
            for dtype in dtypes
            for kernel in ("forward", "backward")
            for width in WIDTHS
        ]

    return Tunable(op, cases, candidates, _problem)
