"""How an element-wise kernel walks its tensors: as one flat run, or as rows at a distance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src.sizes import row_stride


class Layout(NamedTuple):
    """The common shape in which all tensors of a call are read and written.

    Attributes:
        rows: number of rows; 1 when everything is one flat run.
        width: elements per row. Results are dense: their rows lie ``width`` apart.
        inputs: the inputs, copied only where their elements are not at regular places.
        strides: elements between the rows of each input.
    """

    rows: int
    width: int
    inputs: Sequence[Tensor]
    strides: Sequence[int]


def plan(output: Tensor, *inputs: Tensor) -> Layout:
    """The layout of a call whose result is ``output``, a dense tensor of the inputs' shape."""
    strides = output.stride()
    for tensor in inputs:
        if tensor.stride() != strides:
            break
    else:
        return Layout(1, output.numel(), inputs, (0,) * len(inputs))
    if not output.is_contiguous() or output.dim() == 0:
        same = [t if t.stride() == strides else torch.empty_like(output).copy_(t) for t in inputs]
        return Layout(1, output.numel(), same, (0,) * len(inputs))
    width = output.shape[-1]
    rows = output.numel() // width if width else 0
    found: list[Tensor] = []
    steps: list[int] = []
    for tensor in inputs:
        step = row_stride(tensor, width, 1)
        found.append(tensor.contiguous() if step is None else tensor)
        steps.append(width if step is None else step)
    if rows == 1 or all(step == width for step in steps):
        return Layout(1, output.numel(), found, (0,) * len(inputs))
    return Layout(rows, width, found, steps)
