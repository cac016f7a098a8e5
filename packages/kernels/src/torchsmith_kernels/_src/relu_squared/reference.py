"""Squared ReLU in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def forward(input: Tensor) -> Tensor:
    """``max(input, 0) ** 2``, rounded once."""
    x = input.to(compute_dtype(input.dtype)).relu()
    return (x * x).to(input.dtype)


def backward(grad_output: Tensor, input: Tensor) -> Tensor:
    """``grad_output * 2 * max(input, 0)``; differentiable itself."""
    compute = compute_dtype(input.dtype)
    return (grad_output.to(compute) * (2 * input.to(compute).relu())).to(input.dtype)
