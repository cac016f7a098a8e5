"""Rules of operators that make tensors from nothing, or copies of others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    PLAIN_DTYPES,
    Layout,
    Layouts,
    channels_last_strides,
    contiguous_strides,
    holds,
    is_contiguous,
    is_dense,
    is_row_major,
    is_static,
    rule,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.pointwise import broadcast, copy_stride
from torchsmith_guards._src.fake.layouts.views import (
    diagonal_view,
    select_view,
    slice_view,
    strided_view,
)
from torchsmith_guards._src.shapes.nodes import Symbol
from torchsmith_guards._src.shapes.queries import expr_of, hint_of

_CPU = torch.device("cpu")


def _new(
    size: Sequence[Any],
    dtype: torch.dtype | None = None,
    device: Any = None,
    layout: torch.layout | None = None,
    pin_memory: bool | None = None,
    stride: Sequence[Any] | None = None,
) -> Layout:
    unsure_if(pin_memory or layout not in (None, torch.strided))
    place = _CPU if device is None else torch.device(device)
    unsure_if(place.type == "meta" or (place.type != "cpu" and place.index is None))
    dtype = dtype or torch.get_default_dtype()
    unsure_if(dtype not in PLAIN_DTYPES or any(type(n) is int and n < 0 for n in size))
    shape = tuple(size)
    return shape, contiguous_strides(shape) if stride is None else tuple(stride), dtype, place, 0


@rule("zeros", "ones", "rand", "randn", "empty.memory_format")
def _filled(
    size: Sequence[Any], *, memory_format: torch.memory_format | None = None, **place: Any
) -> Layout:
    unsure_if(memory_format not in (None, torch.contiguous_format))
    return _new(size, **place)


@rule("empty_strided")
def _empty_strided(size: Sequence[Any], stride: Sequence[Any], **place: Any) -> Layout:
    unsure_if(len(size) != len(stride) or any(type(n) is int and n < 0 for n in stride))
    return _new(size, stride=stride, **place)


@rule("full")
def _full(
    size: Sequence[Any], value: Any, *, dtype: torch.dtype | None = None, **place: Any
) -> Layout:
    if dtype is None:
        if type(value) is bool:
            dtype = torch.bool
        elif type(value) in (int, torch.SymInt):
            dtype = torch.int64
        else:
            unsure_if(type(value) not in (float, torch.SymFloat))
    return _new(size, dtype, **place)


rule("scalar_tensor")(lambda value, **place: _new((), **place))


@rule("arange.start", "arange.start_step")
def _arange(
    start: Any,
    end: Any,
    step: Any = 1,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
) -> Layout | None:
    kinds = {type(start), type(end), type(step)}
    if kinds == {int}:
        unsure_if(step == 0 or (end - start) * step < 0)
        length: Any = -((start - end) // step)
    elif kinds == {int, torch.SymInt} and type(start) is type(step) is int:
        unsure_if((start, step) != (0, 1) or not _is_size(end))
        length = end
    elif kinds <= {int, float}:
        unsure_if(not all(map(math.isfinite, (start, end, step))))
        unsure_if(step == 0 or (end - start) * step < 0)
        unsure_if(dtype is not None and not dtype.is_floating_point)
        length = math.ceil((end - start) / step)
    else:
        return None
    if dtype is None and float not in kinds:
        dtype = torch.int64
    return _new((length,), dtype, device, layout, pin_memory)


rule("arange")(lambda end, **kwargs: _arange(0, end, **kwargs))


def _is_size(value: Any) -> bool:
    """Whether a symbolic number is a symbol that is at least two."""
    try:
        hint = hint_of(value)
        return isinstance(expr_of(value), Symbol) and hint is not None and hint >= 2
    except TypeError:
        return False  # a symbol of another library


# Copies.


@rule("copy")
def _copied(x: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Layout:
    unsure_if(not is_static(x.shape, x.stride(), source.shape) or not is_dense(x.shape, x.stride()))
    unsure_if(source.device != x.device)
    unsure_if(broadcast(tuple(x.shape), tuple(source.shape)) != x.shape)
    return tuple(x.shape), x.stride(), x.dtype, x.device, 0


rule("lift_fresh_copy")(lambda x: copy_layout(x, x.dtype, x.device))
rule("clone")(lambda x, memory_format=None: copy_layout(x, x.dtype, x.device, memory_format))


@rule("index_fill.int_Scalar", "index_fill.int_Tensor")
def _index_fill(x: torch.Tensor, dim: int, index: torch.Tensor, value: object) -> Layout:
    like = torch.empty_like(x)  # a clone that is then written, whatever the meta kernel says
    return tuple(like.shape), tuple(like.stride()), x.dtype, x.device, 0


@rule(
    "fake_quantize_per_tensor_affine_cachemask",
    "fake_quantize_per_channel_affine_cachemask",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
)
def _fake_quantize(x: torch.Tensor, *_: Any) -> Layouts:
    """What is in range, and where: torch has no meta kernel to ask."""
    unsure_if(not x.dtype.is_floating_point or not x.dim())  # that has no channels
    like = torch.empty_like(x)
    size, stride = tuple(like.shape), tuple(like.stride())
    return [(size, stride, x.dtype, x.device, 0), (size, stride, torch.bool, x.device, 0)]


def _scatter_into_copy(
    name: str, place: Any, x: torch.Tensor, source: torch.Tensor, *where: Any, **named: Any
) -> Layout:
    # The copy keeps holes; only what is expanded gets memory of its own. (Where sizes are symbols,
    # torch 2.11 says that this too stays expanded, so it is asked of another tensor.)
    repeats = (type(step) is int and step == 0 for step in x.stride())
    unsure_if(holds(x.shape, 0))
    if any(again and not (type(n) is int and n <= 1) for n, again in zip(x.shape, repeats)):
        made = getattr(torch, name)(torch.empty_like(x), source, *where, **named)
        return tuple(x.shape), tuple(made.stride()), x.dtype, x.device, 0
    view = place(x, *where, **named)
    unsure_if(not same_sizes(source.shape, view[0]) or source.device != x.device)
    offset = x.storage_offset()
    plain = is_row_major(x) or is_static(x.shape, x.stride())
    unsure_if(not plain or type(offset) is not int or offset)
    return tuple(x.shape), tuple(x.stride()), x.dtype, x.device, 0


_VIEWS = (slice_view, select_view, diagonal_view, strided_view)
for _name, _view in zip(("slice", "select", "diagonal", "as_strided"), _VIEWS):
    rule(f"{_name}_scatter")(partial(_scatter_into_copy, f"{_name}_scatter", _view))


@rule("_to_copy", "empty_like", "zeros_like", "ones_like")
def _like(
    x: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Any = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Layout:
    unsure_if(pin_memory or layout not in (None, torch.strided))
    unsure_if(device is not None and torch.device(device) != x.device)
    dtype = dtype or x.dtype
    # Numbers stand for tensors where a mapped operator was given one.
    unsure_if(dtype not in PLAIN_DTYPES or not isinstance(x, torch.Tensor))
    return copy_layout(x, dtype, x.device, memory_format)


@rule("rand_like", "randn_like")
def _random_like(x: torch.Tensor, **kwargs: Any) -> Layout | None:
    layout = _like(x, **kwargs)
    return layout if layout[2].is_floating_point else None


rule("bernoulli.p")(lambda x, p, **_: _random_like(x) if 0 <= p <= 1 and is_row_major(x) else None)
rule("zero")(lambda x: _like(x))  # torch 2.11 takes it to be in row-major order
rule("fill.Scalar")(lambda x, value: _like(x) if is_row_major(x) else None)
rule("full_like")(lambda x, value, **kwargs: _like(x, **kwargs))


@rule("new_empty", "new_zeros", "new_ones")
def _new_like(x: torch.Tensor, size: Sequence[Any], **place: Any) -> Layout:
    return _new(size, **_beside(x, **place))


@rule("new_empty_strided")
def _new_empty_strided(
    x: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], **place: Any
) -> Layout:
    return _empty_strided(size, stride, **_beside(x, **place))


def _beside(x: torch.Tensor, dtype: Any = None, device: Any = None, **place: Any) -> dict[str, Any]:
    """``place`` of a tensor that is like ``x`` in what is not given."""
    return place | {"dtype": dtype or x.dtype, "device": x.device if device is None else device}


rule("new_full")(lambda x, size, value, **kwargs: _new_like(x, size, **kwargs))


def copy_layout(
    x: torch.Tensor,
    dtype: torch.dtype,
    device: torch.device,
    memory_format: torch.memory_format | None = None,
) -> Layout:
    """Of a copy of ``x`` that keeps the order of its elements, or has a format."""
    size = tuple(x.shape)
    if memory_format is torch.contiguous_format:
        return size, contiguous_strides(size), dtype, device, 0
    if memory_format is torch.channels_last and len(size) == 4:
        return size, channels_last_strides(size), dtype, device, 0
    unsure_if(memory_format not in (None, torch.preserve_format))
    if is_static(size, x.stride()):
        return size, copy_stride(x), dtype, device, 0
    unsure_if(not (is_contiguous(x) or is_dense(size, x.stride())))
    return size, x.stride(), dtype, device, 0
