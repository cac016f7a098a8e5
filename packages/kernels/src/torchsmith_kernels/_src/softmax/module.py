"""``Softmax`` and ``LogSoftmax`` as modules."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.softmax.op import log_softmax, softmax


class Softmax(torch.nn.Softmax):
    """``torch.nn.Softmax`` that runs ``torchsmith_kernels.softmax``.

    Without ``dim``, which eager has deprecated, it is eager's module.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The softmax of ``input`` along ``dim``."""
        return super().forward(input) if self.dim is None else softmax(input, self.dim)


class LogSoftmax(torch.nn.LogSoftmax):
    """``torch.nn.LogSoftmax`` that runs ``torchsmith_kernels.log_softmax``.

    Without ``dim``, which eager has deprecated, it is eager's module.
    """

    def forward(self, input: Tensor) -> Tensor:
        """The logarithm of the softmax of ``input`` along ``dim``."""
        return super().forward(input) if self.dim is None else log_softmax(input, self.dim)
