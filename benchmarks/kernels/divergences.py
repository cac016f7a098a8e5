"""Kullback-Leibler and Jensen-Shannon divergence of logarithms of distributions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from case import Case, Versions, compiled

DTYPE = torch.bfloat16
#: Rows and vocabulary; the first one is small.
SHAPES = [(64, 32000), (4096, 32000), (2048, 65536), (2048, 128256), (1024, 262144)]


def _js(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    mean = (0.5 * (t.exp() + x.exp())).log()
    return 0.5 * (t.exp() * (t - mean) + x.exp() * (x - mean)).sum() / x.shape[0]


def _versions(op: str, direction: str) -> dict[str, Callable[..., Any]]:
    if op == "kl_div":
        ours = partial(tk.kl_div, reduction="batchmean", log_target=True)
        eager: Callable[..., Any] = partial(F.kl_div, reduction="batchmean", log_target=True)
    else:
        ours, eager = tk.js_div, _js
    versions: dict[str, Callable[..., Any]] = {
        "ours": ours,
        "eager": eager,
        "compile": compiled(eager),
    }
    if find_spec("liger_kernel") is None:
        return versions
    if op == "kl_div":
        from liger_kernel.ops.kl_div import LigerKLDivLossFunction

        versions["liger"] = lambda x, t: LigerKLDivLossFunction.apply(x, t, "batchmean", True)
    elif direction == "both":
        # It computes the gradient in its forward pass.
        from liger_kernel.ops.jsd import LigerJSDFunction

        versions["liger"] = lambda x, t: LigerJSDFunction.apply(x, t, None, 0.5, -100)
    return versions


def _build(op: str, rows: int, width: int, direction: str) -> Versions:
    x, t = (torch.randn(rows, width, device="cuda").log_softmax(-1).to(DTYPE) for _ in range(2))
    functions = _versions(op, direction)
    if direction == "forward":
        return {name: partial(function, x, t) for name, function in functions.items()}
    x.requires_grad_()

    def both(function: Callable[..., Any]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(x, t), x)

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        loss = function(x, t)
        return lambda: torch.autograd.grad(loss, x, retain_graph=True)

    measured = both if direction == "both" else backward
    return {name: measured(function) for name, function in functions.items()}


def _tensors(op: str, direction: str) -> int:
    """Tensors read or written: KL's gradient does not depend on its input."""
    backward = 2 if op == "kl_div" else 3
    return {"forward": 2, "backward": backward, "both": 2 + backward}[direction]


def cases() -> list[Case]:
    """All shapes, forward and backward; JS in one as well, for the peer that only has that."""
    found = []
    for op, directions in (
        ("kl_div", ("forward", "backward")),
        ("js_div", ("forward", "backward", "both")),
    ):
        for direction in directions:
            for rows, width in SHAPES:
                build = partial(_build, op, rows, width, direction)
                size = rows * width * DTYPE.itemsize * _tensors(op, direction)
                found.append(Case(op, f"{rows} x {width}", DTYPE, direction, build, size))
    return found
