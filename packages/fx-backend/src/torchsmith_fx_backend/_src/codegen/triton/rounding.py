"""Which values of a kernel are rounded to 16 bits before anything can tell how exact they are."""

from __future__ import annotations

import torch

from torchsmith_fx_backend._src.loops.ir import Compute, Kernel, Op, Store
from torchsmith_fx_backend._src.loops.verify import uses

_NARROW = (torch.float16, torch.bfloat16)
_SCALED = (Op.MUL, Op.NEG, Op.ABS)  # which keep a relative error as it is


def rounded_away(kernel: Kernel) -> frozenset[int]:
    """Entries of the body of float32 that end, scaled at most, in numbers of 16 bits alone: an
    error in their last bits is 2**-15 of what is rounded then."""
    body = kernel.body
    seen: set[int] = set()  # that something reads which tells their last bits
    used: set[int] = set()
    for number in reversed(range(len(body))):
        node = body[number]
        used.update(uses(node))
        if isinstance(node, Compute) and node.op is Op.CAST and node.dtype in _NARROW:
            continue
        if isinstance(node, Store) and kernel.args[node.arg].dtype in _NARROW:
            seen.update(each for each in uses(node) if each != node.value)
            continue
        scales = isinstance(node, Compute) and node.op in _SCALED and number not in seen
        if not (scales and number in used):
            seen.update(uses(node))
    return frozenset(
        number
        for number in used - seen
        if isinstance(node := body[number], Compute) and node.dtype is torch.float32
    )
