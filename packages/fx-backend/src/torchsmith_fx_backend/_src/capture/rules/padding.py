"""Reflection at the ends of rows as slices side by side, and its gradient, on a CPU.

Loops take in what is around them, and eager's own kernels walk a point at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchsmith_guards import holds, is_contiguous

from torchsmith_fx_backend._src.capture.rules.registry import (
    FLOATS,
    Mode,
    Tensor,
    add,
    aten,
    rule,
    to,
    up,
)


def _sides(x: Tensor, padding: Sequence[Any]) -> Iterator[tuple[int, int, int]]:
    """Dimension, room before and room behind, of each that is padded, last one first."""
    for number in range(len(padding) // 2):
        before, behind = padding[2 * number : 2 * number + 2]
        if before or behind:
            yield x.dim() - 1 - number, before, behind


def _applies(padding: Sequence[Any], *tensors: Tensor) -> bool:
    """Whether slices give eager's layout and arithmetic."""
    if not any(padding) or not all(type(n) is int and n >= 0 for n in padding):
        return False
    return all(
        x.device.type == "cpu" and x.dtype in FLOATS and is_contiguous(x) and not holds(x.shape, 0)
        for x in tensors
    )


def _mirrored(m: Mode, x: Tensor, dim: int, start: Any, length: int) -> Tensor:
    """``length`` elements from ``start``, backwards."""
    part = m.tensor(aten.slice.Tensor, x, dim, start, start + length)
    return m.tensor(aten.flip.default, part, [dim])


@rule(*(getattr(aten, f"reflection_pad{n}d").default for n in (1, 2, 3)))
def _reflect(m: Mode, x: Tensor, padding: Sequence[Any]) -> Any:
    if not _applies(padding, x):
        return NotImplemented
    for dim, before, behind in _sides(x, padding):
        parts = [_mirrored(m, x, dim, 1, before)] if before else []
        parts.append(x)
        if behind:
            parts.append(_mirrored(m, x, dim, x.shape[dim] - 1 - behind, behind))
        x = m.tensor(aten.cat.default, parts, dim)
    return x


@rule(*(getattr(aten, f"reflection_pad{n}d_backward").default for n in (1, 2, 3)))
def _reflect_backward(m: Mode, grad: Tensor, x: Tensor, padding: Sequence[Any]) -> Any:
    if not _applies(padding, grad, x) or grad.dtype != x.dtype:
        return NotImplemented
    grad = up(m, grad)
    for dim, before, behind in reversed(list(_sides(x, padding))):
        size = x.shape[dim]
        total = m.tensor(aten.slice.Tensor, grad, dim, before, before + size)
        # What was mirrored begins beside the end: once in from it.
        for start, length, low in ((0, before, 1), (before + size, behind, size - 1 - behind)):
            if length:
                part = _mirrored(m, grad, dim, start, length)
                room = [0, 0] * (x.dim() - 1 - dim) + [low, size - low - length]
                total = add(m, total, m.tensor(aten.constant_pad_nd.default, part, room, 0.0))
        grad = total
    return to(m, grad, x.dtype)
