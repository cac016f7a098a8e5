"""Matrix products: plain, and with bias and activation; backward of both."""

from __future__ import annotations

from collections.abc import Callable

import torch
from case import Case, Versions, compiled
from torch import Tensor
from torch.nn import functional as F
from torchsmith_kernels import matmul
from torchsmith_kernels._src.matmul import run

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


def _bytes(m: int, n: int, k: int) -> int:
    """Both factors and the product, once each."""
    return torch.bfloat16.itemsize * (m * k + k * n + m * n)


def _operands(m: int, n: int, k: int) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * k**-0.5
    return x, weight, torch.randn(n, device="cuda", dtype=torch.bfloat16)


def _plain(m: int, n: int, k: int) -> Case:
    """The Triton kernel itself, not ``matmul``, which calls cuBLAS without an epilogue."""

    def build() -> Versions:
        x, weight, _ = _operands(m, n, k)
        other = weight.t()
        return {
            "ours": lambda: run.forward(x, other)[0],
            "eager": lambda: torch.mm(x, other),
        }

    shape = f"{m} x {n} x {k}, Triton kernel"
    flops = 2 * m * n * k
    return Case("matmul", shape, torch.bfloat16, "forward", build, _bytes(m, n, k), flops, bar=0.95)


def _forward(m: int, n: int, k: int, activation: str) -> Case:
    def build() -> Versions:
        x, weight, bias = _operands(m, n, k)
        function = ACTIVATIONS[activation]

        def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return function(F.linear(x, weight, bias))

        def library(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return torch._addmm_activation(bias, x, weight.t(), use_gelu=activation != "relu")

        fused = compiled(eager)
        # cuBLASLt's own epilogue, where it has one, is the fastest that aten offers.
        fastest = library if activation in ("relu", "gelu_tanh") else eager
        return {
            "ours": lambda: matmul(x, weight.t(), bias, activation),
            "eager": lambda: fastest(x, weight, bias),
            "compile": lambda: fused(x, weight, bias),
        }

    shape = f"{m} x {n} x {k}, bias, {activation}"
    return Case("matmul", shape, torch.bfloat16, "forward", build, _bytes(m, n, k), 2 * m * n * k)


def _backward(m: int, n: int, k: int, activation: str) -> Case:
    def build() -> Versions:
        x, weight, bias = (t.requires_grad_() for t in _operands(m, n, k))
        function = ACTIVATIONS[activation]
        upstream = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)

        def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            return function(F.linear(x, weight, bias))

        def gradients(y: Tensor) -> Callable[[], object]:
            inputs = [x, weight, bias]
            return lambda: torch.autograd.grad(y, inputs, upstream, retain_graph=True)

        fused = compiled(eager)(x, weight, bias)
        assert isinstance(fused, Tensor)
        return {
            "ours": gradients(matmul(x, weight.t(), bias, activation)),
            "eager": gradients(eager(x, weight, bias)),
            "compile": gradients(fused),
        }

    shape = f"{m} x {n} x {k}, bias, {activation}"
    return Case(
        "matmul", shape, torch.bfloat16, "backward", build, 2 * _bytes(m, n, k), 4 * m * n * k
    )


def cases() -> list[Case]:
    """4k to 8k, square and as in language models, and a small one."""
    return [
        *(_plain(size, size, size) for size in (4096, 8192)),
        _plain(8192, 4096, 4096),
        *(_forward(4096, 4096, 4096, name) for name in ACTIVATIONS),
        *(_forward(8192, 8192, 8192, name) for name in ACTIVATIONS),
        _forward(8192, 14336, 4096, "silu"),
        _forward(256, 4096, 4096, "gelu"),
        _backward(8192, 8192, 4096, "gelu"),
    ]
