"""Group norm, contiguous and channels last, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
import torchsmith_kernels as tk
from case import Case, Versions, compiled

DTYPE = torch.bfloat16
EPS = 1e-5
GROUPS = 32
#: The shapes of diffusion models' convolution blocks and decoders.
SHAPES = [
    ((2, 320, 64, 64), False),
    ((256, 1280, 8, 8), False),
    ((128, 1280, 16, 16), False),
    ((64, 640, 32, 32), False),
    ((64, 320, 64, 64), False),
    ((2, 128, 512, 512), False),
    ((32, 128, 256, 256), False),
    ((128, 1280, 16, 16), True),
    ((64, 320, 64, 64), True),
]


def _build(shape: tuple[int, ...], last: bool, direction: str) -> Versions:
    x = torch.randn(shape, device="cuda", dtype=DTYPE)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    channels = shape[1]
    weight, bias = (torch.randn(channels, device="cuda", dtype=DTYPE) for _ in range(2))

    def eager(x: Any, weight: Any, bias: Any) -> Any:
        return F.group_norm(x, GROUPS, weight, bias, EPS)

    functions: dict[str, Callable[..., Any]] = {
        "ours": lambda x, weight, bias: tk.group_norm(x, GROUPS, weight, bias, EPS),
        "eager": eager,
        "compile": compiled(eager),
    }
    if find_spec("liger_kernel") is not None and not last:
        from liger_kernel.ops.group_norm import LigerGroupNormFunction

        functions["liger"] = lambda x, weight, bias: LigerGroupNormFunction.apply(
            x, weight, bias, channels, GROUPS, EPS
        )
    tensors = [x, weight, bias]
    if direction == "forward":
        return {name: partial(function, *tensors) for name, function in functions.items()}
    tensors = [tensor.requires_grad_() for tensor in tensors]
    upstream = torch.randn_like(x)

    def backward(function: Callable[..., Any]) -> Callable[[], object]:
        y = function(*tensors)
        return lambda: torch.autograd.grad(y, tensors, upstream, retain_graph=True)

    return {name: backward(function) for name, function in functions.items()}


def cases() -> list[Case]:
    """All lines of the table."""
    found = []
    for direction, streams in (("forward", 2), ("backward", 3)):
        for shape, last in SHAPES:
            size = DTYPE.itemsize
            for extent in shape:
                size *= extent
            name = " x ".join(str(extent) for extent in shape) + (" last" if last else "")
            build = partial(_build, shape, last, direction)
            found.append(Case("group_norm", name, DTYPE, direction, build, bytes=streams * size))
    return found
