"""RMS normalization in plain PyTorch: the meaning of the kernels, and what runs without them.

The formulas are those of ``torch.nn.functional.rms_norm``: low precision is computed in float32 and
rounded once at the end, and a missing ``eps`` is the epsilon of the type that is computed in.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LOW_PRECISION = (torch.float16, torch.bfloat16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type that a norm of ``dtype`` is computed in."""
    return torch.float32 if dtype in LOW_PRECISION else dtype


def default_eps(dtype: torch.dtype) -> float:
    """The ``eps`` that stands for None, as in eager."""
    return torch.finfo(compute_dtype(dtype)).eps


def _dims(normalized_shape: Sequence[int]) -> list[int]:
    return list(range(-len(normalized_shape), 0))


def forward(
    input: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, eps: float
) -> Tensor:
    """``input * rsqrt(mean(input ** 2) + eps) * weight``, contiguous, in ``input``'s dtype."""
    x = input.to(compute_dtype(input.dtype))
    result = x * torch.rsqrt(x.pow(2).mean(_dims(normalized_shape), keepdim=True) + eps)
    if weight is not None:
        result = result * weight.to(result.dtype)
    return result.to(input.dtype).contiguous()


def backward(
    grad_output: Tensor,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    eps: float,
) -> tuple[Tensor, Tensor | None]:
    """Gradients of ``input`` and ``weight``; differentiable itself.

    Args:
        grad_output: gradient of the result, of ``input``'s shape.
        input: as given to ``forward``.
        normalized_shape: as given to ``forward``.
        weight: as given to ``forward``.
        eps: as given to ``forward``.

    Returns:
        ``(grad_input, grad_weight)`` in the dtypes of ``input`` and ``weight``.
    """
    dims = _dims(normalized_shape)
    x = input.to(compute_dtype(input.dtype))
    grad = grad_output.to(x.dtype)
    rstd = torch.rsqrt(x.pow(2).mean(dims, keepdim=True) + eps)
    scaled = grad if weight is None else grad * weight.to(x.dtype)
    dot = (scaled * x).mean(dims, keepdim=True)
    grad_input = rstd * (scaled - x * (rstd * rstd * dot))
    grad_weight = None
    if weight is not None:
        rows = list(range(input.dim() - len(normalized_shape)))
        product = grad * x * rstd
        total = product.sum(rows) if rows else product
        grad_weight = total.to(weight.dtype).contiguous()
    return grad_input.to(input.dtype).contiguous(), grad_weight
