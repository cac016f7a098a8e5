"""Layouts of what operators over lists of tensors return: each result as its operands lie."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Effect,
    Layout,
    Layouts,
    is_row_major,
    rule,
    same_sizes,
    unsure_if,
)

_ALONE = """
    abs acos asin atan ceil cos cosh erf erfc exp expm1 floor frac lgamma log log10 log1p log2 neg
    reciprocal round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
""".split()
_TWO = "add sub mul div pow maximum minimum clamp_min clamp_max lerp addcmul addcdiv".split()


def _overloads(mark: str = "") -> list[str]:
    """The operators, or those that write, with a mark behind their names."""
    kinds = ("Scalar", "ScalarList", "List")
    return [
        *(f"_foreach_{name}{mark}" for name in _ALONE),
        *(f"_foreach_{name}{mark}.{kind}" for name in _TWO for kind in kinds),
    ]


@rule(*_overloads())
def _lists(first: list[torch.Tensor], *others: Any, **named: Any) -> Layouts:
    numbers = [*others, *named.values()]
    lists = [first]
    for given in others:
        if isinstance(given, (list, tuple)):
            if isinstance(given[0], torch.Tensor):
                lists.append(list(given))
            else:
                numbers += given
    unsure_if(any(isinstance(number, complex) for number in numbers))
    return [_one(x, rest) for x, *rest in zip(*lists, strict=True)]


@rule(*_overloads("_"), effect=Effect.WRITE)
def _written(first: list[torch.Tensor], *others: Any, **named: Any) -> Layouts:
    written = {x.untyped_storage()._cdata: x for x in first}
    for other in (x for given in others if isinstance(given, (list, tuple)) for x in given):
        if isinstance(other, torch.Tensor):  # else torch checks whether they overlap partially
            unsure_if(written.get(other.untyped_storage()._cdata, other) is not other)
    unsure_if(len(written) != len(first))
    return _lists(first, *others, **named)


def _one(x: torch.Tensor, others: list[torch.Tensor]) -> Layout:
    unsure_if(not x.dtype.is_floating_point or not is_row_major(x))
    for other in others:
        if not other.dim() and x.dim() and other.dtype.is_floating_point:
            unsure_if(other.device != x.device and other.device.type != "cpu")
            continue
        alike = other.dtype is x.dtype and other.device == x.device and is_row_major(other)
        unsure_if(not alike or not same_sizes(other.shape, x.shape))
    return x.shape, x.stride(), x.dtype, x.device, 0
