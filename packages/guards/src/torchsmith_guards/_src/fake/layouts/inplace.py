"""Rules of operators that write into their first argument and return it."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    INTEGRAL,
    Effect,
    Layout,
    is_static,
    rule,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.pointwise import broadcast, result_device, result_dtype


def _write(x: torch.Tensor, dtype: torch.dtype, *others: torch.Tensor) -> Layout:
    """The layout of ``x`` if values of this type and these operands can be written into it."""
    unsure_if(not torch.can_cast(dtype, x.dtype) or _may_overlap(x))
    storage = x.untyped_storage()._cdata
    for other in others:
        # Else torch checks whether they overlap partially.
        unsure_if(other is not x and other.untyped_storage()._cdata == storage)
        unsure_if(not same_sizes(broadcast(tuple(x.shape), tuple(other.shape)), x.shape))
    unsure_if(result_device((x, *others)) != x.device)
    return x.shape, x.stride(), x.dtype, x.device, x.storage_offset()


def _may_overlap(x: torch.Tensor) -> bool:
    """Whether an element may be reachable at two indices."""
    if not is_static(x.stride()):
        return False  # products of sizes
    return any(
        step == 0 and not (type(extent) is int and extent == 1)
        for extent, step in zip(x.shape, x.stride())
    )


@rule(
    """
    add_.Tensor mul_.Tensor add_.Scalar mul_.Scalar
    bitwise_and_.Tensor bitwise_or_.Tensor logical_and_ logical_or_
    """,
    effect=Effect.WRITE,
)
def _binary(x: torch.Tensor, other: Any, **kwargs: Any) -> Layout:
    tensors = (other,) if isinstance(other, torch.Tensor) else ()
    return _write(x, result_dtype((x, other)), *tensors)


@rule("sub_.Tensor", "sub_.Scalar", effect=Effect.WRITE)
def _sub(x: torch.Tensor, other: Any, **kwargs: Any) -> Layout | None:
    operands = (x, other) if isinstance(other, torch.Tensor) else (x,)
    return None if any(t.dtype is torch.bool for t in operands) else _binary(x, other)


@rule("div_.Tensor", "div_.Scalar", effect=Effect.WRITE)
def _div(x: torch.Tensor, other: Any) -> Layout | None:
    dtype = result_dtype((x, other))
    return None if dtype in INTEGRAL else _binary(x, other)


@rule("copy_", effect=Effect.WRITE)
def _copy(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Layout | None:
    return _write(x, x.dtype, source) if source.device == x.device else None


@rule("fill_.Scalar", effect=Effect.WRITE)
def _fill(x: torch.Tensor, value: Any) -> Layout | None:
    unsure_if(type(value) is float and x.dtype in INTEGRAL)
    return _write(x, x.dtype) if type(value) in (bool, int, float) else None


rule("zero_", effect=Effect.WRITE)(lambda x: _write(x, x.dtype))


@rule("masked_fill_.Scalar", effect=Effect.WRITE)
def _masked_fill(x: torch.Tensor, mask: torch.Tensor, value: Any) -> Layout:
    unsure_if(mask.dtype is not torch.bool or mask.device != x.device)
    unsure_if(type(value) not in (bool, int) and not x.dtype.is_floating_point)
    return _write(x, x.dtype, mask)


@rule("clamp_min_.Tensor", "clamp_max_.Tensor", effect=Effect.WRITE)
def _clamp(x: torch.Tensor, limit: torch.Tensor) -> Layout | None:
    return _binary(x, limit) if limit.device == x.device else None


@rule("relu_", "neg_", "abs_", effect=Effect.WRITE)
def _unary(x: torch.Tensor) -> Layout | None:
    return None if x.dtype is torch.bool else _write(x, x.dtype)


@rule(
    """
    clamp_ clamp_min_ clamp_max_ silu_ sigmoid_ tanh_ exp_ sqrt_ rsqrt_ gelu_ leaky_relu_ elu_
    hardswish_ hardsigmoid_
    """,
    effect=Effect.WRITE,
)
def _unary_float(x: torch.Tensor, *args: Any, **kwargs: Any) -> Layout | None:
    return _write(x, x.dtype) if x.dtype.is_floating_point else None


rule("bernoulli_.float", effect=Effect.WRITE)(
    lambda x, p=0.5, **kwargs: _unary_float(x) if 0 <= p <= 1 else None
)
