"""GPUs that no table was measured on: what is derived for them compiles and fits.

The kernels are compiled for these chips without one; nothing runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import kernel_testing as kt
import pytest
import torch
import torchsmith_kernels as tk
from torch import Tensor
from torchsmith_kernels._src import launch
from torchsmith_kernels._src.flash_attention import run_hopper

BF16, FP32 = torch.bfloat16, torch.float32


def leaf(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(shape, dtype=dtype, requires_grad=True)


def backward(result: Tensor | tuple[Tensor, ...], *leaves: Tensor) -> None:
    results = (result,) if isinstance(result, Tensor) else result
    torch.autograd.grad(results, leaves, [torch.empty_like(r) for r in results])


def norms(width: int, dtype: torch.dtype) -> None:
    x, w = leaf(8, width, dtype=dtype), leaf(width, dtype=FP32)
    backward(tk.layer_norm(x, (width,), w, w), x, w)
    backward(tk.add_rms_norm(x, x, (width,), w), x, w)


def group_norm(*shape: int, layout: torch.memory_format) -> None:
    x = torch.empty(shape, dtype=BF16, memory_format=layout).requires_grad_()
    w = leaf(shape[1])
    backward(tk.group_norm(x, 32, w, w), x, w)


def rows(width: int, dtype: torch.dtype) -> None:
    x, bias = leaf(8, width, dtype=dtype), leaf(width, dtype=dtype)
    target = torch.zeros(8, dtype=torch.int64)
    backward(tk.softmax(x, -1), x)
    backward(tk.log_softmax(x, 0), x)
    backward(tk.cross_entropy(x, target), x)
    hidden, head = leaf(8, 64, dtype=dtype), leaf(width, 64, dtype=dtype)
    backward(tk.fused_linear_cross_entropy(hidden, head, target), hidden, head)
    backward(tk.kl_div(x, x.detach(), reduction="sum", log_target=True), x)
    backward(tk.embedding(target, x), x)
    backward(tk.geglu(x, x), x)
    backward(tk.bias_gelu_dropout(x, bias), x, bias)


def attention(dim: int, dtype: torch.dtype) -> None:
    q = leaf(1, 4, 256, dim, dtype=dtype)
    backward(tk.flash_attention(q, q, q), q)
    backward(tk.flash_attention(q, q, q, is_causal=True, softcap=30.0), q)
    with torch.no_grad():
        cache, table = leaf(8, 16, 2, dim, dtype=dtype), torch.zeros(2, 4, dtype=torch.int32)
        tk.paged_attention(leaf(2, 16, dim, dtype=dtype), cache, cache, table, table[:, 0])
    cos = torch.empty(256, dim)
    backward(tk.apply_rotary(q, q, cos, cos), q)


def product(m: int, n: int, k: int) -> None:
    a, b, bias = leaf(m, k), leaf(k, n), leaf(n)
    backward(tk.matmul(a, b, bias, "silu"), a, b, bias)


CALLS: dict[str, Callable[[], None]] = {
    "norms, bfloat16": lambda: norms(16384, BF16),
    "norms, float32": lambda: norms(8192, FP32),
    "group norm": lambda: group_norm(2, 320, 64, 64, layout=torch.contiguous_format),
    "group norm, channels last": lambda: group_norm(2, 320, 64, 64, layout=torch.channels_last),
    "rows, bfloat16": lambda: rows(131072, BF16),
    "rows, float32": lambda: rows(4096, FP32),
    "attention 128": lambda: attention(128, BF16),
    "attention 256": lambda: attention(256, BF16),
    "attention, float32": lambda: attention(64, FP32),
    "product": lambda: product(4096, 4096, 4096),
    "product, few rows": lambda: product(16, 4096, 4096),
}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors count as those of a GPU; what was found out about the CPU is forgotten."""
    monkeypatch.setattr(launch, "usable", lambda device, op: True)
    run_hopper.available.cache_clear()
    yield
    run_hopper.available.cache_clear()


@kt.needs_compiler
@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("chip", [80, 89])
@pytest.mark.parametrize("call", CALLS)
def test_derived_tiles_fit_the_chip(call: str, chip: int) -> None:
    with kt.compiled_for(chip) as kernels:
        CALLS[call]()
    assert kernels
    for name, compiled in kernels:
        assert compiled.metadata.shared <= kt.SHARED[chip] * 1024, name
