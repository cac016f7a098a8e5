"""How cross entropy is tuned: about 512 MiB of logits, or 1024 rows.

``gradient`` is the kernel of the fused linear version.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsmith_kernels._src.cross_entropy import reference, run
from torchsmith_kernels._src.cross_entropy.config import Case, Config, candidates
from torchsmith_kernels._src.tuning import Problem, Tunable

WIDTHS = {1024: 1024, 4096: 4096, 16384: 16384, 65536: 32000, 131072: 128256}
BYTES = 2**29
SETTINGS = (-100, "mean", 0.0, 0.0, None)


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    found = []
    for dtype in dtypes:
        for width in WIDTHS:
            found += [Case("forward", width, dtype), Case("backward", width, dtype)]
            if width >= 65536:
                found += [Case("gradient", width, dtype), Case("forward", width, dtype, True)]
    return found


def _problem(case: Case, device: torch.device) -> Problem:
    width = WIDTHS[case.width]
    rows = 1024 if case.few else BYTES // case.dtype.itemsize // width
    x = torch.randn(rows, width, device=device, dtype=case.dtype)
    target = torch.randint(0, width, (rows,), device=device)
    one = torch.ones((), device=device)

    def forward(config: Config) -> list[Tensor]:
        return [run.forward(x, target, None, *SETTINGS, case.dtype, config)[0]]

    if case.kernel == "forward":
        return Problem(forward, lambda: [reference.forward(x, target)])
    _, saved = run.forward(x, target, None, *SETTINGS, case.dtype)
    if case.kernel == "backward":
        return Problem(
            lambda config: [run.backward(one, x, target, None, saved, *SETTINGS, config)],
            lambda: [reference.backward(one, x, target, None, *SETTINGS)],
        )
    from torchsmith_kernels._src.fused_linear_cross_entropy import run as fused

    settings = fused.Settings(*SETTINGS, None, None, True, True, False)

    def gradient(config: Config) -> list[Tensor]:
        # Runs in place, so later runs see gradients for logits; tests compare its results.
        fused.gradient_chunk(x, target, None, None, saved, 0, rows, settings, config)
        return [x[:0]]

    return Problem(gradient, lambda: [x[:0]])


tunable = Tunable("cross_entropy", _cases, candidates, _problem)
