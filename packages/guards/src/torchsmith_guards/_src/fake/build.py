"""Fake tensors built from layouts, without running an operator under the mode."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, in_kernel_invocation_manager

from torchsmith_guards._src.fake.layouts import Layout, Result
from torchsmith_guards._src.fake.layouts.base import PLAIN_DTYPES
from torchsmith_guards._src.shapes.queries import settled

_without_dispatch = torch._C._DisableTorchDispatch


def is_plain(mode: FakeTensorMode, values: Iterable[Any]) -> bool:
    """Whether every tensor among the values is an ordinary fake tensor of this mode.

    Ordinary means strided, of a common type, without a pending negation. Real tensors, subclasses,
    other modes' tensors are not, nor tensors of known value when there are no others.
    """
    tensors = known = 0
    for value in values:
        if type(value) is FakeTensor:
            tensors += 1
            known += value.constant is not None
            if (
                value.fake_mode is not mode
                or value.dtype not in PLAIN_DTYPES
                or value.layout is not torch.strided
                or value.is_neg()
            ):
                return False
        elif isinstance(value, torch.Tensor) or (
            isinstance(value, list | tuple) and not is_plain(mode, value)
        ):
            return False
    return known == 0 or known < tensors


def build(mode: FakeTensorMode, result: Result, base: FakeTensor | None) -> object:
    """The values that ``result`` describes.

    Args:
        mode: whose fake tensors to make.
        result: the layouts.
        base: the tensor whose storage the results share; None for new tensors.
    """
    if isinstance(result, list):
        parts = [_part(mode, part, base) for part in result]
        return parts if base is not None else tuple(parts)
    return _tensor(mode, result, base)


def settle(mode: FakeTensorMode, result: Any) -> Any:
    """``result`` of a call with every size told apart from 0 and 1."""
    if isinstance(result, torch.Tensor):
        size = result.shape
        if all(type(n) is int for n in size):
            return result
        known = [settled(n) for n in size]
        if all(a is b for a, b in zip(known, size)) or type(result) is not FakeTensor:
            return result
        layout = (known, result.stride(), result.dtype, result.device, result.storage_offset())
        return _tensor(mode, layout, result)
    if type(result) in (list, tuple):
        return type(result)(settle(mode, part) for part in result)
    return result


def _part(mode: FakeTensorMode, part: Layout | int | None, base: FakeTensor | None) -> object:
    return _tensor(mode, part, base) if isinstance(part, tuple) else part


def _tensor(mode: FakeTensorMode, layout: Layout, base: FakeTensor | None) -> FakeTensor:
    size, stride, dtype, device, offset = layout
    size = [settled(n) for n in size]
    if base is not None:
        with in_kernel_invocation_manager(mode):
            meta = torch.as_strided(base, size, stride, offset)
    else:
        with _without_dispatch():
            meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    with _without_dispatch():
        return FakeTensor(mode, meta, device)
