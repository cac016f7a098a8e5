"""Group norm in plain PyTorch: the meaning of the kernels, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def _per_channel(vector: Tensor, groups: int, compute: torch.dtype) -> Tensor:
    return vector.to(compute).view(1, groups, -1, 1)


def forward(
    input: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The result, and mean and reciprocal deviation of shape ``[batch, groups]``."""
    compute = compute_dtype(input.dtype)
    shape = (input.shape[0], groups, input.shape[1] // groups, input.shape[2:].numel())
    x = input.to(compute).reshape(shape)
    mean = x.mean((2, 3), keepdim=True)
    centered = x - mean
    rstd = torch.rsqrt(centered.square().mean((2, 3), keepdim=True) + eps)
    y = centered * rstd
    if weight is not None:
        y = y * _per_channel(weight, groups, compute)
    if bias is not None:
        y = y + _per_channel(bias, groups, compute)
    return y.reshape(input.shape).to(input.dtype), mean[:, :, 0, 0], rstd[:, :, 0, 0]


def backward(
    grad_output: Tensor, input: Tensor, weight: Tensor | None, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``input``, and of ``weight`` and ``bias`` in the type of computation."""
    compute = compute_dtype(input.dtype)
    shape = (input.shape[0], groups, input.shape[1] // groups, input.shape[2:].numel())
    x, upstream = (t.to(compute).reshape(shape) for t in (input, grad_output))
    centered = x - x.mean((2, 3), keepdim=True)
    rstd = torch.rsqrt(centered.square().mean((2, 3), keepdim=True) + eps)
    normed = centered * rstd
    grad_weight, grad_bias = ((upstream * normed).sum((0, 3)), upstream.sum((0, 3)))
    if weight is not None:
        upstream = upstream * _per_channel(weight, groups, compute)
    along = (upstream * normed).mean((2, 3), keepdim=True)
    dx = rstd * (upstream - upstream.mean((2, 3), keepdim=True) - normed * along)
    return dx.reshape(input.shape).to(input.dtype), grad_weight.flatten(), grad_bias.flatten()
