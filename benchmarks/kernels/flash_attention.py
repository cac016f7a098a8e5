"""Attention at 16384 tokens; ``eager`` is SDPA's cuDNN backend, the fastest of SDPA's on Hopper.

What SDPA does not have, windows and softcaps, is compared with compiled FlexAttention.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from case import Case, Versions, compiled
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torchsmith_kernels import flash_attention

TOKENS = 16384
BARS = {"forward": 0.85, "backward": 0.8}


def _sdpa(query: Tensor, key: Tensor, value: Tensor, **kwargs: Any) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return F.scaled_dot_product_attention(query, key, value, **kwargs)


def _flex(window: int | None, softcap: float | None, length: int) -> Callable[..., Tensor]:
    """Compiled FlexAttention of the same scores, causal."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (j <= i) if window is None else (j <= i) & (j >= i - window)

    def capped(score: Tensor, batch: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return softcap * torch.tanh(score / softcap)

    mask = create_block_mask(seen, None, None, length, length, device="cuda")
    run = compiled(flex_attention)
    change = None if softcap is None else capped
    return lambda q, k, v: run(q, k, v, score_mod=change, block_mask=mask)


def _case(
    direction: str,
    length: int,
    dim: int = 128,
    kv_heads: int | None = None,
    causal: bool = True,
    window: int | None = None,
    softcap: float | None = None,
) -> Case:
    heads, batch = 2048 // dim, TOKENS // length
    kv = kv_heads or heads

    def build() -> Versions:
        query, grad = (
            torch.randn(batch, heads, length, dim, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        key, value = (
            torch.randn(batch, kv, length, dim, device="cuda", dtype=torch.bfloat16)
            for _ in range(2)
        )
        changed = window is not None or softcap is not None
        functions: dict[str, Callable[..., Tensor]] = {
            "ours": lambda *t: flash_attention(
                *t,
                is_causal=causal,
                enable_gqa=kv != heads,
                window=None if window is None else (window, 0),
                softcap=softcap,
            )
        }
        if changed:
            functions["compile"] = _flex(window, softcap, length)
        else:
            functions["eager"] = lambda *t: _sdpa(*t, is_causal=causal, enable_gqa=kv != heads)
        if direction == "forward":
            return {name: _bind(run, query, key, value) for name, run in functions.items()}
        leaves = [t.requires_grad_() for t in (query, key, value)]
        return {name: _backward(run, leaves, grad) for name, run in functions.items()}

    flops = 4 * TOKENS * length * 2048
    if window is not None:
        flops = 4 * TOKENS * 2048 * window
    elif causal:
        flops //= 2
    name = f"{batch} x {length}, {heads}{'' if kv == heads else f'/{kv}'} heads of {dim}"
    name += ", causal" if causal else ""
    name += "" if window is None else f", window {window}"
    name += "" if softcap is None else f", softcap {softcap:g}"
    return Case(
        "flash_attention",
        name,
        torch.bfloat16,
        direction,
        build,
        # Backward reads the results and their gradient as well, and writes three gradients.
        bytes=(1 if direction == "forward" else 2) * 4 * TOKENS * 2048,
        flops=flops if direction == "forward" else flops * 5 // 2,
        bar=BARS[direction],
    )


def _bind(run: Callable[..., Tensor], *tensors: Tensor) -> Callable[[], object]:
    return lambda: run(*tensors)


def _backward(
    run: Callable[..., Tensor], leaves: list[Tensor], grad: Tensor
) -> Callable[[], object]:
    output = run(*leaves)
    return lambda: torch.autograd.grad(output, leaves, grad, retain_graph=True)


def cases() -> list[Case]:
    """Dense, grouped, windowed and capped, 2k to 16k."""
    found = []
    for direction in ("forward", "backward"):
        for length in (2048, 4096, 8192, 16384):
            found += [_case(direction, length, causal=causal) for causal in (False, True)]
        found += [
            _case(direction, 4096, dim=64, causal=False),
            _case(direction, 4096, dim=64),
            _case(direction, 16384, dim=64),
            _case(direction, 4096, dim=256),
            _case(direction, 8192, kv_heads=4),
            _case(direction, 16384, window=1024),
            _case(direction, 8192, softcap=30.0),
        ]
    return found
