"""Views and conversions in canonical form: ``view``, ``slice``, ``select``, ``_to_copy``.

Operators that return their input when there is nothing to do return the very same tensor here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchsmith_guards import (
    holds,
    is_contiguous,
    layout_of,
    place_of,
    resolve_size,
    same_sizes,
    slice_bounds,
    view_strides,
)

from torchsmith_fx_backend._src.capture.rules.registry import FLOATS, Mode, Tensor, aten, laid, rule


@rule(aten.reshape.default)
def _reshape(m: Mode, x: Tensor, shape: Sequence[Any]) -> Any:
    size = resolve_size(x, shape)
    if size is None or holds(x.shape, 0):
        return NotImplemented  # empty, wrong, or different for different sizes
    if all(type(n) is int for n in (*x.shape, *x.stride(), *size)):
        as_view = view_strides(x.shape, x.stride(), size) is not None
    elif is_contiguous(x):
        as_view = True
    else:
        return NotImplemented
    if as_view:
        return m.call(aten.view.default, x, size)
    copied = m.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return m.call(aten._unsafe_view.default, copied, size)


@rule(aten.contiguous.default)
def _contiguous(
    m: Mode, x: Tensor, *, memory_format: torch.memory_format = torch.contiguous_format
) -> Any:
    if memory_format is torch.preserve_format:
        return NotImplemented
    if memory_format is torch.contiguous_format and is_contiguous(x):
        return x
    if x.is_contiguous(memory_format=memory_format):
        return x
    return m.call(aten.clone.default, x, memory_format=memory_format)


@rule(aten.linear.default)
def _linear(m: Mode, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Rows that lie across are copied once for all products, by a kernel that may compute them."""
    known = all(type(n) is int for n in (*x.shape, *x.stride()))
    if x.dim() < 3 or not known or holds(x.shape, 0):
        return NotImplemented
    if view_strides(x.shape, x.stride(), [x.shape[:-1].numel(), x.shape[-1]]) is not None:
        return NotImplemented
    copied = m.call(aten.clone.default, x, memory_format=torch.contiguous_format)
    return m.call(aten.linear.default, copied, weight, bias)


@rule(aten.to.dtype)
def _to_dtype(
    m: Mode,
    x: Tensor | float,
    dtype: torch.dtype,
    non_blocking: bool = False,
    copy: bool = False,
    memory_format: torch.memory_format | None = None,
) -> Any:
    if not isinstance(x, torch.Tensor):  # a number that `torch.vmap` has made a tensor of
        return m.call(aten.scalar_tensor.default, x, dtype=dtype)
    if memory_format not in (None, torch.preserve_format) or copy:
        return NotImplemented
    return x if x.dtype == dtype else m.call(aten._to_copy.default, x, dtype=dtype)


@rule(aten.dropout.default, aten.feature_dropout.default, aten.alpha_dropout.default)
def _dropout(m: Mode, x: Tensor, p: float, train: bool) -> Any:
    return NotImplemented if train and p != 0 else x


@rule(aten.split.Tensor)
def _split(m: Mode, x: Tensor, split_size: Any, dim: int = 0) -> Any:
    extent = x.shape[dim]
    if type(split_size) is not int or type(extent) is not int or split_size <= 0:
        return NotImplemented
    starts = range(0, max(extent, 1), split_size)
    return [_piece(m, x, dim, start, min(start + split_size, extent)) for start in starts]


@rule(aten.split_with_sizes.default)
def _split_with_sizes(m: Mode, x: Tensor, split_sizes: Sequence[Any], dim: int = 0) -> Any:
    extent = x.shape[dim]
    if type(extent) is not int or any(type(n) is not int for n in split_sizes):
        return NotImplemented
    if sum(split_sizes) != extent:
        return NotImplemented  # eager's own error
    pieces, start = [], 0
    for size in split_sizes:
        pieces.append(_piece(m, x, dim, start, start + size))
        start += size
    return pieces


def _piece(m: Mode, x: Tensor, dim: int, start: int, end: int) -> Tensor:
    return m.tensor(aten.slice.Tensor, x, dim, start, end)


@rule(aten.slice.Tensor)
def _slice(m: Mode, x: Tensor, *where: Any) -> Any:
    """With bounds that kernels can begin and end at where data decides about them."""
    bounds = _bounded(x, *where)
    return NotImplemented if bounds is None else m.call(aten.slice.Tensor, x, *bounds)


@rule(aten.slice_scatter.default)
def _slice_scatter(m: Mode, x: Tensor, source: Tensor, *where: Any) -> Any:
    bounds = _bounded(x, *where)
    if bounds is None:
        return NotImplemented
    return m.call(aten.slice_scatter.default, x, source, *bounds)


