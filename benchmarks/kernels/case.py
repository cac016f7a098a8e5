"""One line of the kernel benchmark: an op at a shape, in several versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

#: Versions by name: ``ours``, ``eager`` (the fastest of aten, cuDNN and cuBLAS), ``compile``
#: (torch.compile of the eager formula), ``liger``. Each computes the same with the same inputs.
Versions = Mapping[str, Callable[[], object]]


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured.

    Attributes:
        op: public name in ``torchsmith_kernels``.
        shape: the shape as printed, such as ``8192 x 4096``.
        dtype: element type of the main input.
        direction: ``forward``, ``backward`` or ``both``.
        build: makes random inputs on the GPU and returns the versions; called once, its memory is
            free again after the case.
        bytes: the fewest bytes of device memory that the op must move, 0 where that says nothing.
        flops: floating point operations of matrix products, 0 for a memory-bound op.
        memory: whether peak memory is compared as well.
        bar: least accepted ratio of the best peer's time to ours.
    """

    op: str
    shape: str
    dtype: torch.dtype
    direction: str
    build: Callable[[], Versions]
    bytes: int = 0
    flops: int = 0
    memory: bool = False
    bar: float = 1.0


def compiled(function: Callable[..., object]) -> Callable[..., object]:
    """``torch.compile`` for one static shape, with nothing kept from earlier shapes."""
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)
