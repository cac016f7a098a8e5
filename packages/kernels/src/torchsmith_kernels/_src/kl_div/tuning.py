"""How the divergences are tuned: 256 MiB of bfloat16 a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchsmith_kernels._src.js_div import reference as js_reference
from torchsmith_kernels._src.kl_div import reference, run
from torchsmith_kernels._src.kl_div.config import Case, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

SHAPE = (2048, 65536)


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(kernel, divergence, dtype)
        for dtype in dtypes
        for divergence in ("kl", "js")
        for kernel in ("sum", "each", "backward")
    ]


def _problem(case: Case, device: torch.device) -> Problem:
    x, t = (torch.randn(SHAPE, device=device).log_softmax(-1).to(case.dtype) for _ in range(2))
    js = case.divergence == "js"
    divergence = run.mixture(0.5) if js else run.LOGARITHMS
    if case.kernel == "backward":
        one = torch.ones((), device=device, dtype=case.dtype)
        needed = (True, js)
        return Problem(
            lambda config: [
                g
                for g in run.backward(one, x, t, "sum", divergence, needed, config)
                if g is not None
            ],
            lambda: (
                js_reference.backward(one, x, t, 0.5, "sum")
                if js
                else reference.backward(one, x, t, "sum", True)[:1]
            ),
        )
    reduction = "none" if case.kernel == "each" else "sum"
    return Problem(
        lambda config: [run.forward(x, t, reduction, divergence, config)],
        lambda: [
            js_reference.forward(x, t, 0.5, reduction)
            if js
            else reference.forward(x, t, reduction, True)
        ],
    )


tunable = Tunable("kl_div", _cases, candidates, _problem)
