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
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.factories import copy_layout
from torchsmith_guards._src.fake.layouts.pointwise import (
    axis_order,
    broadcast,
    broadcast_all,
    dense_stride,
    expanded_strides,
    iterator_strides,
    strides_in_order,
)
from torchsmith_guards._src.fake.layouts.views import view_strides
from torchsmith_guards._src.shapes.queries import hint_of

_INDEX_DTYPES = (torch.int64, torch.int32)


@rule("cat")
def _cat(tensors: Sequence[torch.Tensor], dim: int = 0) -> Layout:
    first = tensors[0]
    rank = first.dim()
    axis = axis_of(dim, rank)
    unsure_if(not rank)
    total: Any = 0
    for tensor in tensors:
        unsure_if(tensor.device != first.device or tensor.dim() != rank)
        others = (pair for i, pair in enumerate(zip(tensor.shape, first.shape)) if i != axis)
        unsure_if(not all(same(n, wanted) for n, wanted in others))
        unsure_if(rank == 1 and same(tensor.shape[0], 0))
        unsure_if(rank == 5 and is_channels_last(tensor, 5) is not False)
        total = total + tensor.shape[axis]
    size: list[Any] = list(first.shape)
    size[axis] = total
    dtype = promoted(*(t.dtype for t in tensors))
    last = [is_channels_last(t) for t in tensors]
    unsure_if(None in last)
    if not all(last):
        return contiguous(size, first, dtype)
    return (tuple(size), channels_last_strides(size), dtype, first.device, 0)


@rule("stack")
def _stack(tensors: Sequence[torch.Tensor], dim: int = 0) -> Layout:
    first = tensors[0]
    rank = first.dim()
    unsure_if(type(dim) is not int or not -rank - 1 <= dim <= rank or holds(first.shape, 0))
    axis = dim % (rank + 1)
    # Along an inner axis it is a concatenation that is then split; of up to three axes, or of
    # four that are not all channels-last, that has no order of axes to keep.
    plain = axis < rank <= 3 or (
        axis < rank == 4 and any(is_channels_last(t) is False for t in tensors)
    )
    for t in tensors:
        unsure_if(t.dtype != first.dtype or t.device != first.device)
        unsure_if(not same_sizes(t.shape, first.shape) or not (plain or is_row_major(t)))
    size: list[Any] = list(first.shape)
    size.insert(axis, len(tensors))
    return contiguous(size, first)


@rule("embedding")
def _embedding(weight: torch.Tensor, indices: torch.Tensor, *_: Any, **__: Any) -> Layout:
    unsure_if(weight.dim() != 2 or indices.device != weight.device)
    unsure_if(indices.dtype not in _INDEX_DTYPES)
    return contiguous((*indices.shape, weight.shape[1]), weight)


@rule("embedding_dense_backward")
def _embedding_backward(
    grad: torch.Tensor, indices: torch.Tensor, count: int, padding_idx: int, by_frequency: bool
) -> Layout | None:
    unsure_if(not same_sizes(grad.shape[:-1], indices.shape) or indices.dtype not in _INDEX_DTYPES)
    return contiguous((count, grad.shape[-1]), grad) if indices.device == grad.device else None


@rule("index_select")
def _index_select(x: torch.Tensor, dim: int, index: torch.Tensor) -> Layout:
    axis = axis_of(dim, x.dim())
    unsure_if(not x.dim() or index.dim() != 1 or index.dtype not in _INDEX_DTYPES)
    unsure_if(index.device != x.device or holds(x.shape, 0))
    size: list[Any] = list(x.shape)
    size[axis] = index.shape[0]
    return contiguous(size, x)


@rule("gather")
def _gather(x: torch.Tensor, dim: int, index: torch.Tensor, *, sparse_grad: bool = False) -> Layout:
    axis = axis_of(dim, x.dim())
    unsure_if(not _points_into(x, axis, index))
    return contiguous(index.shape, x)


@rule("index.Tensor")
def _index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> Layout:
    found = {d: i for d, i in enumerate(indices) if i is not None}
    unsure_if(not found or len(indices) > x.dim() or holds(x.shape, 0))
    unsure_if(any(i.dtype not in _INDEX_DTYPES or i.device != x.device for i in found.values()))
    size = broadcast_all(list(found.values()))
    unsure_if(holds(size, 0))
    # Others are converted first, which may order their elements anew.
    others = [i for i in found.values() if i.dtype is not torch.int64]
    unsure_if(not all(is_contiguous(i) and same_sizes(i.shape, size) for i in others))
    return _looked_up(x, found, size)


def _looked_up(x: torch.Tensor, indices: dict[int, torch.Tensor], size: tuple[Any, ...]) -> Layout:
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
        operands = [own]
        for stride in strides:
            wide = view_strides(size, stride, viewed)
            assert wide is not None, "axes of one can be put anywhere"
            operands.append(wide)
        sizes = (shape, *(viewed for _ in strides))
        found = iterator_strides(shape, sizes, tuple(operands), False)
    else:
        unsure_if(holds(shape, 1))
        around = [tuple(0 for _ in dims) for dims in (before, after)]
        operands = [own, *((*around[0], *stride, *around[1]) for stride in strides)]
        found = strides_in_order(shape, axis_order(shape, operands))
    return shape, found, x.dtype, x.device, 0


