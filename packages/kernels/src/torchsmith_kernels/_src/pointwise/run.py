"""Launching element-wise kernels; what follows from shapes and strides is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.pointwise.config import Case, Config, case_of, tile
from torchsmith_kernels._src.pointwise.layout import plan

Configs = tables.Table[Case, Config]
#: A kernel's arguments between its tensors and its sizes, and its constants for a shape and tile:
#: of ``(rows, width, columns)``.
Extra = Callable[[int, int, int], tuple[tuple[launch.Argument, ...], dict[str, Any]]]

_known: tables.Remembered[launch.Prepared] = tables.Remembered()


def run(
    kernel: launch.Kernel,
    case: str,
    table: Configs,
    inputs: tuple[Tensor, ...],
    outputs: tuple[Tensor, ...],
    extra: Extra,
    key: tuple[object, ...] = (),
    *,
    seed: tuple[Tensor, ...] = (),
    words: tuple[launch.Word, ...] = (),
    config: Config | None = None,
) -> None:
    """Launches a kernel over tensors of one shape.

    Args:
        kernel: takes inputs, outputs, extra arguments, rows, width and the inputs' row strides;
            its constants are ``FLAT``, ``HEIGHT``, ``COLUMNS`` and extra ones before and after.
        case: the kernel's name in ``table``.
        table: tile sizes.
        inputs: strided tensors.
        outputs: tensors with the strides of ``torch.empty_like`` of one of the inputs.
        extra: further arguments and constants.
        key: what ``extra`` depends on.
        seed: a tensor among the extra arguments that differs from call to call.
        words: the first words among the extra arguments.
        config: overrides the table, for tuning.
    """
    first = outputs[0]
    key = (
        kernel, key, first.dtype, first.device, first.shape, *[t.stride() for t in inputs]
    )  # fmt: skip
    if config is None:
        prepared = _known.get(key)
        if prepared is not None:
            prepared(*inputs, *outputs, *seed, words=words)
            return
    layout = plan(first, *inputs)
    rows, width = layout.rows, layout.width
    chosen = config
    if chosen is None:
        chosen = table.choose(
            case_of(case, first.dtype, rows == 1), launch.capability(first.device)
        )
    height, columns, programs = tile(rows, width, chosen.block)
    arguments, constants = extra(rows, width, columns)
    prepared = launch.Prepared(
        kernel,
        (programs, 1, 1),
        (*layout.inputs, *outputs, *arguments, rows, width, *layout.strides),
        {"FLAT": rows == 1, "HEIGHT": height, "COLUMNS": columns, **constants},
        chosen.num_warps,
    )
    prepared(*layout.inputs, *outputs, *seed, words=words)
    copied = any(a is not b for a, b in zip(inputs, layout.inputs, strict=True))
    if config is None and not copied:
        _known.keep(key, prepared)
