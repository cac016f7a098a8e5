"""Launching the kernels of paged decode attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from torchsmith_kernels._src import launch, tables
from torchsmith_kernels._src.paged_attention.config import Case, Config, splits, table
from torchsmith_kernels._src.sizes import ceil_div, next_power_of_2

_KERNELS = "torchsmith_kernels._src.paged_attention.kernel"
split_kernel = launch.Kernel(_KERNELS, "split_kernel")
combine_kernel = launch.Kernel(_KERNELS, "combine_kernel")

LOG2E = 1.4426950408889634


@dataclass(frozen=True, slots=True)
class Plan:
    """What a call needs but its tensors; all calls with like tensors share one.

    Attributes:
        config: tiles of the split kernel.
        parts: of each sequence.
        grid: of the split kernel.
        strides: its arguments after the tensors and the scale.
        constants: its compile-time arguments.
        combine_constants: those of the kernel that adds the parts.
    """

    config: Config
    parts: int
    grid: tuple[int, int, int]
    strides: tuple[int, ...]
    constants: dict[str, object]
    combine_constants: dict[str, object]


#: Plans of calls seen before, by ``key``.
plans: tables.Remembered[Plan] = tables.Remembered()


def key(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> tuple[object, ...]:
    """All that a call's plan and the checks of its arguments depend on."""
    found: list[object] = []
    for tensor in (query, key_cache, value_cache, block_tables, seq_lens):
        found += (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
    return tuple(found)


def forward(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    config: Config | None = None,
    parts: int | None = None,
) -> Tensor:
    """The kernels; ``config`` and ``parts`` override the choice, for tuning and tests."""
    made = plan(query, key_cache, value_cache, block_tables, config, parts)
    return execute(made, query, key_cache, value_cache, block_tables, seq_lens, scale)


def plan(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    config: Config | None = None,
    parts: int | None = None,
) -> Plan:
    """The plan of a call as of ``forward``; the last dimensions of all are contiguous."""
    batch, heads, width = query.shape
    page, kv_heads = key_cache.size(1), key_cache.size(2)
    group = heads // kv_heads
    case = Case.of(width, group, query.dtype)
    if config is None:
        config = table.choose(case, launch.capability(query.device))
    programs = batch * kv_heads * ceil_div(group, case.group)
    room = block_tables.size(1) * page
    if parts is None:
        parts = splits(case, config, programs, room, launch.sm_count(query.device))
    return Plan(
        config,
        parts,
        (programs * parts, 1, 1),
        (
            *query.stride()[:2],
            *key_cache.stride()[:3],
            *value_cache.stride()[:3],
            block_tables.stride(0),
            kv_heads,
            parts,
            room,
        ),
        {
            "GROUP": group,
            "PAGE": page,
            "WIDTH": width,
            "SPLIT": parts > 1,
            "PRECISION": "ieee",
            "BLOCK_G": case.group,
            "BLOCK_T": config.block_t,
            "BLOCK_D": case.width,
            "STAGES": config.num_stages,
        },
        {"WIDTH": width, "BLOCK_S": next_power_of_2(parts), "BLOCK_D": case.width},
    )


def execute(
    plan: Plan,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    """Runs a plan on tensors like those it was made for."""
    config, parts = plan.config, plan.parts
    batch, heads, width = query.shape
    device = query.device
    output = torch.empty((batch, heads, width), dtype=query.dtype, device=device)
    partial, sums = output, None
    if parts > 1:
        shape = (batch, heads, parts, width)
        partial = torch.empty(shape, dtype=torch.float32, device=device)
        sums = torch.empty(shape[:3], dtype=torch.float32, device=device)
    tensors = (query, key_cache, value_cache, block_tables, seq_lens, partial, sums)
    split_kernel(
        plan.grid,
        (*tensors, scale * LOG2E, *plan.strides),
        plan.constants,
        config.num_warps,
        config.num_stages,
    )
    if parts > 1:
        combine_kernel(
            (batch * heads, 1, 1),
            (partial, sums, seq_lens, output, heads, parts),
            plan.combine_constants,
            4,
        )
    return output
