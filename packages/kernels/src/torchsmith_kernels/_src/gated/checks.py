"""Checks of the arguments of gated activations."""

from __future__ import annotations

from torch import Tensor

from torchsmith_kernels._src import check


def tensors(op: str, gate: Tensor, up: Tensor) -> None:
    """Raises unless ``gate`` and ``up`` are floating point and fit each other."""
    check.dtype(op, "gate", gate, check.FLOATING)
    if up.dtype != gate.dtype:
        check.dtype(op, "up", up, (gate.dtype,))
    check.device(op, "up", up, gate, "gate")
    if up.shape != gate.shape:
        check.shape(op, "up", up, gate.shape, "the shape of `gate`")
