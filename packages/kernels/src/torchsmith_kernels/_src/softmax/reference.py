"""Softmax in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def forward(
    input: Tensor,
    dim: int,
    dtype: torch.dtype | None = None,
    mask: Tensor | None = None,
    scale: float = 1.0,
    log: bool = False,
) -> Tensor:
    """``softmax(input * scale + mask)`` along ``dim``, its logarithm with ``log``."""
    function = torch.log_softmax if log else torch.softmax
    if mask is None and scale == 1.0:
        return function(input, dim, dtype)
    result = dtype or input.dtype
    compute = compute_dtype(result)
    value = input.to(result).to(compute) * scale
    if mask is not None and mask.dtype is torch.bool:
        value = value.masked_fill(~mask, float("-inf"))
    elif mask is not None:
        value = value + mask.to(compute)
    return function(value, dim).to(result)


def backward(
    grad_output: Tensor,
    output: Tensor,
    dim: int,
    dtype: torch.dtype,
    mask: Tensor | None = None,
    scale: float = 1.0,
    log: bool = False,
) -> Tensor:
    """The gradient of the input, of type ``dtype``; differentiable itself.

    Args:
        grad_output: gradient of the output.
        output: what ``forward`` returned.
        dim: the dimension.
        dtype: element type of the input.
        mask: the boolean mask; one that was added has no part in this.
        scale: the factor.
        log: whether ``output`` is a logarithm.
    """
    compute = compute_dtype(output.dtype)
    upstream, result = grad_output.to(compute), output.to(compute)
    if log:
        value = upstream - result.exp() * upstream.sum(dim, keepdim=True)
    else:
        value = result * (upstream - (upstream * result).sum(dim, keepdim=True))
    if mask is not None and mask.dtype is torch.bool:
        value = value.masked_fill(~mask, 0.0)
    return (value * scale).to(dtype)
