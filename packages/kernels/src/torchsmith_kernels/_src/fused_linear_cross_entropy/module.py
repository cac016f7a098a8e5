"""``FusedLinearCrossEntropyLoss``: an output layer with its loss."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.cross_entropy.functional import check_settings
from torchsmith_kernels._src.fused_linear_cross_entropy.functional import (
    fused_linear_cross_entropy,
)


class FusedLinearCrossEntropyLoss(torch.nn.Linear):
    """A linear layer whose forward takes targets as well and returns the loss.

    The parameters are those of ``torch.nn.Linear``, so that an output layer's state fits.

    Args:
        in_features: hidden size.
        out_features: number of classes.
        bias: whether there is a bias.
        ignore_index: class of rows that do not count.
        reduction: ``mean``, ``sum`` or ``none``.
        label_smoothing: share of the loss that goes evenly to all classes.
        z_loss: factor of ``logsumexp ** 2``.
        softcap: soft cap of the logits, or None.
        device: where the parameters are.
        dtype: their type.

    Raises:
        ArgumentTypeError: ``reduction`` is none of the accepted words.
        ArgumentValueError: ``label_smoothing`` or ``softcap`` is out of range.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        softcap: float | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, device, dtype)
        name = type(self).__name__
        check_settings(name, ignore_index, reduction, label_smoothing, z_loss, softcap)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing, self.z_loss, self.softcap = label_smoothing, z_loss, softcap

    def forward(self, input: Tensor, target: Tensor) -> Tensor:  # type: ignore[override]
        """The loss; see ``fused_linear_cross_entropy``."""
        return fused_linear_cross_entropy(
            input,
            self.weight,
            target,
            self.bias,
            self.ignore_index,
            self.reduction,
            self.label_smoothing,
            z_loss=self.z_loss,
            softcap=self.softcap,
        )
