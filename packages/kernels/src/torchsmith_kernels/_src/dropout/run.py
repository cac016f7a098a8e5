"""Launching the dropout kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.dropout.config import table
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.pointwise.config import Case, Config, tile
from torchsmith_kernels._src.pointwise.layout import plan
from torchsmith_kernels._src.sizes import compute_dtype

kernel = launch.Kernel("torchsmith_kernels._src.dropout.kernel", "dropout_kernel")


def dropout(input: Tensor, p: float, stream: random.Stream, config: Config | None = None) -> Tensor:
    """The kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(input)
    layout = plan(output, input)
    rows, width = layout.rows, layout.width
    if config is None:
        case = Case("forward", input.dtype, rows == 1)
        config = table.choose(case, launch.capability(input.device))
    height, columns, programs = tile(rows, width, config.block)
    kernel(
        (programs, 1, 1),
        (
            *layout.inputs,
            output,
            *random.arguments(stream),
            random.threshold(p),
            random.scale(p),
            rows,
            width,
            *layout.strides,
        ),
        {
            "COMPUTE": launch.triton_dtype(compute_dtype(input.dtype)),
            "FLAT": rows == 1,
            "HEIGHT": height,
            "COLUMNS": columns,
            "ALIGNED": rows == 1 or width % 4 == 0,
        },
        config.num_warps,
    )
    return output
