"""What generated wrappers call besides aten and kernels. The runtime's only private torch names.

``set_grad_enabled`` is the switch behind ``torch.set_grad_enabled`` without its context manager,
which costs ten times as much.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch

set_grad_enabled: Callable[[bool], None] = torch._C._set_grad_enabled

_PAGE = mmap.PAGESIZE
_MADV_HUGEPAGE = 14
_FEW = 4  # tensors that are copied one by one


def _madvise() -> Callable[[int, int, int], int] | None:
    """libc's ``madvise`` where the kernel honours requests for huge pages, else None."""
    try:
        state = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        function = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    if "[never]" in state:
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return cast("Callable[[int, int, int], int]", function)


_advise = _madvise()


def advise_huge(address: int, size: int) -> None:
    """Ask for huge pages below a large fresh buffer: its first touch then faults 500 times less.

    Only advice: whatever the kernel answers, the memory works.
    """
    if _advise is not None:
        start = -(-address // _PAGE) * _PAGE
        length = (address + size - start) // _PAGE * _PAGE
        if length > 0:
            _advise(start, length, _MADV_HUGEPAGE)


def conform(
    result: torch.Tensor,
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
    own: bool,
) -> torch.Tensor:
    """``result`` of an aten call as the kernels that read it expect it.

    Torch's fake tensors tell layouts beforehand, and for a few operators they are wrong. Memory
    that is planned, the ``own`` of a result, starts its storage: copies of parts, as
    ``diagonal_scatter`` makes, need not. What shares an argument's memory goes on sharing it.
    """
    first = not own or not result.storage_offset()
    if first and result.dtype is dtype and result.stride() == stride and result.shape == size:
        return result
    if result.shape != size:
        raise RuntimeError(
            f"an operator returned a tensor of {list(result.shape)}, not {list(size)}; its fake "
            "implementation says otherwise"
        )
    plain = not (result.is_conj() or result.is_neg())
    if first and plain and result.dtype is dtype:
        same = (a == b for a, b, n in zip(result.stride(), stride, size) if n != 1)
        if result.numel() == 0 or all(same):
            return result
    return torch.empty_strided(size, stride, dtype=dtype, device=result.device).copy_(result)


def reuse(
    dead: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
) -> torch.Tensor:
    """A tensor of that layout in the storage of ``dead``, which nobody reads any more."""
    if dead.dtype is dtype and not dead._is_view():  # results are no views
        if dead.shape == size and dead.stride() == stride:
            return dead
        return dead.as_strided_(size, stride, 0)
    fresh = torch.empty((0,), dtype=dtype, device=dead.device)
    return fresh.set_(dead.untyped_storage(), 0, size, stride)


def copy_unseen(target: torch.Tensor, source: torch.Tensor) -> None:
    """``target.copy_(source)`` that the version counter does not count."""
    target.data.copy_(source)


def write_slice(
    target: torch.Tensor, source: torch.Tensor, *where: Any, taken: Any = None, **named: Any
) -> torch.Tensor:
    """``aten.slice_scatter`` in place, of what may be there already, put into a part of it."""
    named.pop("out", None)
    part = (taken or torch.ops.aten.slice.Tensor)(target, *where, **named)
    if not part.is_set_to(source):
        part.copy_(source)
    return target


write_place = functools.partial(write_slice, taken=torch.Tensor.select)  # aten.select_scatter


def write_part(target: torch.Tensor, source: torch.Tensor, *where: Any) -> None:
    """``aten.as_strided_scatter`` in place."""
    size, stride, offset = where
    target.as_strided(size, stride, target.storage_offset() + offset).copy_(source)


def copy_each(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """A copy of each tensor, whose elements lie densely in some order, in few launches."""
    if len(tensors) < _FEW:
        return [tensor.clone() for tensor in tensors]
    fresh = [torch.empty_like(tensor) for tensor in tensors]
    by_dtype: dict[torch.dtype, list[int]] = {}
    for place, tensor in enumerate(tensors):
        by_dtype.setdefault(tensor.dtype, []).append(place)
    for places in by_dtype.values():
        torch._foreach_copy_([fresh[i] for i in places], [tensors[i] for i in places])
    return fresh
