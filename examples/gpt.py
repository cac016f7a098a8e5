"""A GPT in about a hundred lines: causal attention, RMS norm, rotary positions, gated MLP.

Run it to compile the model and compare with eager::

    python examples/gpt.py
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes of the model; the defaults train or run in seconds on a laptop CPU."""

    vocab: int = 1024
    context: int = 256
    layers: int = 4
    heads: int = 8
    width: int = 256


class RMSNorm(nn.Module):
    """``x / rms(x) * weight``, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * y.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of ``x`` [batch, heads, time, head_width]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, time, width = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (t.view(batch, time, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        return self.out(y.transpose(1, 2).reshape(batch, time, width))


class Block(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(config.width), RMSNorm(config.width)
        self.attention = Attention(config)
        self.gate_up = nn.Linear(config.width, 8 * config.width, bias=False)
        self.down = nn.Linear(4 * config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), cos, sin)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class GPT(nn.Module):
    """Token ids [batch, time] in, logits [batch, time, vocab] out."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: Config | None = None) -> None:
        super().__init__()
        config = config or Config()
        self.embed = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        half = config.width // config.heads // 2
        angles = torch.outer(torch.arange(config.context), 10000 ** (-torch.arange(half) / half))
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, ids: Tensor) -> Tensor:
        time = ids.shape[1]
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, self.cos[:time], self.sin[:time])
        return self.head(self.norm(x))


def main() -> None:
    import torchsmith

    torch.manual_seed(0)
    model = GPT().eval()
    ids = torch.randint(0, 1024, (2, 128))
    with torch.no_grad():
        expected = model(ids)
        got = torchsmith.compile(model, fullgraph=True)(ids)
    error = (got - expected).norm() / expected.norm()
    print(f"logits {tuple(got.shape)}, relative error {error:.1e}")
    assert error < 1e-5


if __name__ == "__main__":
    main()
