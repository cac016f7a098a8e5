"""``Dropout`` as a module."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.dropout.op import dropout


class Dropout(torch.nn.Dropout):
    """``torch.nn.Dropout`` that runs ``torchsmith_kernels.dropout``; same arguments."""

    def forward(self, input: Tensor) -> Tensor:
        """Drops elements of ``input`` while training; see ``dropout``."""
        result = dropout(input, self.p, self.training)
        return input.copy_(result) if self.inplace and result is not input else result
