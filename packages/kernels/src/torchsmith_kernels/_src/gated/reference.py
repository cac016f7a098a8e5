"""Gated activations in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from torchsmith_kernels._src.sizes import compute_dtype

Kind = Literal["silu", "gelu", "gelu_tanh"]


def activation(x: Tensor, kind: Kind) -> Tensor:
    """The activation itself."""
    if kind == "silu":
        return F.silu(x)
    return F.gelu(x, approximate="none" if kind == "gelu" else "tanh")


def derivative(x: Tensor, kind: Kind) -> Tensor:
    """Its derivative, of operations that can be differentiated again."""
    if kind == "silu":
        s = x.sigmoid()
        return s * (1 + x * (1 - s))
    if kind == "gelu":
        below = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
        return below + x * torch.exp(-0.5 * x * x) * math.sqrt(0.5 / math.pi)
    c = math.sqrt(8 / math.pi)
    u = c * x * (1 + 0.044715 * x * x)
    s = u.sigmoid()
    return s + x * s * (-u).sigmoid() * (c * (1 + 3 * 0.044715 * x * x))


def forward(gate: Tensor, up: Tensor, kind: Kind) -> Tensor:
    """``activation(gate) * up``, rounded once."""
    compute = compute_dtype(gate.dtype)
    return (activation(gate.to(compute), kind) * up.to(compute)).to(gate.dtype)


def backward(grad_output: Tensor, gate: Tensor, up: Tensor, kind: Kind) -> tuple[Tensor, Tensor]:
    """Gradients of ``gate`` and ``up``; differentiable themselves."""
    compute = compute_dtype(gate.dtype)
    dy, g, u = grad_output.to(compute), gate.to(compute), up.to(compute)
    dgate = dy * u * derivative(g, kind)
    dup = dy * activation(g, kind)
    return dgate.to(gate.dtype), dup.to(up.dtype)
