"""``RMSNorm`` as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.rms_norm.op import rms_norm


class RMSNorm(torch.nn.RMSNorm):
    """``torch.nn.RMSNorm`` that runs ``torchsmith_kernels.rms_norm``.

    Same arguments, parameters and ``state_dict`` keys, so checkpoints are exchangeable.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalizes the last dimensions of ``x``; see ``rms_norm``."""
        return rms_norm(x, self.normalized_shape, self.weight, self.eps)
