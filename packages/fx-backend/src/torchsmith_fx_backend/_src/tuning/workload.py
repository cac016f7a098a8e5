"""What one launch of a kernel works on: buffers of the launch's own sizes, never the user's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchsmith_fx_backend._src.loops.index import Index, evaluate
from torchsmith_fx_backend._src.loops.ir import Kernel, Position
from torchsmith_fx_backend._src.schedule.plan import Launch

_MOST_PLAIN = 100  # integers that are no positions are below this


@dataclass(frozen=True, slots=True)
class Workload:
    """A launch with a number for everything.

    Attributes:
        kernel: the kernel, with positions that cannot raise: what is outside becomes the nearest.
        lengths: elements of each buffer.
        sizes: value of each of the kernel's symbols, in its order.
        device: where it runs.
    """

    kernel: Kernel
    lengths: tuple[int, ...]
    sizes: Mapping[str, Any]
    device: torch.device

    @staticmethod
    def of(step: Launch, hints: Mapping[str, Any]) -> Workload | None:
        """``step`` at its likely sizes; None where these are not known, or there is no point."""
        kernel = step.kernel
        try:
            numbers = step.numbers or kernel.symbols
            sizes = {name: hints[number] for name, number in zip(kernel.symbols, numbers)}
            lengths = tuple(_number(size, hints) for size in step.sizes)
            extents = [_number(extent, hints) for extent in kernel.ranges]
            extents += [_number(n.extent, hints) for n in kernel.body if isinstance(n, Position)]
        except KeyError:
            return None
        if min((*lengths, *extents), default=0) < 1 or len(lengths) != len(kernel.args):
            return None
        body = tuple(replace(n, fault=None) if isinstance(n, Position) else n for n in kernel.body)
        return Workload(replace(kernel, body=body), lengths, sizes, step.device)

    @property
    def bytes(self) -> int:
        """Of all buffers."""
        return sum(n * arg.dtype.itemsize for n, arg in zip(self.lengths, self.kernel.args))

    def buffers(self) -> list[torch.Tensor]:
        """Fresh tensors for a launch; integers are positions where the kernel has any."""
        generator = torch.Generator(self.device).manual_seed(0)  # the user's own stays as it is
        extents = (n.extent for n in self.kernel.body if isinstance(n, Position))
        most = min((_number(extent, self.sizes) for extent in extents), default=_MOST_PLAIN)
        made = []
        for length, arg in zip(self.lengths, self.kernel.args):
            buffer = torch.zeros(length, dtype=arg.dtype, device=self.device)
            if arg.read and arg.dtype.is_floating_point and arg.dtype.itemsize > 1:
                buffer.uniform_(generator=generator)
            elif arg.read and arg.dtype in _FILLED:
                buffer.random_(0, min(most, _FILLED[arg.dtype]), generator=generator)
            made.append(buffer)
        return made


# The dtypes that ``random_`` fills, each with a bound of what it holds.
_FILLED = {torch.bool: 2, torch.uint8: 128, torch.int8: 127} | dict.fromkeys(
    (torch.int16, torch.int32, torch.int64), 2**15 - 1
)


def _number(index: Index, sizes: Mapping[str, Any]) -> int:
    return int(evaluate(index, (), sizes))
