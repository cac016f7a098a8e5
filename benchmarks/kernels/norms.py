"""Norms of rows, alone and after a residual addition, forward and backward."""

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
EPS = 1e-5
SHAPES = [
    (4096, 1024),
    (262144, 128),
    (65536, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 32768),
]
FUSED_SHAPES = [(4096, 1024), (65536, 1024), (16384, 4096), (8192, 8192), (2048, 32768)]


def _versions(op: str, width: int) -> dict[str, Callable[..., Any]]:
    """The op in all versions, as functions of its tensors."""
    mean, added = op.endswith("layer_norm"), op.startswith("add_")

    def ours(*tensors: Any) -> Any:
        inputs, parameters = tensors[: 1 + added], tensors[1 + added :]
        return getattr(tk, op)(*inputs, (width,), *parameters, EPS)

    def eager(*tensors: Any) -> Any:
        inputs, parameters = tensors[: 1 + added], tensors[1 + added :]
        total = inputs[0] + inputs[1] if added else inputs[0]
        normed = (F.layer_norm if mean else F.rms_norm)(total, (width,), *parameters, EPS)
        return (normed, total) if added else normed

    versions = {"ours": ours, "eager": eager, "compile": compiled(eager)}
    if find_spec("liger_kernel") is None:
        return versions
    if op == "rms_norm":
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        versions["liger"] = lambda x, w: LigerRMSNormFunction.apply(x, w, EPS, 0.0, "llama", False)
    elif op == "layer_norm":
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        versions["liger"] = lambda x, w, b: LigerLayerNormFunction.apply(x, w, b, EPS)
    elif op == "add_rms_norm":
        from liger_kernel.ops.fused_add_rms_norm import LigerFusedAddRMSNormFunction

        versions["liger"] = lambda x, r, w: LigerFusedAddRMSNormFunction.apply(
            x, r, w, EPS, 0.0, "llama", False
        )
    return versions


def _build(op: str, rows: int, width: int, direction: str) -> Versions:
    mean, added = op.endswith("layer_norm"), op.startswith("add_")

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=DTYPE)

    tensors = [make(rows, width) for _ in range(1 + added)]
    tensors += [make(width) for _ in range(1 + mean)]
    functions = _versions(op, width)
    if direction == "forward":
        return {name: partial(function, *tensors) for name, function in functions.items()}
    tensors = [tensor.requires_grad_() for tensor in tensors]
    upstream = [make(rows, width) for _ in range(1 + added)]

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        result = function(*tensors)
        results = list(result) if added else [result]
        return lambda: torch.autograd.grad(results, tensors, upstream, retain_graph=True)

    return {name: backward(function) for name, function in functions.items()}


def cases() -> list[Case]:
    """All lines of the table."""
    found = []
    for op in ("rms_norm", "layer_norm", "add_rms_norm", "add_layer_norm"):
        added = op.startswith("add_")
        for direction in ("forward", "backward"):
            streams = 2 + 2 * added if direction == "forward" else 3 + added
            for rows, width in FUSED_SHAPES if added else SHAPES:
                found.append(
                    Case(
                        op=op,
                        shape=f"{rows} x {width}",
                        dtype=DTYPE,
                        direction=direction,
                        build=partial(_build, op, rows, width, direction),
                        bytes=streams * rows * width * DTYPE.itemsize,
                    )
                )
    return found
