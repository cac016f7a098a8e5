"""The kernel library's ops inside a compiled function: one graph, the same results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torchsmith
import torchsmith_kernels as tk

X, R, W = torch.randn(4, 64), torch.randn(4, 64), torch.randn(64)
TABLE, TARGET = torch.randn(32, 64), torch.tensor([1, 2, 3, 0])
Q, K, ANGLE = torch.randn(1, 4, 8, 16), torch.randn(1, 2, 8, 16), torch.randn(1, 8, 16)
IMAGE, CHANNEL = torch.randn(2, 8, 3, 3), torch.randn(8)
LOGP = X.log_softmax(-1)
QUERY = torch.randn(2, 4, 16)
CACHE = torch.randn(4, 16, 2, 16)
BLOCKS, LENGTHS = torch.tensor([[0, 1], [2, 3]]).int(), torch.tensor([20, 5]).int()

CALLS: dict[str, Callable[[], object]] = {
    "rms_norm": lambda: tk.rms_norm(X, (64,), W, 1e-6),
    "layer_norm": lambda: tk.layer_norm(X, (64,), W, W),
    "group_norm": lambda: tk.group_norm(IMAGE, 2, CHANNEL, CHANNEL),
    "add_rms_norm": lambda: tk.add_rms_norm(X, R, (64,), W),
    "add_layer_norm": lambda: tk.add_layer_norm(X, R, (64,), W, W),
    "swiglu": lambda: tk.swiglu(X, R),
    "geglu": lambda: tk.geglu(X, R, approximate="tanh"),
    "relu_squared": lambda: tk.relu_squared(X),
    "bias_gelu_dropout": lambda: tk.bias_gelu_dropout(X, W, 0.0),
    "softmax": lambda: tk.softmax(X, -1),
    "log_softmax": lambda: tk.log_softmax(X, 0),
    "cross_entropy": lambda: tk.cross_entropy(X, TARGET, label_smoothing=0.1),
    "fused_linear_cross_entropy": lambda: tk.fused_linear_cross_entropy(X, TABLE, TARGET),
    "kl_div": lambda: tk.kl_div(LOGP, LOGP * 2, reduction="batchmean", log_target=True),
    "js_div": lambda: tk.js_div(LOGP, LOGP * 2),
    "apply_rotary": lambda: tk.apply_rotary(Q, K, ANGLE, ANGLE),
    "flash_attention": lambda: tk.flash_attention(Q, K, K, is_causal=True, enable_gqa=True),
    "paged_attention": lambda: tk.paged_attention(QUERY, CACHE, CACHE, BLOCKS, LENGTHS),
    "matmul": lambda: tk.matmul(X, TABLE.t(), activation="gelu"),
    "embedding": lambda: tk.embedding(TARGET, TABLE, padding_idx=0),
    "dropout": lambda: tk.dropout(X, training=False),
}


def test_every_op_is_here() -> None:
    helpers = {"patch", "tune"}
    ops = {name for name in tk.__all__ if name[0].islower()} - helpers
    assert set(CALLS) == {name for name in ops if not name.endswith("_template")}


@pytest.mark.parametrize("name", list(CALLS))
def test_an_op_is_part_of_the_graph(name: str) -> None:
    want = CALLS[name]()
    got = torchsmith.compile(CALLS[name], fullgraph=True)()
    torch.testing.assert_close(got, want)
