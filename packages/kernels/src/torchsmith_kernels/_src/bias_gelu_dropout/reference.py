"""Bias + GELU + dropout in plain PyTorch: what the kernels mean, and what runs without them."""

from __future__ import annotations

from torch import Tensor

from torchsmith_kernels._src.gated.reference import Kind, activation, derivative
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.sizes import compute_dtype


def _factors(input: Tensor, p: float, stream: random.Stream) -> Tensor | float:
    if p == 0:
        return 1.0
    compute = compute_dtype(input.dtype)
    factors = random.factors(input.numel(), p, stream, input.device, compute)
    return factors.view(input.shape)


def forward(input: Tensor, bias: Tensor, p: float, stream: random.Stream, kind: Kind) -> Tensor:
    """``dropout(gelu(input + bias))``, rounded once."""
    compute = compute_dtype(input.dtype)
    value = activation(input.to(compute) + bias.to(compute), kind)
    return (value * _factors(input, p, stream)).to(input.dtype)


def backward(
    grad_output: Tensor, input: Tensor, bias: Tensor, p: float, stream: random.Stream, kind: Kind
) -> tuple[Tensor, Tensor]:
    """Gradients of ``input`` and ``bias``; differentiable themselves."""
    compute = compute_dtype(input.dtype)
    slope = derivative(input.to(compute) + bias.to(compute), kind)
    result = grad_output.to(compute) * slope * _factors(input, p, stream)
    dbias = result.reshape(-1, bias.shape[0]).sum(0) if input.numel() else bias.to(compute) * 0
    return result.to(input.dtype), dbias.to(bias.dtype)
