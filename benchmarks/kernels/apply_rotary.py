"""Rotary embedding of queries and keys as Hugging Face models hold them, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torchsmith_kernels as tk
from case import Case, Versions, compiled

DTYPE = torch.bfloat16
#: Batch, sequence, heads of queries and of keys, size of a head.
SHAPES = [
    (1, 1024, 32, 8, 128),
    (2, 8192, 32, 8, 128),
    (4, 4096, 32, 32, 128),
    (1, 16384, 28, 4, 128),
    (8, 4096, 32, 8, 64),
    (2, 8192, 16, 8, 256),
]


def _rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def hugging_face(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    """``apply_rotary_pos_emb`` of Llama, Qwen and Mistral."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return q * cos + _rotate_half(q) * sin, k * cos + _rotate_half(k) * sin


def _build(shape: tuple[int, ...], direction: str) -> Versions:
    batch, length, q_heads, k_heads, dim = shape

    def heads(count: int) -> torch.Tensor:
        x = torch.randn(batch, length, count, dim, device="cuda", dtype=DTYPE)
        return x.transpose(1, 2)

    q, k = heads(q_heads), heads(k_heads)
    angle = torch.rand(batch, length, dim // 2, device="cuda") * 6
    angle = torch.cat((angle, angle), -1)
    cos, sin = angle.cos().to(DTYPE), angle.sin().to(DTYPE)
    functions: dict[str, Callable[..., Any]] = {
        "ours": tk.apply_rotary,
        "eager": hugging_face,
        "compile": compiled(hugging_face),
    }
    liger: Callable[..., Any] | None = None
    if find_spec("liger_kernel") is not None:
        from liger_kernel.transformers.rope import liger_rotary_pos_emb

        liger = liger_rotary_pos_emb
    if direction == "forward":
        versions = {name: partial(f, q, k, cos, sin) for name, f in functions.items()}
        if liger is not None:
            # Turns its inputs themselves, so it gets its own.
            versions["liger"] = partial(liger, q.clone(), k.clone(), cos, sin)
        return versions
    q.requires_grad_()
    k.requires_grad_()
    upstream = [heads(q_heads), heads(k_heads)]

    def backward(function: Callable[..., Any], grads: list[torch.Tensor]) -> Callable[[], object]:
        results = function(q, k, cos, sin)
        return lambda: torch.autograd.grad(results, [q, k], grads, retain_graph=True)

    versions = {name: backward(f, upstream) for name, f in functions.items()}
    if liger is not None:
        own = [x.detach().clone().requires_grad_() for x in (q, k)]
        results = liger(own[0] * 1, own[1] * 1, cos, sin)
        grads = [grad.clone() for grad in upstream]
        versions["liger"] = lambda: torch.autograd.grad(results, own, grads, retain_graph=True)
    return versions


def cases() -> list[Case]:
    """All lines of the table."""
    found = []
    for direction in ("forward", "backward"):
        for shape in SHAPES:
            batch, length, q_heads, k_heads, dim = shape
            moved = batch * length * dim * (2 * (q_heads + k_heads) + 1)
            found.append(
                Case(
                    op="apply_rotary",
                    shape=f"{batch} x {length}, {q_heads}/{k_heads} heads of {dim}",
                    dtype=DTYPE,
                    direction=direction,
                    build=partial(_build, shape, direction),
                    bytes=moved * DTYPE.itemsize,
                )
            )
    return found
