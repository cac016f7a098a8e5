"""How attention is tuned: four sequences of 4096, 2048 elements of heads, bfloat16."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from torchsmith_kernels._src.flash_attention import run_backward, run_forward
from torchsmith_kernels._src.flash_attention.call import Call
from torchsmith_kernels._src.flash_attention.config import Case, candidates, derived
from torchsmith_kernels._src.tuning import Problem, Tunable

LENGTH = 4096


def _cases(dtypes: Sequence[torch.dtype]) -> list[Case]:
    return [
        Case(kernel, dtype, dim, windowed, plain)
        for dtype in dtypes
        for dim in (64, 128, 256)
        for windowed in (False, True)
        for plain in (True, False)
        for kernel in ("forward", "keys", "queries")
        if plain or (windowed and dim < 256)
    ]


def _call(case: Case, device: torch.device) -> Call:
    heads = 2048 // case.block_d
    query, key, value = (
        torch.randn(4, heads, LENGTH, case.block_d, device=device, dtype=case.dtype)
        for _ in range(3)
    )
    slopes = None
    if not case.plain:
        slopes = torch.full((heads,), 0.01, device=device)
    return Call(
        query, key, value, None, slopes, None, None, None, LENGTH, LENGTH, 0.0,
        case.block_d**-0.5, 0.0, None, 0 if case.windowed else None, False, "",
    )  # fmt: skip


def _problem(case: Case, device: torch.device) -> Problem:
    call = _call(case, device)
    grad = torch.randn_like(call.query)
    output, lse = run_forward.forward(call, derived(Case("forward", *_rest(case))))
    mean = run_backward.means(call, grad, None, output, lse)

    def run(config: object) -> Sequence[Tensor]:
        if case.kernel == "forward":
            return run_forward.forward(call, config)[:1]  # type: ignore[arg-type]
        if case.kernel == "keys":
            return run_backward.keys(call, grad, lse, mean, config)  # type: ignore[arg-type]
        return run_backward.queries(call, grad, lse, mean, False, config)[:1]  # type: ignore

    def reference() -> Sequence[Tensor]:
        if not case.plain:
            return run(derived(case))  # the mask alone would not fit the device
        leaves = query, key, value = tuple(t.clone().requires_grad_() for t in call[:3])
        wanted = F.scaled_dot_product_attention(query, key, value, is_causal=case.windowed)
        if case.kernel == "forward":
            return [wanted.detach()]
        grads = torch.autograd.grad(wanted, leaves, grad)
        return grads[1:] if case.kernel == "keys" else grads[:1]

    return Problem(run, reference)


def _rest(case: Case) -> tuple[torch.dtype, int, bool, bool]:
    return case.dtype, case.block_d, case.windowed, case.plain


tunable = Tunable("flash_attention", _cases, candidates, _problem)
