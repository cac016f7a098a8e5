"""Rules of Fourier transforms on a CPU, as MKL's kernels lay their results out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import Layout, holds, less, rule, unsure_if
from torchsmith_guards._src.fake.layouts.pointwise import strides_in_order

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}
_REAL = {kind: real for real, kind in _COMPLEX.items()}
_MKL = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]


def _by_stride(stride: Sequence[Any], dims: Sequence[int]) -> list[int]:
    def compared(a: int, b: int) -> int:
        first = less(stride[b], stride[a])
        unsure_if(first is None)
        return -bool(first)

    return sorted(dims, key=cmp_to_key(compared))


def _transformed(stride: Sequence[Any], size: Sequence[Any], dims: Sequence[int]) -> Sequence[Any]:
    """Strides of a result of this size: the other dimensions by stride, then ``dims``. Of equal
    strides std::partition decides, which fills gaps in front from the back."""
    others = [d for d in range(len(size)) if d not in dims]
    back = [d for d in others if d >= len(others)]
    front = [d if d in others else back.pop() for d in range(len(others))]
    return strides_in_order(tuple(size), [*_by_stride(stride, front), *dims][::-1])


def _check(x: torch.Tensor, dims: Sequence[int]) -> None:
    unsure_if(not (_MKL and x.device.type == "cpu" and dims) or holds(x.shape, 0) or x.is_conj())
    unsure_if(len(set(dims)) < len(dims) or min(dims) < 0 or max(dims) >= x.dim())


@rule("_fft_r2c", dtypes=_COMPLEX)
def _of_reals(x: torch.Tensor, dims: Sequence[int], normalization: int, onesided: bool) -> Layout:
    _check(x, dims)
    *rest, last = dims
    half = x.shape[last] // 2 + 1 if onesided else x.shape[last]
    size = (*x.shape[:last], half, *x.shape[last + 1 :])
    stride = _transformed(x.stride(), size, [*_by_stride(x.stride(), rest), last])
    return size, stride, _COMPLEX[x.dtype], x.device, 0


@rule("_fft_c2c", dtypes=_REAL)
def _of_complex(x: torch.Tensor, dims: Sequence[int], normalization: int, forward: bool) -> Layout:
    _check(x, dims)
    stride = _transformed(x.stride(), x.shape, _by_stride(x.stride(), dims))
    return x.shape, stride, x.dtype, x.device, 0


@rule("_fft_c2r", dtypes=_REAL)
def _to_reals(x: torch.Tensor, dims: Sequence[int], normalization: int, length: Any) -> Layout:
    _check(x, dims)
    stride = _of_complex(x, dims[:-1], 0, False)[1] if len(dims) > 1 else x.stride()
    size = (*x.shape[: dims[-1]], length, *x.shape[dims[-1] + 1 :])
    return size, _transformed(stride, size, dims[-1:]), _REAL[x.dtype], x.device, 0
