"""Cross entropy in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def cap(x: Tensor, softcap: float | None) -> Tensor:
    """``softcap * tanh(x / softcap)``."""
    return x if softcap is None else softcap * torch.tanh(x / softcap)


def class_weights(target: Tensor, weight: Tensor | None, ignore_index: int, like: Tensor) -> Tensor:
    """The weight of each row's class, 0 where it is ignored."""
    used = target != ignore_index
    if weight is None:
        return used.to(like.dtype)
    picked = weight.to(like.dtype)[torch.where(used, target, 0).long()]
    return torch.where(used, picked, 0)


def rows(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor]:
    """The loss of each row and its ``logsumexp``, in the type that the input is computed in."""
    x = cap(input.to(compute_dtype(input.dtype)), softcap)
    weight = None if weight is None else weight.to(x.dtype)
    target = target.long()
    log_p = x.log_softmax(-1)
    loss = F.nll_loss(log_p, target, weight, ignore_index=ignore_index, reduction="none")
    used = target != ignore_index
    if label_smoothing:
        even = -(log_p if weight is None else log_p * weight).sum(-1)
        even = torch.where(used, even, 0)
        loss = (1 - label_smoothing) * loss + label_smoothing / x.shape[-1] * even
    lse = x.logsumexp(-1)
    if z_loss:
        loss = loss + torch.where(used, z_loss * lse.square(), 0)
    return loss, lse


def forward(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
    z_loss: float = 0.0,
    softcap: float | None = None,
) -> Tensor:
    """Differentiable; ``input`` is ``[rows, classes]``. The result is not rounded."""
    settings = (weight, ignore_index, label_smoothing, z_loss, softcap)
    loss, _ = rows(input, target, *settings)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    return loss.sum() / class_weights(target, weight, ignore_index, loss).sum()


def logits_gradient(
    upstream: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    """``d(sum(upstream * loss)) / d(input)`` with one ``upstream`` per row; not rounded.

    Differentiable with respect to ``upstream`` and ``input``.
    """
    compute = compute_dtype(input.dtype)
    raw = input.to(compute)
    x = cap(raw, softcap)
    lse = x.logsumexp(-1, keepdim=True)
    p = x.softmax(-1)
    used = target != ignore_index
    label = torch.where(used, target, 0).long().unsqueeze(-1)
    hit = (1 - label_smoothing) * class_weights(target, weight, ignore_index, p).unsqueeze(-1)
    share = hit
    if label_smoothing:
        even = label_smoothing / x.shape[-1]
        weights = torch.ones_like(p[:1]) if weight is None else weight.to(compute).unsqueeze(0)
        share = share + even * weights.sum()
    result = p * (share + 2 * z_loss * lse)
    if label_smoothing:
        result = result - even * weights
    one_hot = torch.zeros_like(p).scatter(-1, label, 1.0)
    result = (result - hit * one_hot) * upstream.to(compute).unsqueeze(-1)
    if softcap is not None:
        result = result * (1 - torch.tanh(raw / softcap).square())
    return torch.where(used.unsqueeze(-1), result, 0)


def row_upstream(
    grad_output: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    compute: torch.dtype,
) -> Tensor:
    """The gradient of each row's loss."""
    upstream = grad_output.to(compute)
    if reduction == "none":
        return upstream
    if reduction == "mean":
        like = torch.empty((), dtype=compute, device=target.device)
        upstream = upstream / class_weights(target, weight, ignore_index, like).sum()
    return upstream.expand(target.shape)


def backward(
    grad_output: Tensor,
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    """The gradient with respect to ``input``; differentiable itself."""
    compute = compute_dtype(input.dtype)
    upstream = row_upstream(grad_output, target, weight, ignore_index, reduction, compute)
    settings = (weight, ignore_index, label_smoothing, z_loss, softcap)
    return logits_gradient(upstream, input, target, *settings).to(input.dtype)


def probabilities(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: str,
    label_smoothing: float,
    z_loss: float,
    softcap: float | None,
) -> Tensor:
    """Cross entropy against class probabilities; classes are dimension 1, or 0 of a vector."""
    axis = 0 if input.dim() == 1 else 1
    x = cap(input.to(compute_dtype(input.dtype)), softcap)
    loss = F.cross_entropy(
        x,
        target.to(x.dtype),
        None if weight is None else weight.to(x.dtype),
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
    if z_loss:
        extra = z_loss * x.logsumexp(axis).square()
        if reduction == "mean":  # of all rows, as eager takes it for probabilities
            extra = extra.mean()
        elif reduction == "sum":
            extra = extra.sum()
        loss = loss + extra
    return loss
