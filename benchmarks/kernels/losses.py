"""Cross entropy, alone and fused with the output layer before it.

Liger computes the gradient of its cross entropy in forward, in place of the logits: it is compared
where forward and backward are measured together, and in forward without gradients.
"""

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
SHAPES = [(1024, 32000), (65536, 32000), (8192, 50257), (4096, 128256), (1024, 262144)]
HIDDEN = 4096
#: Rows and classes of the fused version.
FUSED_SHAPES = [(rows, classes) for classes in (32000, 128256) for rows in (4096, 16384, 32768)]


def _loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x, target)


def _fused_loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(F.linear(x, weight), target)


def _first(result: Any) -> torch.Tensor:
    """The loss among what a version of Liger returns."""
    loss: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return loss


def _liger_loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return _first(LigerCrossEntropyFunction.apply(x, target, None))


def _liger_fused_loss(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

    return _first(LigerFusedLinearCrossEntropyFunction.apply(x, weight, target))


def _versions(direction: str) -> dict[str, Callable[..., torch.Tensor]]:
    found = {"ours": tk.cross_entropy, "eager": _loss, "compile": compiled(_loss)}
    if direction != "backward" and find_spec("liger_kernel") is not None:
        found["liger"] = _liger_loss
    return found


def _build(rows: int, classes: int, direction: str) -> Versions:
    x = torch.randn(rows, classes, device="cuda", dtype=DTYPE)
    target = torch.randint(0, classes, (rows,), device="cuda")
    functions = _versions(direction)
    if direction == "forward":
        return {name: partial(function, x, target) for name, function in functions.items()}
    x.requires_grad_()

    def backward(function: Callable[..., torch.Tensor]) -> Callable[[], object]:
        loss = function(x, target)
        return lambda: torch.autograd.grad(loss, x, retain_graph=True)

    def both(function: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(x, target), x)

    make = backward if direction == "backward" else both
    return {name: make(function) for name, function in functions.items()}


def _build_fused(rows: int, classes: int) -> Versions:
    x = torch.randn(rows, HIDDEN, device="cuda", dtype=DTYPE, requires_grad=True)
    weight = torch.randn(classes, HIDDEN, device="cuda", dtype=DTYPE).mul_(0.02).requires_grad_()
    target = torch.randint(0, classes, (rows,), device="cuda")

    def both(function: Callable[..., torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(function(x, weight, target), [x, weight])

    functions: dict[str, Callable[..., torch.Tensor]] = {
        "ours": tk.fused_linear_cross_entropy,
        "eager": _fused_loss,
        "compile": compiled(_fused_loss),
    }
    if find_spec("liger_kernel") is not None:
        functions["liger"] = _liger_fused_loss
    return {name: both(function) for name, function in functions.items()}


def cases() -> list[Case]:
    """All lines of the table."""
    found = []
    # Reads of the logits and writes of their gradient.
    for direction, passes in (("forward", 1), ("backward", 2), ("both", 3)):
        for rows, classes in SHAPES:
            found.append(
                Case(
                    op="cross_entropy",
                    shape=f"{rows} x {classes}",
                    dtype=DTYPE,
                    direction=direction,
                    build=partial(_build, rows, classes, direction),
                    bytes=passes * rows * classes * DTYPE.itemsize,
                )
            )
    for rows, classes in FUSED_SHAPES:
        found.append(
            Case(
                op="fused_linear_cross_entropy",
                shape=f"{rows} x {HIDDEN} x {classes}",
                dtype=DTYPE,
                direction="both",
                build=partial(_build_fused, rows, classes),
                # Input, weight and the gradients of both.
                bytes=2 * DTYPE.itemsize * HIDDEN * (rows + classes),
                flops=3 * 2 * rows * HIDDEN * classes,
                memory=True,
            )
        )
    return found
