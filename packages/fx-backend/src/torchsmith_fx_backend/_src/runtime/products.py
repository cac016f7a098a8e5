"""Matrix products that keep the precision of float32, whatever is allowed for those of a program.

They stand where a program multiplies and sums by itself, and TF32 or bfloat16 inside products
(``torch.set_float32_matmul_precision``) is no permission to round there. The switches may change
between two calls, so that they are read at each.
"""

from __future__ import annotations

from typing import Any

import torch

_DEFINED: Any = torch.library.Library("torchsmith_fx_backend", "FRAGMENT")  # type: ignore[no-untyped-call]
_DEFINED.define("exact_matmul(Tensor a, Tensor b) -> Tensor")
_DEFINED.define("exact_matmul.out(Tensor a, Tensor b, *, Tensor(a!) out) -> Tensor(a!)")


def rounds(device: str) -> bool:
    """Whether products of float32 on this type of device may round their operands now."""
    switches = torch.backends.cuda if device == "cuda" else torch.backends.mkldnn
    return switches.matmul.fp32_precision not in ("ieee", "none")


def _exact_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.float32 and rounds(a.device.type):
        return torch.matmul(a.double(), b.double()).float()
    return torch.matmul(a, b)


def _exact_matmul_into(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if a.dtype is torch.float32 and rounds(a.device.type):
        return out.copy_(torch.matmul(a.double(), b.double()))
    return torch.matmul(a, b, out=out)


_DEFINED.impl("exact_matmul", _exact_matmul, "CompositeExplicitAutograd")
_DEFINED.impl("exact_matmul.out", _exact_matmul_into, "CompositeExplicitAutograd")
EXACT_MATMUL: torch._ops.OpOverload = torch.ops.torchsmith_fx_backend.exact_matmul.default