@rule("index_put", "_unsafe_index_put")
def _index_put(x: torch.Tensor, indices: Any, values: torch.Tensor, *rest: Any) -> Layout | None:
    unsure_if(not _takes(x, values) or not indices or len(indices) > x.dim())
    unsure_if(
        any(i is None or i.dtype not in _INDEX_DTYPES or i.device != x.device for i in indices)
    )
    size = broadcast_all(indices)
    unsure_if(holds(size, 0) or holds(x.shape, 0))
    size = (*size, *x.shape[len(indices) :])
    merged = broadcast(size, tuple(values.shape))
    return contiguous(x.shape, x) if same_sizes(merged, size) else None


def _takes(x: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether a row-major ``x`` can be copied and values of this type written into the copy."""
    return is_row_major(x) and values.dtype == x.dtype and values.device == x.device


@rule("index_add")
def _index_add(
    x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> Layout | None:
    axis = axis_of(dim, x.dim())
    unsure_if(not x.dim() or not _takes(x, source) or x.dtype not in PLAIN_DTYPES)
    unsure_if(index.dim() != 1 or index.dtype not in _INDEX_DTYPES or index.device != x.device)
    size = (*x.shape[:axis], index.shape[0], *x.shape[axis + 1 :])
    return contiguous(x.shape, x) if same_sizes(source.shape, size) else None


@rule("scatter.src", "scatter_add", "scatter.value")
def _scatter(x: torch.Tensor, dim: int, index: torch.Tensor, source: Any) -> Layout:
    axis = axis_of(dim, x.dim())
    unsure_if(not x.dim() or not is_row_major(x) or not _points_into(x, axis, index))
    if isinstance(source, torch.Tensor):
        unsure_if(not _takes(x, source) or source.dim() != x.dim())
        unsure_if(not _within(index.shape, source.shape))
    else:
        unsure_if(type(source) not in (int, bool) and not x.dtype.is_floating_point)
    return contiguous(x.shape, x)


def _points_into(x: torch.Tensor, axis: int, index: torch.Tensor) -> bool:
    """Whether ``index`` holds positions along ``axis``, and reaches no further than ``x`` else."""
    if x.dim() != index.dim() or index.dtype is not torch.int64 or index.device != x.device:
        return False
    beside = ([n for i, n in enumerate(t.shape) if i != axis] for t in (index, x))
    return not holds(index.shape, 0) and _within(*beside)


def _within(size: Sequence[Any], limits: Sequence[Any]) -> bool:
    return all(
        same(n, most) or (is_static((n, most)) and n <= most) for n, most in zip(size, limits)
    )


@rule("constant_pad_nd")
def _pad(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> Layout | None:
    for n, ends in zip(reversed(x.shape), zip(pad[::2], pad[1::2])):
        unknown = [by for by in ends if type(by) is not int or by < 0]
        taken = [torch.sym_min(by, 0) for by in unknown]  # type: ignore[no-untyped-call]
        known = taken and all(hint_of(number) is not None for number in (n, *taken))
        if known and n + sum(taken) < 0:  # which is guarded
            unsure_if(is_static(x.shape, pad))  # torch says so itself, unlike of symbols
            raise RuntimeError("narrow(): length must be non-negative.")
    unsure_if(not is_static(pad) or len(pad) % 2 or len(pad) > 2 * x.dim() or not pad)
    unsure_if(not is_contiguous(x) and not is_static(x.shape, x.stride()))
    unsure_if((x.dim() == 4 or min(pad) < 0) and not is_static(x.shape))
    size: list[Any] = list(x.shape)
    for i in range(len(pad) // 2):
        size[-1 - i] = size[-1 - i] + pad[2 * i] + pad[2 * i + 1]
    unsure_if(min(pad) < 0 and min(size) < 1)
    if max(pad) <= 0 and is_static(size, x.stride()):  # what is left is cloned
        return size, dense_stride(tuple(size), x.stride()), x.dtype, x.device, 0
    unsure_if((x.dim() == 5 and not is_row_major(x)) or is_channels_last(x) is not False)
    return contiguous(size, x)


@rule("tril", "triu")
def _triangle(x: torch.Tensor, diagonal: int = 0) -> Layout | None:
    return contiguous(x.shape, x) if x.dim() >= 2 and is_contiguous(x) else None


@rule("flip")
def _flip(x: torch.Tensor, dims: Sequence[int]) -> Layout | None:
    axes = [axis_of(d, x.dim()) for d in dims]
    unsure_if(len(set(axes)) != len(axes))
    if is_static(x.shape, x.stride()):
        return copy_layout(x, x.dtype, x.device)
    plain = is_contiguous(x) and not holds(x.shape, 0) and not holds(x.shape, 1)
    return contiguous(x.shape, x) if plain else None


@rule("roll")
def _roll(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> Layout:
    unsure_if(len(dims) != len(shifts) and not (len(shifts) == 1 and not dims))
    dims = [axis_of(d, x.dim()) for d in dims]
    unsure_if(not x.dim() or holds(x.shape, 0))
    if not is_row_major(x) and x.device.type == "cpu" and dims:  # eager concatenates two pieces
        last = is_channels_last(x)
        unsure_if(last is None or x.dim() > 4 or not is_static(shifts))
        rolled = zip(shifts, (x.shape[dim] for dim in dims))
        if last and all(by % int(hint_of(n) or 1) for by, n in rolled):
            return x.shape, channels_last_strides(x.shape), x.dtype, x.device, 0
    return contiguous(x.shape, x)


@rule("repeat")
def _repeat(x: torch.Tensor, repeats: Sequence[Any]) -> Layout:
    extra = len(repeats) - x.dim()
    unsure_if(extra < 0 or not is_static(repeats) or min(repeats, default=0) < 0)
    padded = (*(1 for _ in range(extra)), *x.shape)
    return contiguous([n * count for n, count in zip(padded, repeats)], x)
