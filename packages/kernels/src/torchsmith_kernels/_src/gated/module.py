"""Gated feed-forward layers."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.geglu.op import geglu
from torchsmith_kernels._src.swiglu.op import swiglu


class _Gated(torch.nn.Module):
    """``down_proj(activation(gate_proj(x)) * up_proj(x))``, parameters named as in Llama's MLP."""

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes the three projections.

        Args:
            in_features: size of the last dimension of the input.
            hidden_features: size of the last dimension between the projections.
            out_features: size of the last dimension of the result; ``in_features`` by default.
            bias: whether the projections have biases.
            device: where the parameters lie.
            dtype: type of the parameters.
        """
        super().__init__()
        out = in_features if out_features is None else out_features
        linear = torch.nn.Linear
        self.gate_proj = linear(in_features, hidden_features, bias, device, dtype)
        self.up_proj = linear(in_features, hidden_features, bias, device, dtype)
        self.down_proj = linear(hidden_features, out, bias, device, dtype)


class SwiGLU(_Gated):
    """A feed-forward layer with a SiLU gate, ``down_proj(swiglu(gate_proj(x), up_proj(x)))``.

    Parameters are named as in the MLP of Llama, Qwen and Mistral, so checkpoints are exchangeable.
    """

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of shape ``(..., in_features)`` to ``(..., out_features)``; see ``swiglu``."""
        result: Tensor = self.down_proj(swiglu(self.gate_proj(x), self.up_proj(x)))
        return result


class GeGLU(_Gated):
    """A feed-forward layer with a GELU gate, ``down_proj(geglu(gate_proj(x), up_proj(x)))``.

    Parameters are named as in the MLP of Gemma.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        out_features: int | None = None,
        bias: bool = False,
        approximate: str = "none",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Makes the three projections; ``approximate`` is that of ``geglu``."""
        super().__init__(
            in_features, hidden_features, out_features, bias, device=device, dtype=dtype
        )
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """``x`` of shape ``(..., in_features)`` to ``(..., out_features)``; see ``geglu``."""
        gated = geglu(self.gate_proj(x), self.up_proj(x), self.approximate)
        result: Tensor = self.down_proj(gated)
        return result
