"""The Jensen-Shannon divergence in plain PyTorch; what runs without the kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchsmith_kernels._src.kl_div.reference import reduce, upstream
from torchsmith_kernels._src.sizes import compute_dtype


def _times(probability: Tensor, ratio: Tensor) -> Tensor:
    """Their product; what has no probability contributes nothing."""
    return probability * torch.where(probability == 0, 0.0, ratio)


def _ratio(above: Tensor, below: Tensor, weight: float) -> Tensor:
    """``above - log((1 - weight) * exp(above) + weight * exp(below))``, without cancellation.

    A ``below`` that is higher by 80 goes with a probability of nothing.
    """
    return -(weight * (below - above).clamp(max=80).expm1()).log1p()


def _terms(x: Tensor, t: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """``(1 - beta) * q * (x - log(m))`` and ``beta * p * (t - log(m))``.

    Their sum is the divergence, and they are its derivatives by ``x`` and ``t``.
    """
    by_input = (1 - beta) * _times(x.exp(), _ratio(x, t, beta))
    by_target = beta * _times(t.exp(), _ratio(t, x, 1 - beta))
    bad = x.isnan() | t.isnan()
    return by_input.masked_fill(bad, math.nan), by_target.masked_fill(bad, math.nan)


def forward(input: Tensor, target: Tensor, beta: float, reduction: str) -> Tensor:
    """The divergence of ``exp(target)`` and ``exp(input)``, reduced."""
    dtype = torch.promote_types(input.dtype, target.dtype)
    x, t = input.to(compute_dtype(dtype)), target.to(compute_dtype(dtype))
    if beta == 0:
        loss = _times(t.exp(), t - x)
    elif beta == 1:
        loss = _times(x.exp(), x - t)
    else:
        by_input, by_target = _terms(x, t, beta)
        loss = by_input + by_target
    return reduce(loss, reduction).to(dtype)


def backward(
    grad_output: Tensor, input: Tensor, target: Tensor, beta: float, reduction: str
) -> tuple[Tensor, Tensor]:
    """Gradients of ``input`` and ``target``; differentiable itself."""
    compute = compute_dtype(torch.promote_types(input.dtype, target.dtype))
    x, t = input.to(compute), target.to(compute)
    g = upstream(grad_output.to(compute), reduction, input)
    if beta == 0:
        p = t.exp()
        by_input, by_target = -p, _times(p, t - x) + p
    elif beta == 1:
        q = x.exp()
        by_input, by_target = _times(q, x - t) + q, -q
    else:
        by_input, by_target = _terms(x, t, beta)
    return (g * by_input).to(input.dtype), (g * by_target).to(target.dtype)
