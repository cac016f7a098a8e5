"""CPU time of one call from eager, per op: tensors so small that the device is never behind."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torchsmith_kernels as tk


def call_us(function: Callable[[], object], calls: int = 100, batches: int = 15) -> float:
    """Median microseconds of a call; the queue is drained between batches that fit into it."""
    for _ in range(10):
        function()
    times = []
    for _ in range(batches):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return 1e6 * statistics.median(times)


def calls() -> dict[str, Callable[[], object]]:
    """One small call per op."""
    bf16 = torch.bfloat16
    x = torch.randn(4, 128, device="cuda", dtype=bf16)
    w, b = (torch.randn(128, device="cuda", dtype=bf16) for _ in range(2))
    image = torch.randn(2, 32, 8, 8, device="cuda", dtype=bf16)
    channel = torch.randn(32, device="cuda", dtype=bf16)
    logp = x.float().log_softmax(-1)
    target = torch.arange(4, device="cuda")
    square = torch.randn(128, 128, device="cuda", dtype=bf16)
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=bf16)
    angle = torch.randn(1, 64, 64, device="cuda", dtype=bf16)
    cache = torch.randn(8, 16, 2, 64, device="cuda", dtype=bf16)
    blocks = torch.arange(4, device="cuda", dtype=torch.int32).reshape(2, 2)
    lengths = torch.tensor([20, 32], device="cuda", dtype=torch.int32)
    return {
        "rms_norm": lambda: tk.rms_norm(x, (128,), w, 1e-6),
        "layer_norm": lambda: tk.layer_norm(x, (128,), w, b),
        "group_norm": lambda: tk.group_norm(image, 4, channel, channel),
        "add_rms_norm": lambda: tk.add_rms_norm(x, x, (128,), w, 1e-6),
        "add_layer_norm": lambda: tk.add_layer_norm(x, x, (128,), w, b),
        "swiglu": lambda: tk.swiglu(x, x),
        "geglu": lambda: tk.geglu(x, x),
        "relu_squared": lambda: tk.relu_squared(x),
        "bias_gelu_dropout": lambda: tk.bias_gelu_dropout(x, w),
        "softmax": lambda: tk.softmax(x, -1),
        "log_softmax": lambda: tk.log_softmax(x, -1),
        "cross_entropy": lambda: tk.cross_entropy(x, target),
        "fused_linear_cross_entropy": lambda: tk.fused_linear_cross_entropy(x, square, target),
        "kl_div": lambda: tk.kl_div(logp, logp, reduction="sum", log_target=True),
        "js_div": lambda: tk.js_div(logp, logp),
        "apply_rotary": lambda: tk.apply_rotary(q, q, angle, angle),
        "flash_attention": lambda: tk.flash_attention(q, q, q),
        "paged_attention": lambda: tk.paged_attention(q[0, :, :2], cache, cache, blocks, lengths),
        "matmul": lambda: tk.matmul(square, square),
        "matmul, relu": lambda: tk.matmul(square, square, w, "relu"),
        "embedding": lambda: tk.embedding(target, square),
        "dropout": lambda: tk.dropout(x),
    }


def overheads() -> dict[str, float]:
    """Microseconds per call; ``recording`` means that an input requires a gradient."""
    found = {}
    with torch.no_grad():
        for name, call in calls().items():
            if hasattr(tk, name.partition(",")[0]):
                found[name] = round(call_us(call), 1)
    x = torch.randn(4, 128, device="cuda").requires_grad_()
    found["relu_squared, recording"] = round(call_us(lambda: tk.relu_squared(x)), 1)
    found["eager silu, for scale"] = round(call_us(lambda: torch.nn.functional.silu(x)), 1)
    return found
