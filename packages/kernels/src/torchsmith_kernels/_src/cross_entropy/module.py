"""``CrossEntropyLoss``, the module."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.cross_entropy.functional import check_settings, cross_entropy


class CrossEntropyLoss(torch.nn.CrossEntropyLoss):
    """``torch.nn.CrossEntropyLoss`` through ``cross_entropy``, with its z-loss and soft cap.

    Args:
        weight: class weights ``[C]``; a buffer of the module.
        size_average: deprecated in PyTorch, see ``reduction``.
        ignore_index: class of rows that do not count.
        reduce: deprecated in PyTorch, see ``reduction``.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: share of the loss that goes evenly to all classes.
        z_loss: factor of ``logsumexp ** 2``.
        softcap: soft cap of the logits, or None.

    Raises:
        ArgumentTypeError: ``reduction`` is none of the accepted words.
        ArgumentValueError: ``label_smoothing`` or ``softcap`` is out of range.
    """

    def __init__(
        self,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        *,
        z_loss: float = 0.0,
        softcap: float | None = None,
    ) -> None:
        super().__init__(weight, size_average, ignore_index, reduce, reduction, label_smoothing)
        name = type(self).__name__
        check_settings(name, ignore_index, self.reduction, label_smoothing, z_loss, softcap)
        self.z_loss, self.softcap = z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """The loss; see ``cross_entropy``."""
        return cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
        )
