"""Fused linear cross entropy in plain PyTorch, with all logits at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchsmith_kernels._src.cross_entropy import reference as cross_entropy
from torchsmith_kernels._src.sizes import compute_dtype


def forward(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Differentiable; ``input`` is ``[rows, hidden]``."""
    logits = F.linear(input, weight, bias)
    settings = (class_weight, ignore_index, reduction, label_smoothing, z_loss, softcap)
    return cross_entropy.forward(logits, target, *settings)


def backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target: Tensor,
    class_weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of ``input``, ``weight`` and a bias; differentiable themselves."""
    logits = F.linear(input, weight, bias)
    settings = (class_weight, ignore_index, reduction, label_smoothing, z_loss, softcap)
    d_logits = cross_entropy.backward(grad_output, logits, target, *settings)
    summed = d_logits.sum(0, dtype=compute_dtype(input.dtype)).to(weight.dtype)
    return d_logits @ weight, d_logits.t() @ input, summed


def chunk_gradient(
    logits: Tensor,
    target: Tensor,
    class_weight: Tensor | None,
    upstream: Tensor,
    settings: tuple[int, float, float, float | None],
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses, ``logsumexp`` and the logits' gradient of some rows, as the kernel makes them."""
    losses, lse = cross_entropy.rows(logits, target, class_weight, *settings)
    upstream = upstream.expand(target.shape)
    gradient = cross_entropy.logits_gradient(upstream, logits, target, class_weight, *settings)
    return losses, lse, gradient.to(logits.dtype)


def divisor(
    target: Tensor, class_weight: Tensor | None, ignore_index: int, dtype: torch.dtype
) -> Tensor:
    """What a mean divides by."""
    like = torch.empty((), dtype=dtype, device=target.device)
    return cross_entropy.class_weights(target, class_weight, ignore_index, like).sum()
