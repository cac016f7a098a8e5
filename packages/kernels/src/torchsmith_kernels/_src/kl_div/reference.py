"""The Kullback-Leibler divergence in plain PyTorch; what runs without the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def divisor(reduction: str, like: Tensor) -> float:
    """What the sum over all elements is divided by."""
    if like.numel() == 0:
        return 1.0  # of a sum of nothing
    if reduction == "mean":
        return float(like.numel())
    if reduction == "batchmean" and like.dim() > 0:
        return float(like.shape[0])
    return 1.0


def reduce(loss: Tensor, reduction: str) -> Tensor:
    """The contributions of all elements, reduced."""
    if reduction == "none":
        return loss
    if reduction == "mean":
        return loss.mean()
    if reduction == "batchmean" and loss.dim() > 0:
        return loss.sum() / loss.shape[0]
    return loss.sum()


def upstream(grad_output: Tensor, reduction: str, like: Tensor) -> Tensor:
    """The gradient of each element's contribution."""
    if reduction == "none":
        return grad_output
    return grad_output / divisor(reduction, like)


def forward(input: Tensor, target: Tensor, reduction: str, log_target: bool) -> Tensor:
    """``target * (log(target) - input)``, reduced; ``target`` is a logarithm if ``log_target``."""
    dtype = torch.promote_types(input.dtype, target.dtype)
    x, t = input.to(compute_dtype(dtype)), target.to(compute_dtype(dtype))
    loss = t.exp() * (t - x) if log_target else torch.xlogy(t, t) - t * x
    return reduce(loss, reduction).to(dtype)


def backward(
    grad_output: Tensor, input: Tensor, target: Tensor, reduction: str, log_target: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of ``input`` and ``target``; differentiable itself."""
    compute = compute_dtype(torch.promote_types(input.dtype, target.dtype))
    x, t = input.to(compute), target.to(compute)
    g = upstream(grad_output.to(compute), reduction, input)
    if log_target:
        p = t.exp()
        by_target = g * (p * (t - x) + p)
    else:
        p = t
        by_target = g * (t.log() + t / t - x)
    return (-g * p).to(input.dtype), by_target.to(target.dtype)
