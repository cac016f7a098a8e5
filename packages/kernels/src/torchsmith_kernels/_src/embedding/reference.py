"""Embedding in plain PyTorch: the meaning of the kernels, and what runs without them."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import compute_dtype


def forward(input: Tensor, weight: Tensor) -> Tensor:
    """``weight[input]``; an index outside of the table raises an IndexError."""
    return torch.nn.functional.embedding(input, weight)


def backward(grad_output: Tensor, input: Tensor, rows: int, padding_idx: int) -> Tensor:
    """The sum of ``grad_output`` per row, rounded once; zero for ``padding_idx``."""
    grad = grad_output.to(compute_dtype(grad_output.dtype))
    total: Tensor = torch.ops.aten.embedding_dense_backward(grad, input, rows, padding_idx, False)
    return total.to(grad_output.dtype)


def transposed(input: Tensor, table: Tensor, padding_idx: int) -> Tensor:
    """The derivative of ``backward``: ``table[input]``, zero where ``input`` is padding."""
    result = forward(input, table)
    if padding_idx < 0:
        return result
    return result.masked_fill((input == padding_idx).unsqueeze(-1), 0)
