"""Rules of operators that move data: concatenation, lookups, padding, repetition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    PLAIN_DTYPES,
    Layout,
    axis_of,
    channels_last_strides,
    contiguous,
    contiguous_strides,
    holds,
    is_channels_last,
    is_contiguous,
    is_row_major,
    is_static,
    promoted,
    rule,
    same,
    same_sizes,
)
from torchsmith_guards._src.fake.layouts.factories import copy_layout
from torchsmith_guards._src.fake.layouts.pointwise import (
    axis_order,
    broadcast,
    broadcast_all,
    expanded_strides,
    iterator_strides,
    strides_in_order,
)
from torchsmith_guards._src.shapes.queries import hint_of

_INDEX_DTYPES = (torch.int64, torch.int32)


@rule("cat")
def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Layout | None:
    first = tensors[0]
    rank = first.dim()
    axis = axis_of(dim, rank)
    if axis is None or not rank:
        return None
    total: Any = 0
    for tensor in tensors:
        if tensor.device != first.device or tensor.dim() != rank:
            return None
        if any(i != axis and not same(n, first.shape[i]) for i, n in enumerate(tensor.shape)):
            return None
        if rank == 1 and same(tensor.shape[0], 0):
            return None
        if rank == 5 and not is_contiguous(tensor):
            return None
        total = total + tensor.shape[axis]
    size: list[Any] = list(first.shape)
    size[axis] = total
    dtype = promoted(*(t.dtype for t in tensors))
    last = [is_channels_last(t) for t in tensors]
    if None in last:
        return None
    if not all(last):
        return contiguous(size, first, dtype)
    return (tuple(size), channels_last_strides(size), dtype, first.device, 0)


@rule("stack")
def _stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Layout | None:
    first = tensors[0]
    rank = first.dim()
    if type(dim) is not int or not -rank - 1 <= dim <= rank or holds(first.shape, 0):
        return None
    axis = dim % (rank + 1)
    # Along an inner axis it is a concatenation that is then split; of up to three axes, or of
    # four that are not all channels-last, that has no order of axes to keep.
    plain = axis < rank <= 3 or (
        axis < rank == 4 and any(is_channels_last(t) is False for t in tensors)
    )
    for t in tensors:
        if t.dtype != first.dtype or t.device != first.device:
            return None
        if not same_sizes(t.shape, first.shape) or not (plain or is_row_major(t)):
            return None
    size: list[Any] = list(first.shape)
    size.insert(axis, len(tensors))
    return contiguous(size, first)


@rule("embedding")
def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Layout | None:
    if weight.dim() != 2 or indices.device != weight.device:
        return None
    if indices.dtype not in _INDEX_DTYPES:
        return None
    return contiguous((*indices.shape, weight.shape[1]), weight)


@rule("embedding_dense_backward")
def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, count: int, padding_idx: int, by_frequency: bool
) -> Layout | None:
    if not same_sizes(grad.shape[:-1], indices.shape) or indices.dtype not in _INDEX_DTYPES:
        return None
    return contiguous((count, grad.shape[-1]), grad) if indices.device == grad.device else None


@rule("index_select")
def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> Layout | None:
    axis = axis_of(dim, x.dim())
    if axis is None or not x.dim() or index.dim() != 1 or index.dtype not in _INDEX_DTYPES:
        return None
    if index.device != x.device or holds(x.shape, 0):
        return None
    size: list[Any] = list(x.shape)
    size[axis] = index.shape[0]
    return contiguous(size, x)


@rule("gather")
def _gather(
    x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False
) -> Layout | None:
    axis = axis_of(dim, x.dim())
    if axis is None or x.dim() != index.dim() or index.dtype is not torch.int64:
        return None
    if index.device != x.device or holds(index.shape, 0):
        return None
    if not _within(*([n for i, n in enumerate(t.shape) if i != axis] for t in (index, x))):
        return None
    return contiguous(index.shape, x)


@rule("index.Tensor")
def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Layout | None:
    found = {d: i for d, i in enumerate(indices) if i is not None}
    if not found or len(indices) > x.dim() or holds(x.shape, 0):
        return None
    if any(i.dtype not in _INDEX_DTYPES or i.device != x.device for i in found.values()):
        return None
    size = broadcast_all(list(found.values()))
    if size is None or holds(size, 0):
        return None
    # Others are converted first, which may order their elements anew.
    others = [i for i in found.values() if i.dtype is not torch.int64]
    if not all(is_contiguous(i) and same_sizes(i.shape, size) for i in others):
        return None
    return _looked_up(x, found, size)


def _looked_up(
    x: torch.Tensor, indices: dict[int, torch.Tensor], size: tuple[Any, ...]
) -> Layout | None:
    """What advanced indexing gives: the dimensions that are indexed, all together, stand where the
    first of them does when they are neighbours, and first of all otherwise. The order in memory is
    that of an operation on indices and elements, which torch's own fakes do not work out.

    After ``AdvancedIndex`` in ATen/native/TensorAdvancedIndexing.cpp.
    """
    dims = list(indices)
    start = dims[0] if dims[-1] - dims[0] == len(dims) - 1 else 0
    rest = [d for d in range(x.dim()) if d not in indices]
    before, after = rest[:start], rest[start:]
    shape, own = ((*(t[d] for d in before), *between, *(t[d] for d in after))
                  for t, between in ((x.shape, size), (x.stride(), (0,) * len(size))))  # fmt: skip
    strides = [tuple(expanded_strides(size, tuple(i.shape), i.stride())) for i in indices.values()]
    if x.device.type != "cpu" and any(stride != strides[0] for stride in strides):
        strides = [contiguous_strides(size)] * len(strides)
    if is_static(shape, own, *strides):
        viewed = (*(1 for _ in before), *size, *(1 for _ in after))
        operands = (own, *(_viewed(size, stride, viewed) for stride in strides))
        sizes = (shape, *(viewed for _ in strides))
        found = iterator_strides(shape, sizes, operands, False)
    else:
        around = [tuple(0 for _ in dims) for dims in (before, after)]
        wide = [(*around[0], *stride, *around[1]) for stride in strides]
        order = None if holds(shape, 1) else axis_order(shape, [own, *wide])
        if order is None:
            return None
        found = strides_in_order(shape, order)
    return shape, found, x.dtype, x.device, 0


def _viewed(
    size: tuple[int, ...], stride: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[int, ...]:
    """Strides of a tensor that is viewed with more dimensions of one, as torch works them out."""
    result = [1] * len(wanted)
    last, inside, count, step = len(wanted) - 1, 1, 1, stride[-1] if stride else 1
    for d in reversed(range(len(size))):
        count *= size[d]
        if d and (size[d - 1] == 1 or stride[d - 1] == count * step):
            continue
        while last >= 0 and (inside < count or wanted[last] == 1):
            result[last] = inside * step
            inside *= wanted[last]
            last -= 1
        inside, count, step = 1, 1, stride[d - 1]
    return tuple(result)


@rule("index_put", "_unsafe_index_put")
def _index_put(x: torch.Tensor, indices: Any, values: torch.Tensor, *rest: Any) -> Layout | None:
    if not _takes(x, values) or not indices or len(indices) > x.dim():
        return None
    if any(i is None or i.dtype not in _INDEX_DTYPES or i.device != x.device for i in indices):
        return None
    size = broadcast_all(indices)
    if size is None or holds(size, 0) or holds(x.shape, 0):
        return None
    size = (*size, *x.shape[len(indices) :])
    merged = broadcast(size, tuple(values.shape))
    return contiguous(x.shape, x) if merged is not None and same_sizes(merged, size) else None


def _takes(x: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether a row-major ``x`` can be copied and values of this type written into the copy."""
    return is_row_major(x) and values.dtype == x.dtype and values.device == x.device


