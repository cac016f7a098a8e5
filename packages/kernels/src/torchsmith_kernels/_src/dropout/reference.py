"""Dropout in plain PyTorch: the meaning of the kernel, and what runs without it."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.sizes import compute_dtype


def dropout(input: Tensor, p: float, stream: random.Stream) -> Tensor:
    """``input`` times the stream's factors, which follow the order of the result's memory."""
    result = torch.empty_like(input)
    order = sorted(range(input.dim()), key=lambda axis: result.stride()[axis], reverse=True)
    compute = compute_dtype(input.dtype)
    factors = random.factors(input.numel(), p, stream, input.device, compute)
    there = result.permute(order)
    there.copy_(input.permute(order).to(compute) * factors.view(there.shape))
    return result
