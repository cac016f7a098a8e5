"""Rules of normalisations. Mean and reciprocal deviation come back beside the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layouts,
    channels_last_strides,
    contiguous,
    holds,
    is_channels_last,
    is_contiguous,
    is_dense,
    is_static,
    rule,
    same,
    same_sizes,
)


def _plain(x: torch.Tensor, *parameters: torch.Tensor | None) -> bool:
    """Whether ``x`` and the parameters are of one floating type on one device."""
    return x.dtype.is_floating_point and all(
        p is None or (p.dtype == x.dtype and p.device == x.device) for p in parameters
    )


def _statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype | None:
    """The type of mean and deviation: that of ``x`` on the CPU, at least float32 elsewhere and
    beside parameters in float32, which only the CPU takes."""
    if _plain(x, *parameters):
        if x.device.type == "cpu" or x.dtype in (torch.float32, torch.float64):
            return x.dtype
        return torch.float32 if x.device.type == "cuda" else None
    mixed = x.dtype in (torch.bfloat16, torch.float16) and x.device.type == "cpu"
    mixed = mixed and all(
        p is None or (p.dtype == torch.float32 and p.device == x.device) for p in parameters
    )
    return torch.float32 if mixed else None


@rule("native_layer_norm")
def _native_layer_norm(
    x: torch.Tensor, normalized_shape: Sequence[Any], weight: Any, bias: Any, eps: float
) -> Layouts | None:
    rank = x.dim() - len(normalized_shape)
    dtype = _statistics_dtype(x, weight, bias)
    if dtype is None or rank < 0 or not normalized_shape or holds(x.shape, 0):
        return None
    shapes = [x.shape[rank:], *(p.shape for p in (weight, bias) if p is not None)]
    if not all(same_sizes(shape, normalized_shape) for shape in shapes):
        return None
    size = (*x.shape[:rank], *(1 for _ in normalized_shape))
    return [contiguous(x.shape, x), contiguous(size, x, dtype), contiguous(size, x, dtype)]


@rule("native_group_norm")
def _native_group_norm(
    x: torch.Tensor, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Layouts | None:
    dtype = _statistics_dtype(x, weight, bias)
    if dtype is None or not is_contiguous(x) or x.dim() < 2:
        return None
    if holds(x.shape, 0) or not same(x.shape[0], N) or not same(x.shape[1], C):
        return None
    if not is_static((C, group)) or group < 1 or C % group:
        return None
    size = (N, group)
    return [contiguous(x.shape, x), contiguous(size, x, dtype), contiguous(size, x, dtype)]


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_inference(x: torch.Tensor, *rest: Any) -> Layouts | None:
    return _batch_norm(x, *rest[:4], False)


@rule("_native_batch_norm_legit_functional")
def _batch_norm_functional(x: torch.Tensor, *rest: Any) -> Layouts | None:
    found = _batch_norm(x, *rest)
    return found and [*found, *[contiguous(x.shape[1:2], x)] * 2]


@rule("native_batch_norm_backward")
def _batch_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Layouts | None:
    weight, running_mean, running_var, mean, deviation, train, _, wanted = rest
    if not all(wanted) or not _plain(x, grad, mean, deviation):
        return None
    found = _batch_norm(x, weight, None, running_mean, running_var, train)
    return found and [found[0], *[contiguous(x.shape[1:2], x)] * 2]


@rule("native_batch_norm")
@rule("_native_batch_norm_legit")
def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: float
) -> Layouts | None:
    parameters = (weight, bias, mean, var)
    if x.device.type != "cpu" or x.dim() < 2 or (mean is None and not training):
        return None
    if not _plain(x, *parameters) or holds(x.shape, 0):
        return None
    if training and x.dtype not in (torch.float32, torch.float64):
        return None
    if any(p is not None and not same_sizes(p.shape, x.shape[1:2]) for p in parameters):
        return None
    result = contiguous(x.shape, x)
    if not is_contiguous(x) and x.dim() > 3:
        if x.dim() > 4 or not is_static(x.shape, x.stride()) or holds(x.shape, 1):
            return None
        if is_channels_last(x):
            if not is_dense(x.shape, x.stride()):
                return None
            result = (x.shape, channels_last_strides(x.shape), x.dtype, x.device, 0)
    statistics = (x.shape[1] if training else 0,)
    return [result, contiguous(statistics, x), contiguous(statistics, x)]
