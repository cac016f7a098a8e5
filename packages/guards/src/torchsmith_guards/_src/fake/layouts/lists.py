"""Layouts of what operators over lists of tensors return: each result as its operands lie."""

from __future__ import annotations

from typing import Any

import torch

from torchsmith_guards._src.fake.layouts.base import (
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


@rule(
    *(f"_foreach_{name}" for name in _ALONE),
    *(f"_foreach_{name}.{kind}" for name in _TWO for kind in ("Scalar", "ScalarList", "List")),
)
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


def _one(x: torch.Tensor, others: list[torch.Tensor]) -> Layout:
    unsure_if(not x.dtype.is_floating_point or not is_row_major(x))
    for other in others:
        alike = other.dtype is x.dtype and other.device == x.device and is_row_major(other)
        unsure_if(not alike or not same_sizes(other.shape, x.shape))
    return x.shape, x.stride(), x.dtype, x.device, 0
