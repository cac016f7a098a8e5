"""``torch.nn.Embedding`` that computes with the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.embedding.op import embedding


class Embedding(torch.nn.Embedding):
    """``torch.nn.Embedding`` with a deterministic backward pass; same arguments and state.

    With ``max_norm``, ``scale_grad_by_freq`` or ``sparse`` it runs torch's own code.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The rows of the table, ``[*input.shape, embedding_dim]``."""
        if self.max_norm is not None or self.scale_grad_by_freq or self.sparse:
            return super().forward(input)
        return embedding(input, self.weight, self.padding_idx)
