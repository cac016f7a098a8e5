"""Rules of the fused attention kernels that ``scaled_dot_product_attention`` chooses from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    Layouts,
    contiguous,
    contiguous_strides,
    holds,
    rule,
    same,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.pointwise import copy_stride


def _fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether these are four-dimensional, of one type and device, and their sizes agree."""
    tensors = (query, key, value)
    if any(t.dim() != 4 or holds(t.shape, 0) or t.dtype != query.dtype for t in tensors):
        return False
    if any(t.device != query.device for t in tensors) or not query.dtype.is_floating_point:
        return False
    return (
        same(query.shape[0], key.shape[0])
        and same(query.shape[-1], key.shape[-1])
        and same_sizes(key.shape[:-1], value.shape[:-1])
    )


def _like(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Layout:
    """What ``empty_like(query)`` gives: dense where that is a part of a fused projection."""
    unsure_if(not _fits(query, key, value) or not same(query.shape[-1], value.shape[-1]))
    return tuple(query.shape), copy_stride(query), query.dtype, query.device, 0


def _by_length(size: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Layout:
    """A tensor of [batch, heads, length, ...] that is stored as [batch, length, heads, ...]."""
    batch, heads, length, *width = size
    first, second, third, *rest = contiguous_strides((batch, length, heads, *width))
    return tuple(size), (first, third, second, *rest), dtype, device, 0


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _flash_for_cpu(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **named: object
) -> Layouts:
    output = _like(query, key, value)
    dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    return [output, _by_length(query.shape[:3], dtype, query.device)]


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_for_cpu_backward(
    grad: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_: object,
    **__: object,
) -> Layouts:
    unsure_if(not _fits(query, key, value) or grad.dtype != query.dtype)
    return [_by_length(t.shape, t.dtype, t.device) for t in (query, key, value)]


@rule("_scaled_dot_product_flash_attention")
def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **named: object
) -> Layouts:
    shows_mask = any(rest[2:]) or named.get("return_debug_mask")
    unsure_if(shows_mask or query.device.type != "cuda" or torch.version.hip is not None)
    return [
        _like(query, key, value),
        contiguous(query.shape[:3], query, torch.float32),
        None,
        None,
        query.shape[2],
        key.shape[2],
        ((2,), (1,), torch.uint64, query.device, 0),
        ((), (), torch.uint64, query.device, 0),
        contiguous((0,), query),
    ]


@rule("_scaled_dot_product_efficient_attention")
def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_bias: torch.Tensor | None,
    compute_log_sumexp: bool,
    *options: object,
    **named: object,
) -> Layouts:
    unsure_if(query.device.type != "cuda" or torch.version.hip is not None)
    batch, heads, length = query.shape[:3]
    unsure_if(not _fits(query, key, value) or type(length) is not int)
    padded = math.ceil(length / 32) * 32 if compute_log_sumexp else 0
    scalar: Layout = ((), (), torch.int64, query.device, 0)
    return [
        _by_length((batch, heads, length, value.shape[-1]), query.dtype, query.device),
        contiguous((batch, heads, padded), query, torch.float32),
        scalar,
        scalar,
    ]


@rule("_scaled_dot_product_cudnn_attention")
def _cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: object, **named: object
) -> Layouts:
    unsure_if(query.device.type != "cuda")
    output = _like(query, key, value)
    scalar: Layout = ((), (), torch.int64, query.device, 0)
    statistics = contiguous((*query.shape[:3], 1), query, torch.float32)
    lengths = query.shape[2], key.shape[2]
    return [output, statistics, None, None, *lengths, scalar, scalar, None]