def _bounded(
    x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> tuple[Any, ...] | None:
    found = slice_bounds(x, dim, start, end, step)
    if found is None or same_sizes(
        found[:2], (0 if start is None else start, 2**63 - 1 if end is None else end)
    ):
        return None
    return dim, *found[:2], step


@rule(aten.select.int)
def _select(m: Mode, x: Tensor, dim: int, index: Any) -> Any:
    place = place_of(x, dim, index)
    if place is None or same_sizes((place,), (index,)):
        return NotImplemented
    return m.call(aten.select.int, x, dim, place)


@rule(aten.select_scatter.default)
def _select_scatter(m: Mode, x: Tensor, source: Tensor, dim: int, index: Any) -> Any:
    place = place_of(x, dim, index)
    if place is None or same_sizes((place,), (index,)):
        return NotImplemented
    return m.call(aten.select_scatter.default, x, source, dim, place)


@rule(aten.unbind.int)
def _unbind(m: Mode, x: Tensor, dim: int = 0) -> Any:
    extent = x.shape[dim]
    if type(extent) is not int:
        return NotImplemented
    return [m.call(aten.select.int, x, dim, index) for index in range(extent)]


@rule(aten.cat.default)
def _cat(m: Mode, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Without rows of no elements, as caches begin, whose results are contiguous. One tensor
    several times: a kernel need not ask which of them an element is from."""
    x = tensors[0]
    full = [t for t in tensors if t.dim() != 1 or not holds(t.shape, 0)]
    if 0 < len(full) < len(tensors) and len({(t.dtype, t.device) for t in tensors}) == 1:
        made = m.call(aten.cat.default, full, dim)
        return made if is_contiguous(made) else NotImplemented
    if len(tensors) < 2 or any(t is not x for t in tensors) or not x.dim() or holds(x.shape, 0):
        return NotImplemented
    found = layout_of(aten.cat.default, (tensors, dim))
    if not isinstance(found, tuple):
        return NotImplemented
    times = [1] * x.dim()
    times[dim] = len(tensors)
    return laid(m, m.call(aten.repeat.default, x, times), found[1])


@rule(aten.stack.default)
def _stack(m: Mode, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    if any(tuple(t.shape) != tuple(tensors[0].shape) for t in tensors):
        return NotImplemented
    rank = tensors[0].dim()
    axis = dim % (rank + 1)
    if axis < rank:  # as eager does it, for the layout's sake
        size = list(tensors[0].shape)
        size.insert(axis, len(tensors))
        return m.call(aten.view.default, m.call(aten.cat.default, tensors, axis), size)
    apart = {id(t): m.call(aten.unsqueeze.default, t, axis) for t in tensors}
    return m.call(aten.cat.default, [apart[id(t)] for t in tensors], axis)


def _shuffled(
    m: Mode, x: Tensor, parts: Sequence[Any], order: Sequence[int], size: Sequence[Any]
) -> Any:
    """``x`` in parts, these in another order, as an image of ``size``."""
    if x.device.type == "cpu" or any(type(n) is not int for n in x.shape) or holds(x.shape, 0):
        return NotImplemented  # channels-last images stay so there
    lead = [*x.shape[:-3]]
    split = _reshape(m, x, [*lead, *parts])
    if split is NotImplemented:
        return split
    axes = [*range(len(lead)), *(len(lead) + n for n in order)]
    return _reshape(m, m.tensor(aten.permute.default, split, axes), [*lead, *size])


@rule(aten.pixel_shuffle.default)
def _pixel_shuffle(m: Mode, x: Tensor, factor: int) -> Any:
    c, h, w = x.shape[-3] // factor**2, *x.shape[-2:]
    return _shuffled(m, x, (c, factor, factor, h, w), (0, 3, 1, 4, 2), (c, h * factor, w * factor))


@rule(aten.pixel_unshuffle.default)
def _pixel_unshuffle(m: Mode, x: Tensor, factor: int) -> Any:
    c, h, w = x.shape[-3], *(n // factor for n in x.shape[-2:])
    return _shuffled(m, x, (c, h, factor, w, factor), (0, 2, 4, 1, 3), (c * factor**2, h, w))


@rule(aten._adaptive_avg_pool2d.default)
def _adaptive_average(m: Mode, x: Tensor, size: Sequence[Any]) -> Any:
    """On a GPU, where windows are all alike: their mean."""
    numbers = (*x.shape, *size)
    if x.device.type == "cpu" or any(type(n) is not int or n < 1 for n in numbers):
        return NotImplemented
    (h, w), (high, wide) = x.shape[-2:], size
    if h % high or w % wide or x.dtype not in FLOATS:
        return NotImplemented
    split = m.call(aten.view.default, x, [*x.shape[:-2], high, h // high, wide, w // wide])
    return m.call(aten.mean.dim, split, [-3, -1])
