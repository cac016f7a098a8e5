"""Softmax and log-softmax, along rows and columns, masked, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torchsmith_kernels as tk
from case import Case, Versions, compiled

DTYPE = torch.bfloat16
#: Shape and dimension; the first one is small.
SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((2048, 1024), 1),
    ((262144, 128), 1),
    ((65536, 1024), 1),
    ((16384, 4096), 1),
    ((4096, 16384), 1),
    ((4096, 32768), 1),
    ((64, 262144), 1),
    ((256, 256, 1024), 1),
]
LOG_SHAPES: list[tuple[tuple[int, ...], int]] = [
    ((8192, 8192), 1),
    ((4096, 32000), 1),
    ((2048, 128256), 1),
    ((1024, 262144), 1),
]
#: Batch, heads and length of attention scores.
SCORES = (4, 16, 1024)
WIDEST_OF_LIGER = 65536


def _versions(op: str, dim: int, width: int, last: bool) -> dict[str, Callable[..., Any]]:
    eager = torch.softmax if op == "softmax" else torch.log_softmax
    versions: dict[str, Callable[..., Any]] = {
        "ours": partial(getattr(tk, op), dim=dim),
        "eager": partial(eager, dim=dim),
        "compile": compiled(partial(eager, dim=dim)),
    }
    rows = op == "softmax" and last and width <= WIDEST_OF_LIGER
    if rows and find_spec("liger_kernel") is not None:
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        versions["liger"] = LigerSoftmaxFunction.apply
    return versions


def _masked_versions(mask: torch.Tensor, scale: float) -> dict[str, Callable[..., Any]]:
    def eager(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax((x * scale).masked_fill(~mask, -torch.inf), -1)

    def ours(x: torch.Tensor) -> torch.Tensor:
        return tk.softmax(x, -1, mask=mask, scale=scale)

    return {"ours": ours, "eager": eager, "compile": compiled(eager)}


def _measured(
    functions: dict[str, Callable[..., Any]], shape: tuple[int, ...], direction: str
) -> Versions:
    x = torch.randn(shape, device="cuda", dtype=DTYPE)
    if direction == "forward":
        return {name: partial(function, x) for name, function in functions.items()}
    x.requires_grad_()
    upstream = torch.randn_like(x)

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        y = function(x)
        return lambda: torch.autograd.grad(y, x, upstream, retain_graph=True)

    # Liger's backward writes into its upstream gradient, another operation than the others'.
    kept = {name: function for name, function in functions.items() if name != "liger"}
    return {name: backward(function) for name, function in kept.items()}


def _build(op: str, shape: tuple[int, ...], dim: int, direction: str) -> Versions:
    return _measured(_versions(op, dim, shape[dim], dim == len(shape) - 1), shape, direction)


def _build_masked(direction: str) -> Versions:
    batch, heads, length = SCORES
    mask = torch.rand(batch, 1, length, length, device="cuda") > 0.2
    mask[..., 0] = True
    return _measured(_masked_versions(mask, 0.125), (batch, heads, length, length), direction)


def _bytes(elements: int, direction: str) -> int:
    return elements * DTYPE.itemsize * (2 if direction == "forward" else 3)


def cases() -> list[Case]:
    """All shapes, forward and backward."""
    found = []
    for direction in ("forward", "backward"):
        for op, shapes in (("softmax", SHAPES), ("log_softmax", LOG_SHAPES)):
            for shape, dim in shapes:
                name = " x ".join(map(str, shape)) + (
                    "" if dim == len(shape) - 1 else f", dim {dim}"
                )
                build = partial(_build, op, shape, dim, direction)
                size = _bytes(torch.Size(shape).numel(), direction)
                found.append(Case(op, name, DTYPE, direction, build, size))
        batch, heads, length = SCORES
        name = f"{batch} x {heads} x {length} x {length}, masked"
        size = _bytes(batch * heads * length**2, direction) + batch * length**2
        build = partial(_build_masked, direction)
        found.append(Case("softmax", name, DTYPE, direction, build, size))
    return found
