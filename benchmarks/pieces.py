"""The fused parts alone, at 4096 x 4096: what fusion and code generation are worth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

Part = Callable[[Tensor], Tensor]


def layer_norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],))


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def gelu_chain(x: Tensor) -> Tensor:
    return F.gelu(x * 0.5 + 1.0) * x


def rms_norm_residual(x: Tensor) -> Tensor:
    y = x + x.sin()
    return y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)


PARTS: dict[str, Part] = {
    "layer norm": layer_norm,
    "softmax": softmax,
    "GELU chain": gelu_chain,
    "residual + RMS norm": rms_norm_residual,
}


def measure_pieces(device: str = "cpu", rounds: int = 15) -> list[dict[str, float | str]]:
    """Median milliseconds of each part, the three systems interleaved."""
    import torchsmith

    x = torch.randn(4096, 4096, device=device)
    rows: list[dict[str, float | str]] = []
    with torch.no_grad():
        for name, part in PARTS.items():
            systems: dict[str, Part] = {
                "eager": part,
                "torch.compile": torch.compile(part),
                "torchsmith": torchsmith.compile(part),
            }
            times: dict[str, list[float]] = {key: [] for key in systems}
            for fn in systems.values():
                fn(x)
                fn(x)
            for _ in range(rounds):
                for key, fn in systems.items():
                    begin = time.perf_counter()
                    fn(x)
                    if device == "cuda":
                        torch.cuda.synchronize()
                    times[key].append((time.perf_counter() - begin) * 1e3)
            rows.append({"part": name} | {k: statistics.median(v) for k, v in times.items()})
    return rows


if __name__ == "__main__":
    for row in measure_pieces():
        print(row)