@rule("index_add")
def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Layout | None:
    axis = axis_of(dim, x.dim())
    if axis is None or not x.dim() or not _takes(x, source) or x.dtype not in PLAIN_DTYPES:
        return None
    if index.dim() != 1 or index.dtype not in _INDEX_DTYPES or index.device != x.device:
        return None
    size = (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])
    return contiguous(x.shape, x) if same_sizes(source.shape, size) else None


@rule("scatter.src", "scatter_add", "scatter.value")
def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Layout | None:
    axis = axis_of(dim, x.dim())
    if axis is None or not x.dim() or index.dim() != x.dim() or not is_row_major(x):
        return None
    if index.dtype is not torch.int64 or index.device != x.device or holds(index.shape, 0):
        return None
    if not _within(*([n for i, n in enumerate(t.shape) if i != axis] for t in (index, x))):
        return None
    if isinstance(source, torch.Tensor):
        if not _takes(x, source) or source.dim() != x.dim():
            return None
        if not _within(index.shape, source.shape):
            return None
    elif type(source) not in (int, bool) and not x.dtype.is_floating_point:
        return None
    return contiguous(x.shape, x)


def _within(size: Sequence[Any], limits: Sequence[Any]) -> bool:
    return all(
        same(n, most) or (is_static((n, most)) and n <= most) for n, most in zip(size, limits)
    )


