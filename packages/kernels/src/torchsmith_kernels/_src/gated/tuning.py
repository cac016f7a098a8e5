"""How gated activations are tuned: 64 MiB of bfloat16 a tensor, apart and as halves of one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.gated import reference, run
from torchsmith_kernels._src.gated.reference import Kind
from torchsmith_kernels._src.pointwise.config import Case, Config, candidates
from torchsmith_kernels._src.tables import Table
from torchsmith_kernels._src.tuning import Problem, Tunable


def cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    """Both kernels on both walks."""
    return [
        Case(kernel, dtype, flat)
        for dtype in dtypes
        for kernel in ("forward", "backward")
        for flat in (True, False)
    ]


def tunable(op: str, kind: Kind, table: Table[Case, Config]) -> Tunable:
    """The ``Tunable`` of a gated activation."""

    def problem(case: Case, device: torch.device) -> Problem:
        both = torch.randn(2**13, 2**13, device=device, dtype=case.dtype)
        gate, up = both.chunk(2, -1)
        if case.flat:
            gate, up = gate.contiguous(), up.contiguous()
        if case.kernel == "forward":
            return Problem(
                lambda config: [run.forward(gate, up, kind, table, config)],
                lambda: [reference.forward(gate, up, kind)],
            )
        grad = torch.randn(gate.shape, device=device, dtype=case.dtype)
        return Problem(
            lambda config: run.backward(grad, gate, up, kind, table, config),
            lambda: reference.backward(grad, gate, up, kind),
        )

    return Tunable(op, cases, candidates, problem)
