"""Rules of normalisations. Mean and reciprocal deviation come back beside the result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layouts,
    alike,
    channels_last_strides,
    contiguous,
    contiguous_strides,
    fits,
    holds,
    is_channels_last,
    is_contiguous,
    is_static,
    lies,
    rule,
    same,
    same_sizes,
    unsure_if,
    wanted,
)


def _statistics_dtype(x: torch.Tensor, *parameters: torch.Tensor | None) -> torch.dtype | None:
    """The type of mean and deviation: that of ``x`` on the CPU, at least float32 elsewhere and
    beside parameters in float32, which only the CPU takes."""
    if alike(x, *parameters):
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
) -> Layouts:
    rank = x.dim() - len(normalized_shape)
    dtype = _statistics_dtype(x, weight, bias)
    unsure_if(dtype is None or rank < 0 or not normalized_shape or holds(x.shape, 0))
    shapes = [x.shape[rank:], *(p.shape for p in (weight, bias) if p is not None)]
    unsure_if(not all(same_sizes(shape, normalized_shape) for shape in shapes))
    size = (*x.shape[:rank], *(1 for _ in normalized_shape))
    return [contiguous(x.shape, x), contiguous(size, x, dtype), contiguous(size, x, dtype)]


@rule("native_group_norm")
def _native_group_norm(
    x: torch.Tensor, weight: Any, bias: Any, N: Any, C: Any, HxW: Any, group: int, eps: float
) -> Layouts:
    same_type = alike(x, weight, bias)  # then statistics are of it, on a GPU, too
    dtype = x.dtype if same_type else _statistics_dtype(x, weight, bias)
    unsure_if(dtype is None or not is_contiguous(x) or x.dim() < 2)
    unsure_if(holds(x.shape, 0) or not same(x.shape[0], N) or not same(x.shape[1], C))
    unsure_if(not is_static((C, group)) or group < 1 or C % group)
    size = (N, group)
    return [contiguous(x.shape, x), contiguous(size, x, dtype), contiguous(size, x, dtype)]


@rule("_native_batch_norm_legit_no_training")
def _batch_norm_inference(x: torch.Tensor, *rest: Any) -> Layouts:
    return _batch_norm(x, *rest[:4], False)


@rule("_native_batch_norm_legit_functional")
def _batch_norm_functional(x: torch.Tensor, *rest: Any) -> Layouts | None:
    found, mean = _batch_norm(x, *rest), rest[2]
    unsure_if(mean is None or not rest[4])
    updated = contiguous(mean.shape, mean)
    return [*found, updated, updated] if updated == found[1] else None


@rule("native_batch_norm_backward")
def _batch_norm_backward(grad: torch.Tensor, x: torch.Tensor, *rest: Any) -> Layouts:
    weight, running_mean, running_var, mean, deviation, train, _, mask = rest
    dtype = _statistics_dtype(x, weight, running_mean, running_var)
    unsure_if(not alike(x, grad) or mean.dtype != deviation.dtype)
    unsure_if(holds(x.shape, 1) and not is_contiguous(x))  # the gradient's layout counts, too
    known = x.dtype, torch.float32 if weight is None and not any(mask[1:]) else dtype
    unsure_if(x.device.type != "cuda" and mean.dtype not in known)
    found = _batch_norm(x, weight, None, running_mean, running_var, train)
    kind = x.dtype if weight is None else weight.dtype
    if weight is None and x.device.type == "cpu":
        kind = dtype or kind
    channels = contiguous(x.shape[1:2], x, kind)
    return wanted([found[0], channels, channels], mask)


@rule("cudnn_batch_norm")
def _cudnn_batch_norm(x: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Layouts:
    unsure_if(x.device.type != "cuda")
    found = _batch_norm(x, weight, *rest)
    statistics = found[1:] if rest[3] else [contiguous((0,), weight)] * 2
    return [found[0], *statistics, contiguous((0,), x, torch.uint8)]


@rule("cudnn_batch_norm_backward")
def _cudnn_batch_norm_backward(x: torch.Tensor, grad: torch.Tensor, *rest: Any) -> Layouts:
    return _batch_norm_backward(grad, x, *rest[:5], True, 0.0, (True, True, True))


@rule("native_batch_norm")
@rule("_native_batch_norm_legit")
def _batch_norm(
    x: torch.Tensor, weight: Any, bias: Any, mean: Any, var: Any, training: bool, *_: float
) -> Layouts:
    parameters = (weight, bias, mean, var)
    if x.device.type == "cuda" and (training or mean is not None):
        return _batch_norm_on_gpu(x, *parameters)
    unsure_if(x.device.type != "cpu" or x.dim() < 2 or (mean is None and not training))
    dtype = _statistics_dtype(x, *parameters)
    unsure_if(dtype is None or holds(x.shape, 0))
    unsure_if(not all(p is None or _per_channel(p, x) for p in parameters))
    result = contiguous(x.shape, x)
    if not is_contiguous(x) and x.dim() > 3:
        unsure_if(x.dim() > 5)
        strides = channels_last_strides(x.shape)
        last = lies(x, strides) or is_channels_last(x, 5)
        open_ended = holds(x.shape, 1) and not is_static(x.shape, x.stride())
        unsure_if(last is None or (open_ended and not last))
        if last:
            result = (x.shape, strides, x.dtype, x.device, 0)
    statistics = (x.shape[1] if training else 0,)
    return [result, contiguous(statistics, x, dtype), contiguous(statistics, x, dtype)]


@rule("_native_batch_norm_legit.no_stats")
def _without_running(x: torch.Tensor, weight: Any, bias: Any, *rest: Any) -> Layouts:
    return _batch_norm(x, weight, bias, None, None, *rest)


def _per_channel(p: torch.Tensor, x: torch.Tensor) -> bool:
    """Whether ``p`` has one value for each channel: guarded, since eager takes nothing else and
    fake kernels do not look."""
    return p.dim() == 1 and bool(p.shape[0] == x.shape[1])


def _batch_norm_on_gpu(x: torch.Tensor, *parameters: torch.Tensor | None) -> Layouts:
    """In row-major order; statistics, which are at least of float32, come back in any case."""
    unsure_if(not fits(x) or x.dim() < 2 or torch.version.hip is not None)
    unsure_if(x.stride() != contiguous_strides(x.shape))  # also of axes of one
    dtype = torch.float64 if x.dtype is torch.float64 else torch.float32
    for p in parameters:
        unsure_if(p is not None and (p.device != x.device or p.dtype not in (dtype, x.dtype)))
        unsure_if(p is not None and not _per_channel(p, x))
    statistics = contiguous(x.shape[1:2], x, dtype)
    return [contiguous(x.shape, x), statistics, statistics]
