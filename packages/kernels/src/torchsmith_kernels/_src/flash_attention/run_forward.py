"""Launching the forward kernel."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.flash_attention import philox
from torchsmith_kernels._src.flash_attention.call import Call, precision, rows, strides
from torchsmith_kernels._src.flash_attention.config import Config, case, table
from torchsmith_kernels._src.sizes import ceil_div, new_like

forward_kernel = launch.Kernel(
    "torchsmith_kernels._src.flash_attention.kernel_forward", "forward_kernel"
)


class ScoreArguments(NamedTuple):
    """What all kernels take to change scores."""

    bias: Tensor | None
    bias_strides: tuple[int, ...]
    slopes_batch: int
    #: scale, multiplier, softcap, threshold, keep_scale, left, right
    numbers: tuple[float | None, ...]
    scaled: bool
    plain: bool


def score_arguments(call: Call) -> ScoreArguments:
    """What all kernels take to change scores."""
    mask = call.attn_mask
    if mask is not None and mask.dtype is torch.float64:
        # Beside a float64 tensor the kernels' numbers would be float64 too.
        call = call._replace(attn_mask=mask.float())
    bias, slopes = call.bias(), call.alibi_slopes
    changed = bias is not None or slopes is not None or bool(call.softcap or call.score_mod)
    # Only a positive factor may wait until after the maximum.
    scaled = changed or call.scale <= 0
    dropout = call.dropout_seed is not None
    return ScoreArguments(
        bias,
        (0, 0, 0, 0) if bias is None else bias.stride(),
        0 if slopes is None or slopes.dim() == 1 else slopes.shape[1],
        (
            call.scale,
            math.log2(math.e) * (1.0 if scaled else call.scale),
            call.softcap or None,
            philox.threshold(call.dropout_p) if dropout else None,
            call.keep_scale if dropout else None,
            call.left,
            call.right,
        ),
        scaled,
        not (scaled or dropout),
    )


def lse_strides(call: Call) -> tuple[int, int]:
    """Elements between sequences (0 in a packed batch) and heads of ``lse``."""
    if call.packed:
        return 0, call.query.shape[0]
    return call.query.shape[1] * call.query.shape[2], call.query.shape[2]


class Launch(NamedTuple):
    """The arguments of ``launch.Kernel``."""

    grid: tuple[int, int, int]
    args: tuple[launch.Argument, ...]
    constants: dict[str, object]
    num_warps: int
    num_stages: int


def forward(call: Call, config: Config | None = None) -> tuple[Tensor, Tensor]:
    """The forward kernel; ``config`` overrides the table, for tuning."""
    call = call._replace(query=rows(call.query), key=rows(call.key), value=rows(call.value))
    output = torch.empty_like(call.query)
    lse = new_like(output, call.lse_shape(), torch.float32)
    forward_kernel(*arguments(call, output, lse, config))
    return output, lse


def arguments(call: Call, output: Tensor, lse: Tensor, config: Config | None = None) -> Launch:
    """What the forward kernel is launched with."""
    query, key, value = call[:3]
    scores = score_arguments(call)
    head_dim = query.shape[-1]
    windowed = call.left is not None or call.right is not None
    chip = launch.capability(query.device)
    chosen = case("forward", query.dtype, head_dim, windowed, scores.plain, chip)
    if config is None:
        config = table.choose(chosen, chip)
    tiles = ceil_div(call.max_seqlen_q, config.block_m)
    mod = call.mod
    args = (
        query,
        key,
        value,
        scores.bias,
        call.alibi_slopes,
        call.cu_seqlens_q,
        call.cu_seqlens_k,
        call.dropout_seed,
        output,
        lse,
        tiles,
        call.heads,
        call.heads // max(call.kv_heads, 1),
        call.max_seqlen_q,
        call.max_seqlen_k,
        *strides(query),
        *strides(key),
        *strides(value),
        *strides(output),
        *scores.bias_strides,
        scores.slopes_batch,
        *lse_strides(call),
        *scores.numbers,
    )
    grid = (tiles * call.heads * call.batch, 1, 1)
    constants = {
        "HEAD_DIM": head_dim,
        "BLOCK_D": chosen.block_d,
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "SCALED": scores.scaled,
        "BOTTOM_RIGHT": call.bottom_right,
        "SCORE_MOD": None if mod is None else mod.kernel,
        "PRECISION": precision(query.dtype),
        "RAGGED": call.packed or call.max_seqlen_k % config.block_n != 0,
    }
    return Launch(grid, args, constants, config.num_warps, config.num_stages)
