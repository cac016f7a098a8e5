"""``LayerNorm`` as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.layer_norm.op import layer_norm


class LayerNorm(torch.nn.LayerNorm):
    """``torch.nn.LayerNorm`` that runs ``torchsmith_kernels.layer_norm``.

    Same arguments, parameters and ``state_dict`` keys, so checkpoints are exchangeable.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalizes the last dimensions of ``input``; see ``layer_norm``."""
        return layer_norm(input, self.normalized_shape, self.weight, self.bias, self.eps)
