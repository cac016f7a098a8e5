"""Rules of views: they share their first argument's storage and are exact in every number."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from torchsmith_guards._src.fake.layouts.base import (
    PLAIN_DTYPES,
    Effect,
    Entry,
    Layout,
    LayoutRule,
    Layouts,
    axis_of,
    contiguous_strides,
    holds,
    is_row_major,
    is_static,
    less,
    rule,
    same,
    same_sizes,
    unsure_if,
)

_Rule = TypeVar("_Rule", bound=LayoutRule)


def view(*names: str) -> Callable[[_Rule], _Rule]:
    """Register a rule of views."""
    return rule(*names, effect=Effect.VIEW)


def _below(a: Any, b: Any, ask: bool) -> bool:
    below = less(a, b)
    unsure_if(below is None and not ask)
    return bool(a != b and a < b) if below is None else below


def _equal(a: Any, b: Any, ask: bool) -> bool:
    return same(a, b) or not (_below(a, b, ask) or _below(b, a, ask))


def view_strides(
    size: Sequence[int], stride: Sequence[int], new: Sequence[int], ask: bool = False
) -> tuple[int, ...] | None:
    """Strides of a view with another shape, or None when there is no such view.

    After ``computeStride`` in ATen/TensorUtils.cpp. Where it depends on the value of a symbol,
    ``Unsure`` is raised, unless ``ask`` lets it be a guard.
    """
    if holds(size, 0):
        return tuple(stride) if same_sizes(size, new) else contiguous_strides(tuple(new))
    if not size:
        return (1,) * len(new)
    result = [0] * len(new)
    at = len(new) - 1
    chunk = stride[-1]
    tensor_count = view_count = 1
    for axis in range(len(size) - 1, -1, -1):
        tensor_count *= size[axis]
        if axis == 0 or not (
            same(size[axis - 1], 1) or _equal(stride[axis - 1], tensor_count * chunk, ask)
        ):
            while at >= 0 and (same(new[at], 1) or _below(view_count, tensor_count, ask)):
                result[at] = view_count * chunk
                view_count *= new[at]
                at -= 1
            if not _equal(view_count, tensor_count, ask):
                return None
            if axis > 0:
                chunk = stride[axis - 1]
                tensor_count = view_count = 1
    return tuple(result) if at == -1 else None


@view("view", "_unsafe_view")
def _view(x: torch.Tensor, size: Sequence[int], ask: bool = False) -> Layout | None:
    new = resolve_size(x, size, ask)
    if new is None or holds(x.shape, 0):
        return None
    rows = not is_static(x.shape, x.stride(), new) and is_row_major(x)
    strides = contiguous_strides(new) if rows else view_strides(x.shape, x.stride(), new, ask)
    return None if strides is None else (new, strides, x.dtype, x.device, x.storage_offset())


GUARDED_VIEW = Entry(partial(_view, ask=True), Effect.VIEW, PLAIN_DTYPES)  # may make guards


def resolve_size(x: torch.Tensor, size: Sequence[Any], ask: bool = False) -> list[Any] | None:
    """``size`` with -1 replaced, if ``x`` has as many elements for every value of its symbols, or,
    with ``ask``, for those that a guard allows."""
    new = list(size)
    unknown = [i for i, n in enumerate(new) if type(n) is int and n == -1]
    rest = math.prod(n for n in new if not (type(n) is int and n == -1))
    total = math.prod(x.shape)
    if unknown:
        if len(unknown) > 1 or (type(rest) is int and rest == 0):
            return None
        new[unknown[0]] = total // rest
        rest = rest * new[unknown[0]]
    return new if same(rest, total) or (ask and rest == total) else None


def _viewed(x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0) -> Layout:
    return size, stride, x.dtype, x.device, x.storage_offset() + offset


@view("permute")
def _permute(x: torch.Tensor, dims: Sequence[int]) -> Layout:
    rank = x.dim()
    axes = [d % rank if -rank <= d < rank else -1 for d in dims]
    unsure_if(sorted(axes) != list(range(rank)))
    size, stride = x.shape, x.stride()
    return _viewed(x, [size[a] for a in axes], [stride[a] for a in axes])


@view("transpose.int")
def _transpose(x: torch.Tensor, dim0: int, dim1: int) -> Layout:
    rank = x.dim()
    unsure_if(not (-rank <= dim0 < rank and -rank <= dim1 < rank))
    size, stride = list(x.shape), list(x.stride())
    size[dim0], size[dim1] = size[dim1], size[dim0]
    stride[dim0], stride[dim1] = stride[dim1], stride[dim0]
    return _viewed(x, size, stride)


view("t")(lambda x: _transpose(x, 0, 1) if x.dim() == 2 else None)


@view("unsqueeze")
def _unsqueeze(x: torch.Tensor, dim: int) -> Layout:
    rank = x.dim()
    unsure_if(not -rank - 1 <= dim <= rank)
    axis = dim % (rank + 1)
    size, stride = list(x.shape), list(x.stride())
    step = size[axis] * stride[axis] if axis < rank else 1
    size.insert(axis, 1)
    stride.insert(axis, step)
    return _viewed(x, size, stride)


@view("expand")
def _expand(x: torch.Tensor, size: Sequence[int], *, implicit: bool = False) -> Layout:
    extra = len(size) - x.dim()
    unsure_if(extra < 0)
    new: list[Any] = list(size)
    stride: list[Any] = [0] * len(size)
    for axis in range(len(size) - 1, -1, -1):
        wanted = size[axis]
        literal = wanted if type(wanted) is int else None
        if axis < extra:
            if literal is not None and literal <= 1:
                unsure_if(literal < 1 or not is_static(x.shape, x.stride(), size))
                if x.dim():  # what has no axis has no stride to go on from
                    stride[axis] = new[axis + 1] * stride[axis + 1]
            continue
        have, step = x.shape[axis - extra], x.stride(axis - extra)
        if literal == -1 or same(wanted, have):
            new[axis], stride[axis] = have, step
        else:
            unsure_if(not same(have, 1) or (literal is not None and literal < 0))
    return _viewed(x, new, stride)


@view("select.int")
def select_view(x: torch.Tensor, dim: int, index: int) -> Layout:
    rank = x.dim()
    unsure_if(type(index) is not int or not -rank <= dim < rank)
    extent: Any = x.shape[dim]
    least = extent if type(extent) is int else 2
    unsure_if(not -least <= index < least)
    size, stride = list(x.shape), list(x.stride())
    offset = (index + extent if index < 0 else index) * stride[dim]
    del size[dim % rank], stride[dim % rank]
    return _viewed(x, size, stride, offset)


@view("slice.Tensor")
def slice_view(
    x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Layout:
    rank = x.dim()
    unsure_if(not -rank <= dim < rank or type(step) is not int or step < 1)
    extent: Any = x.shape[dim]
    if type(extent) is not int:
        # Python writes ``x[1:]`` with the greatest int.
        open_ended = end is None or (type(end) is int and end >= 2**63 - 1)
        unsure_if(start not in (None, 0) or not open_ended or step != 1)
        return _viewed(x, x.shape, x.stride())
    begin = 0 if start is None else start
    stop = extent if end is None else end
    unsure_if(type(begin) is not int or type(stop) is not int)
    begin = min(max(begin + extent if begin < 0 else begin, 0), extent)
    stop = min(max(stop + extent if stop < 0 else stop, begin), extent)
    size, stride = list(x.shape), list(x.stride())
    offset = begin * stride[dim]
    size[dim] = (stop - begin + step - 1) // step
    stride[dim] *= step
    return _viewed(x, size, stride, offset)


view("detach", "alias")(lambda x: _viewed(x, x.shape, x.stride()))
view("_reshape_alias")(lambda x, size, stride: _viewed(x, tuple(size), tuple(stride)))


@view("squeeze.dims")
def _squeeze_dims(x: torch.Tensor, dim: Sequence[int]) -> Layout:
    axes = [axis_of(d, x.dim()) for d in dim]
    unsure_if(len(set(axes)) != len(axes))
    size, stride = x.shape, x.stride()
    kept = [i for i, n in enumerate(size) if i not in axes or not (type(n) is int and n == 1)]
    return _viewed(x, [size[i] for i in kept], [stride[i] for i in kept])


view("squeeze")(lambda x: _squeeze_dims(x, range(x.dim())))
view("squeeze.dim")(lambda x, dim: _squeeze_dims(x, (dim,)))


def _divided(x: torch.Tensor, dim: int) -> tuple[int, int]:
    """The axis and its known extent of what is taken apart along a dimension."""
    axis = axis_of(dim, x.dim())
    unsure_if(not x.dim() or not is_static((x.shape[axis],)))
    return axis, x.shape[axis]


@view("unbind.int")
def _unbind(x: torch.Tensor, dim: int = 0) -> Layouts:
    axis, extent = _divided(x, dim)
    return [select_view(x, axis, index) for index in range(extent)]


@view("split_with_sizes")
def _split_with_sizes(x: torch.Tensor, split_sizes: Sequence[int], dim: int = 0) -> Layouts:
    axis, extent = _divided(x, dim)
    unsure_if(not is_static(split_sizes) or min(split_sizes, default=0) < 0)
    unsure_if(sum(split_sizes) != extent)
    stride = x.stride()
    parts: Layouts = []
    begin = 0
    for length in split_sizes:
        size = list(x.shape)
        size[axis] = length
        parts.append(_viewed(x, size, stride, begin * stride[axis]))
        begin += length
    return parts


@view("split.Tensor")
def _split(x: torch.Tensor, split_size: int, dim: int = 0) -> Layouts:
    _, extent = _divided(x, dim)
    unsure_if(type(split_size) is not int or split_size < 1)
    # Nothing is split into one piece of nothing.
    sizes = [min(split_size, extent - begin) for begin in range(0, extent, split_size)] or [0]
    return _split_with_sizes(x, sizes, dim)


@view("chunk")
def _chunk(x: torch.Tensor, chunks: int, dim: int = 0) -> Layouts:
    _, extent = _divided(x, dim)
    unsure_if(type(chunks) is not int or chunks < 1)
    return _split(x, -(-extent // chunks), dim)


@view("diagonal")
def diagonal_view(x: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Layout:
    first, second = axis_of(dim1, x.dim()), axis_of(dim2, x.dim())
    unsure_if(first == second or type(offset) is not int)
    unsure_if(not is_static((x.shape[first], x.shape[second])))
    size, stride = list(x.shape), list(x.stride())
    length = min(size[first] + min(offset, 0), size[second] - max(offset, 0))
    unsure_if(length <= 0)
    start = offset * stride[second] if offset >= 0 else -offset * stride[first]
    step = stride[first] + stride[second]
    for axis in sorted((first, second), reverse=True):
        del size[axis], stride[axis]
    return _viewed(x, [*size, length], [*stride, step], start)


@view("unfold")
def _unfold(x: torch.Tensor, dimension: int, size: int, step: int) -> Layout:
    axis = axis_of(dimension, x.dim())
    unsure_if(not x.dim() or not is_static((x.shape[axis], size, step)))
    extent = x.shape[axis]
    unsure_if(step < 1 or not 0 <= size <= extent)
    sizes, strides = list(x.shape), list(x.stride())
    sizes.append(size)
    strides.append(strides[axis])
    sizes[axis] = (extent - size) // step + 1
    strides[axis] *= step
    return _viewed(x, sizes, strides)


@view("as_strided")
def strided_view(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Layout:
    offset = x.storage_offset() if storage_offset is None else storage_offset
    unsure_if(not is_static(x.shape, x.stride(), size, stride, (offset,)))
    unsure_if(len(size) != len(stride))
    unsure_if(min((*size, *stride, offset), default=0) < 0)
    last = offset + sum((n - 1) * step for n, step in zip(size, stride))
    unsure_if(0 not in size and (last + 1) * x.element_size() > x.untyped_storage().nbytes())
    return tuple(size), tuple(stride), x.dtype, x.device, offset
