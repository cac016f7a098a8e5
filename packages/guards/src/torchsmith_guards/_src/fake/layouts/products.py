"""Rules of matrix products. Their results are row-major, whatever the strides of the factors."""

from __future__ import annotations

import torch

from torchsmith_guards._src.fake.layouts.base import (
    Layout,
    contiguous,
    holds,
    is_contiguous,
    rule,
    same,
    same_sizes,
    unsure_if,
)
from torchsmith_guards._src.fake.layouts.pointwise import broadcast


@rule("linear")
def _linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Layout:
    unsure_if(w.dim() != 2 or x.dim() < 2 or x.dtype != w.dtype)
    unsure_if(not same(x.shape[-1], w.shape[1]))
    unsure_if(b is not None and (b.dtype != x.dtype or not same_sizes(b.shape, (w.shape[0],))))
    unsure_if(x.device != w.device or not is_contiguous(x) or holds(x.shape, 0))
    return contiguous((*x.shape[:-1], w.shape[0]), x)


@rule("matmul")
def _product(a: torch.Tensor, b: torch.Tensor) -> Layout:
    unsure_if(a.dtype != b.dtype or a.device != b.device or a.dim() < 2 or b.dim() < 2)
    batches = a.shape[:-2] if b.dim() > 2 else ()  # a matrix is multiplied by all rows at once
    unsure_if(not same(a.shape[-1], b.shape[-2]) or not same_sizes(batches, b.shape[:-2]))
    unsure_if(holds(a.shape, 0) or holds(b.shape, 0) or a.dtype is torch.bool)
    return contiguous((*a.shape[:-1], b.shape[-1]), a)


def _of_rank(rank: int, a: torch.Tensor, b: torch.Tensor) -> Layout:
    unsure_if(not a.dim() == b.dim() == rank)
    return _product(a, b)


rule("mm")(lambda a, b: _of_rank(2, a, b))
rule("bmm")(lambda a, b: _of_rank(3, a, b))
rule("addmm")(lambda bias, a, b, **factors: _added(bias, _of_rank(2, a, b)))
rule("baddbmm")(lambda bias, a, b, **factors: _added(bias, _of_rank(3, a, b)))


def _added(bias: torch.Tensor, product: Layout) -> Layout | None:
    unsure_if(bias.dtype != product[2] or bias.device != product[3])
    size = broadcast(tuple(product[0]), tuple(bias.shape))
    return product if same_sizes(size, product[0]) else None


def _by_vector(rank: int, a: torch.Tensor, b: torch.Tensor) -> Layout:
    unsure_if(a.dim() != rank or b.dim() != 1 or not same(a.shape[-1], b.shape[0]))
    unsure_if(a.dtype != b.dtype or a.device != b.device or a.dtype is torch.bool)
    return contiguous(a.shape[:-1], a)


rule("mv")(lambda a, b: None if holds(a.shape, 0) else _by_vector(2, a, b))
rule("dot")(lambda a, b: _by_vector(1, a, b))
