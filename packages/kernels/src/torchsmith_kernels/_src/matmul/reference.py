"""The matrix product with epilogue in plain PyTorch: the meaning of the kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import LOW_PRECISION

ACTIVATIONS = (None, "relu", "gelu", "gelu_tanh", "silu", "relu_squared")


def activate(x: Tensor, activation: str | None) -> Tensor:
    """The activation by name."""
    match activation:
        case "relu":
            return x.relu()
        case "gelu":
            return torch.nn.functional.gelu(x)
        case "gelu_tanh":
            return torch.nn.functional.gelu(x, approximate="tanh")
        case "silu":
            return torch.nn.functional.silu(x)
        case "relu_squared":
            return x.relu().square()
        case _:
            return x


def activation_gradient(grad: Tensor, pre: Tensor, activation: str | None) -> Tensor:
    """``grad * activation'(pre)``; differentiable itself."""
    result: Tensor
    match activation:
        case "relu":
            result = torch.ops.aten.threshold_backward(grad, pre, 0)
        case "gelu":
            result = torch.ops.aten.gelu_backward(grad, pre)
        case "gelu_tanh":
            result = torch.ops.aten.gelu_backward(grad, pre, approximate="tanh")
        case "silu":
            slope = pre.sigmoid()  # aten's own formula has no derivative
            result = grad * (slope * (1 + pre * (1 - slope)))
        case "relu_squared":
            result = grad * (2 * pre.relu())
        case _:
            result = grad
    return result


def product(input: Tensor, other: Tensor) -> Tensor:
    """``input @ other``, in float32 for low precision where that costs nothing to read."""
    if input.dtype in LOW_PRECISION:
        return torch.matmul(input.float(), other.float())
    return torch.matmul(input, other)


def before_activation(input: Tensor, other: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """``scale * (input @ other) + bias`` in at least float32."""
    x = product(input, other)
    if scale != 1:
        x = scale * x
    if bias is not None:
        x = x + bias.to(x.dtype)
    return x


def forward(
    input: Tensor,
    other: Tensor,
    bias: Tensor | None,
    activation: str | None,
    residual: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """The result and what the activation was applied to, both rounded once."""
    pre = before_activation(input, other, bias, scale)
    result = activate(pre, activation)
    if residual is not None:
        result = result + residual.to(result.dtype)
    return result.to(input.dtype), pre.to(input.dtype)