@rule("constant_pad_nd")
def _pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Layout | None:
    if not is_static(pad) or len(pad) % 2 or len(pad) > 2 * x.dim() or not pad:
        return None
    if not is_contiguous(x) and (max(pad) <= 0 or not is_static(x.shape, x.stride())):
        return None
    if (x.dim() == 4 or min(pad) < 0) and not is_static(x.shape):
        return None
    if (x.dim() == 5 and not is_row_major(x)) or is_channels_last(x) is not False:
        return None
    size: list[Any] = list(x.shape)
    for i in range(len(pad) // 2):
        size[-1 - i] = size[-1 - i] + pad[2 * i] + pad[2 * i + 1]
    return None if min(pad) < 0 and min(size) < 1 else contiguous(size, x)


@rule("tril", "triu")
def _triangle(x: torch.Tensor, diagonal: int = 0) -> Layout | None:
    return contiguous(x.shape, x) if x.dim() >= 2 and is_contiguous(x) else None


@rule("flip")
def _flip(x: torch.Tensor, dims: Sequence[int]) -> Layout | None:
    axes = [axis_of(d, x.dim()) for d in dims]
    if None in axes or len(set(axes)) != len(axes):
        return None
    if is_static(x.shape, x.stride()):
        return copy_layout(x, x.dtype, x.device)
    plain = is_contiguous(x) and not holds(x.shape, 0) and not holds(x.shape, 1)
    return contiguous(x.shape, x) if plain else None


@rule("roll")
def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Layout | None:
    if len(dims) != len(shifts) and not (len(shifts) == 1 and not dims):
        return None
    if any(axis_of(d, x.dim()) is None for d in dims) or not x.dim():
        return None
    if holds(x.shape, 0):
        return None
    if not is_row_major(x) and x.device.type == "cpu" and dims:  # eager concatenates two pieces
        last = is_channels_last(x)
        if last is None or x.dim() > 4 or not is_static(shifts):
            return None
        rolled = zip(shifts, (x.shape[dim] for dim in dims))
        if last and all(by % int(hint_of(n) or 1) for by, n in rolled):
            return x.shape, channels_last_strides(x.shape), x.dtype, x.device, 0
    return contiguous(x.shape, x)


@rule("repeat")
def _repeat(x: torch.Tensor, repeats: Sequence[Any]) -> Layout | None:
    extra = len(repeats) - x.dim()
    if extra < 0 or not is_static(repeats) or min(repeats, default=0) < 0:
        return None
    padded = (*(1 for _ in range(extra)), *x.shape)
    return contiguous([n * count for n, count in zip(padded, repeats)], x)
