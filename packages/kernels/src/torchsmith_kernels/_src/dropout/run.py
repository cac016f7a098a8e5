"""Launching the dropout kernel."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.dropout.config import table
from torchsmith_kernels._src.pointwise import random
from torchsmith_kernels._src.pointwise.config import Config
from torchsmith_kernels._src.pointwise.run import run

kernel = launch.Kernel("torchsmith_kernels._src.dropout.kernel", "dropout_kernel")


def dropout(input: Tensor, p: float, stream: random.Stream, config: Config | None = None) -> Tensor:
    """The kernel; ``config`` overrides the table, for tuning."""
    seed, *numbers = random.arguments(stream)

    def extra(
        rows: int, width: int, columns: int
    ) -> tuple[tuple[launch.Argument, ...], dict[str, Any]]:
        wide, threshold, scale = random.law(p)
        aligned = columns >= 8 and (rows == 1 or width % 8 == 0)
        return (seed, *numbers, threshold, scale), {"ALIGNED": aligned, "WIDE": wide}

    output = torch.empty_like(input)
    run(
        kernel,
        "forward",
        table,
        (input,),
        (output,),
        extra,
        (p, seed is None),
        seed=() if seed is None else (seed,),
        words=tuple(numbers),
        config=config,
    )
    return output
