"""Rules of losses, over tensors of static sizes and of one type."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    alike,
    contiguous,
    fits,
    holds,
    is_row_major,
    rule,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.factories import copy_layout

_NONE, _MEAN, _SUM = 0, 1, 2  # how torch numbers reductions


def _elementwise(x: torch.Tensor, target: torch.Tensor, *weights: torch.Tensor | None) -> bool:
    tensors = [t for t in (target, *weights) if t is not None]
    return (
        fits(x, *tensors)
        and is_row_major(x)
        and all(same_sizes(t.shape, x.shape) and is_row_major(t) for t in tensors)
    )


def _reduced(x: torch.Tensor, size: Any, reduction: int) -> Layout:
    unsure_if(reduction not in (_NONE, _MEAN, _SUM))
    return contiguous(size if reduction == _NONE else (), x)


@rule("mse_loss smooth_l1_loss huber_loss soft_margin_loss")
def _loss(
    x: torch.Tensor, target: torch.Tensor, reduction: int = _MEAN, *_: Any, **__: Any
) -> Layout | None:
    return _reduced(x, x.shape, reduction) if _elementwise(x, target) else None


@rule("binary_cross_entropy")
def _entropy(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> Layout | None:
    if reduction == _NONE and fits(x, target) and same_sizes(x.shape, target.shape):
        return copy_layout(x, x.dtype, x.device)  # whatever the order of the target
    return _reduced(x, x.shape, reduction) if _elementwise(x, target, weight) else None


@rule("binary_cross_entropy_with_logits")
def _of_logits(
    x: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    pos_weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> Layout:
    unsure_if(pos_weight is not None or not _elementwise(x, target, weight))
    return _reduced(x, x.shape, reduction)


def _classes(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None) -> bool:
    """Whether ``target`` holds classes of the scores in ``x``."""
    if not fits(x, weight) or target.dtype is not torch.int64 or target.device != x.device:
        return False
    if weight is not None and not same_sizes(weight.shape, x.shape[x.dim() != 1 :][:1]):
        return False
    return same_sizes(target.shape, (*x.shape[:1], *x.shape[2:]) if x.dim() > 1 else ())


@rule("nll_loss_forward nll_loss2d_forward")
def _nll_loss(
    x: torch.Tensor, target: torch.Tensor, weight: Any, reduction: int, ignore_index: int
) -> Layouts:
    unsure_if(x.dim() not in (1, 2, 4) or not _classes(x, target, weight))
    return [_reduced(x, target.shape, reduction), contiguous((), x)]


@rule("multi_margin_loss")
def _multi_margin_loss(
    x: torch.Tensor,
    target: torch.Tensor,
    p: Any = 1,
    margin: Any = 1,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
) -> Layout:
    unsure_if(x.dim() > 2 or holds(x.shape, 0) or not alike(x, weight))
    unsure_if(weight is not None and not same_sizes(weight.shape, x.shape[-1:]))
    unsure_if(x.dtype not in (torch.float32, torch.float64))
    # One row gives as many dimensions as its target has; torch describes it with one.
    unsure_if(not same_sizes(target.shape, x.shape[:-1]) and not (x.dim() < 2 and target.dim() < 2))
    return _reduced(x, target.shape, reduction)


@rule("multilabel_margin_loss_forward")
def _multilabel_margin_loss(x: torch.Tensor, target: torch.Tensor, reduction: int) -> Layouts:
    unsure_if(x.dim() > 2 or holds(x.shape, 0) or not same_sizes(target.shape, x.shape))
    unsure_if(x.dtype not in (torch.float32, torch.float64))
    size = x.shape[:1] if x.dim() == 2 else ()
    return [_reduced(x, size, reduction), contiguous(x.shape, x)]
