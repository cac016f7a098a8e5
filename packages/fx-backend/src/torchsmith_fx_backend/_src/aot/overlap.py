"""Which writes eager refuses because of memory that overlaps, and which depend on its order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchsmith_guards as guards

from torchsmith_fx_backend._src.loops.sizes import overlapping

FEW = 4096  # elements that are looked at one by one


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements may share one place. With symbolic sizes only a stride of 0 counts.

    Eager refuses to write where a stride is 0; elsewhere each write sees the ones before it.
    """
    axes = list(zip(tensor.stride(), tensor.shape))
    if all(type(n) is int for axis in axes for n in axis):
        return overlapping(axes)
    return any(
        type(stride) is int and stride == 0 and (type(size) is not int or size > 1)
        for stride, size in axes
    )


def same_place(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the elements of two tensors of one storage are the same, in the same order."""
    return a is b or guards.same_sizes(
        (*a.shape, *a.stride(), a.storage_offset()), (*b.shape, *b.stride(), b.storage_offset())
    )


def refused_by_eager(written: torch.Tensor, read: torch.Tensor, pointwise: bool) -> bool:
    """Whether eager refuses to write ``written`` while it reads ``read``, of the same storage.

    Eager compares extents of dense tensors only and lets everything else pass.

    Args:
        written: the target.
        read: another operand.
        pointwise: the operator may read the very elements that it writes.
    """
    if _Places.of(written) is None or _Places.of(read) is None:
        return True  # only the data tells
    if written.numel() == 0 or read.numel() == 0 or not (is_dense(written) and is_dense(read)):
        return False
    start, other = _extent(written), _extent(read)
    if start == other:
        return not pointwise or written.stride() != read.stride()
    return bool(start[0] < other[1] and other[0] < start[1])


def order_matters(written: torch.Tensor, read: torch.Tensor, pointwise: bool) -> bool:
    """Whether eager reads elements that the same call has written, or will write.

    That is so for tensors with holes or repetitions, which eager does not refuse: what comes out
    depends on the order in which its kernel walks. Arguments as for ``refused_by_eager``.
    """
    if is_dense(written) and is_dense(read):
        return False
    one, other = _Places.of(written), _Places.of(read)
    if one is None or other is None:
        return True
    return not (pointwise and one == other) and one.meet(other)


@dataclass(frozen=True, slots=True)
class _Places:
    """Which elements of its storage a tensor lies at."""

    start: int
    axes: tuple[tuple[int, int], ...]  # stride and size, axes of one element left out

    @staticmethod
    def of(tensor: torch.Tensor) -> _Places | None:
        """None where a size depends on data."""
        numbers = [tensor.storage_offset(), *tensor.stride(), *tensor.shape]
        hints = [n if type(n) is int else guards.hint_of(n) for n in numbers]
        known = [n for n in hints if isinstance(n, int)]
        if len(known) < len(hints):
            return None
        steps, sizes = known[1 : 1 + tensor.dim()], known[1 + tensor.dim() :]
        return _Places(known[0], tuple((s, n) for s, n in zip(steps, sizes) if n != 1))

    def end(self) -> int:
        return self.start + sum(stride * (size - 1) for stride, size in self.axes)

    def all(self) -> set[int]:
        walks = (range(0, stride * size, stride) if stride else (0,) for stride, size in self.axes)
        return {self.start + sum(place) for place in itertools.product(*walks)}

    def meet(self, other: _Places) -> bool:
        """Whether an element belongs to both; True when that would take long to find out."""
        if self.end() < other.start or other.end() < self.start:
            return False
        if max(math.prod(n for _, n in p.axes) for p in (self, other)) <= FEW:
            return not self.all().isdisjoint(other.all())
        if sorted(self.axes) != sorted(other.axes):
            return True
        return _reached(other.start - self.start, sorted(self.axes, reverse=True))


def _reached(distance: int, axes: Sequence[tuple[int, int]]) -> bool:
    """Whether steps along ``axes``, forth or back, come that far; strides are in falling order."""
    if not axes or axes[0][0] == 0:
        return distance == 0
    (stride, size), rest = axes[0], axes[1:]
    near = distance // stride
    return any(
        abs(steps) < size and _reached(distance - steps * stride, rest)
        for steps in (near, near + 1)
    )


def _extent(tensor: torch.Tensor) -> tuple[Any, Any]:
    """First and last byte of a dense tensor, relative to its storage."""
    start = tensor.storage_offset() * tensor.element_size()
    return start, start + tensor.numel() * tensor.element_size()


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie in one piece, each at a place of its own."""
    expected: Any = 1
    for stride, size in sorted((s, n) for n, s in zip(tensor.shape, tensor.stride()) if n != 1):
        if stride != expected:
            return False
        expected *= size
    return True
