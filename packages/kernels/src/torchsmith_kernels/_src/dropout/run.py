"""Launching the dropout kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.dropout.config import table
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.pointwise.config import Config, case_of, tile
from torchsmith_kernels._src.pointwise.layout import plan

kernel = launch.Kernel("torchsmith_kernels._src.dropout.kernel", "dropout_kernel")


def dropout(input: Tensor, p: float, stream: random.Stream, config: Config | None = None) -> Tensor:
    """The kernel; ``config`` overrides the table, for tuning."""
    output = torch.empty_like(input)
    layout = plan(output, input)
    rows, width = layout.rows, layout.width
    if config is None:
        case = case_of("forward", input.dtype, rows == 1)
        config = table.choose(case, launch.capability(input.device))
    height, columns, programs = tile(rows, width, config.block)
    wide, threshold, scale = random.law(p)
    kernel(
        (programs, 1, 1),
        (
            *layout.inputs,
            output,
            *random.arguments(stream),
            threshold,
            scale,
            rows,
            width,
            *layout.strides,
        ),
        {
            "FLAT": rows == 1,
            "HEIGHT": height,
            "COLUMNS": columns,
            "ALIGNED": columns >= 8 and (rows == 1 or width % 8 == 0),
            "WIDE": wide,
        },
        config.num_warps,
    )
    return output
