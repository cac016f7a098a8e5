"""Row normalization in plain PyTorch: the meaning of the kernels, and what runs without them.

Low precision is computed in float32 and rounded once at the end, as eager does. With ``mean`` this
is layer norm, without RMS norm.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def default_eps(dtype: torch.dtype) -> float:
    """The ``eps`` of RMS norm that stands for None, as in eager."""
    return torch.finfo(compute_dtype(dtype)).eps


def add(input: Tensor, residual: Tensor | None) -> Tensor:
    """The residual addition, rounded to ``input``'s dtype; contiguous."""
    return input if residual is None else (input + residual).contiguous()


def _statistics(x: Tensor, dims: list[int], eps: float, mean: bool) -> tuple[Tensor, Tensor]:
    """``x``, centred if ``mean``, and its reciprocal deviation."""
    if mean:
        x = x - x.mean(dims, keepdim=True)
    return x, torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + eps)


def forward(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mean: bool,
) -> Tensor:
    """``(x - mean(x)) * rsqrt(mean((x - mean(x)) ** 2) + eps) * weight + bias``, contiguous."""
    dims = list(range(-len(normalized_shape), 0))
    x, rstd = _statistics(input.to(compute_dtype(input.dtype)), dims, eps, mean)
    result = x * rstd
    if weight is not None:
        result = result * weight.to(result.dtype)
    if bias is not None:
        result = result + bias.to(result.dtype)
    return result.to(input.dtype).contiguous()


def backward(
    grad_output: Tensor,
    grad_sum: Tensor | None,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    mean: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of ``input``, ``weight`` and ``bias``; differentiable itself.

    Args:
        grad_output: gradient of the normalized result, of ``input``'s shape.
        grad_sum: gradient of ``input`` from elsewhere, to be added.
        input: what was normalized.
        normalized_shape: as given to ``forward``.
        weight: as given to ``forward``.
        bias: as given to ``forward``.
        eps: as given to ``forward``.
        mean: as given to ``forward``.

    Returns:
        ``(grad_input, grad_weight, grad_bias)`` in the dtypes of the inputs; None where there is
        no such input.
    """
    dims = list(range(-len(normalized_shape), 0))
    rows = list(range(input.dim() - len(normalized_shape)))
    x, rstd = _statistics(input.to(compute_dtype(input.dtype)), dims, eps, mean)
    grad = grad_output.to(x.dtype)
    scaled = grad if weight is None else grad * weight.to(x.dtype)
    dot = (scaled * x).mean(dims, keepdim=True)
    grad_input = scaled - x * (rstd * rstd * dot)
    if mean:
        grad_input = grad_input - scaled.mean(dims, keepdim=True)
    grad_input = rstd * grad_input
    if grad_sum is not None:
        grad_input = grad_input + grad_sum.to(x.dtype)
    grad_weight = grad_bias = None
    if weight is not None:
        product = grad * x * rstd
        grad_weight = (product.sum(rows) if rows else product).to(weight.dtype).contiguous()
    if bias is not None:
        grad_bias = (grad.sum(rows) if rows else grad).to(bias.dtype).contiguous()
    return grad_input.to(input.dtype).contiguous(), grad_weight, grad_bias
