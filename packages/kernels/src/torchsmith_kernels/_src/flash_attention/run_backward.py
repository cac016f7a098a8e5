"""Launching the backward kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.flash_attention.call import Call, precision, rows, strides
from torchsmith_kernels._src.flash_attention.config import Config, block_d, case, table
from torchsmith_kernels._src.flash_attention.reference import Gradients
from torchsmith_kernels._src.flash_attention.run_forward import (
    ScoreArguments,
    lse_strides,
    score_arguments,
)
from torchsmith_kernels._src.sizes import ceil_div

_KERNELS = "torchsmith_kernels._src.flash_attention.kernel_backward"
mean_kernel = launch.Kernel(_KERNELS, "mean_kernel")
keys_kernel = launch.Kernel(_KERNELS, "keys_kernel")
queries_kernel = launch.Kernel(_KERNELS, "queries_kernel")
MEAN_ROWS = 64


def backward(
    call: Call,
    grad_output: Tensor,
    grad_lse: Tensor | None,
    output: Tensor,
    lse: Tensor,
    bias_grad: bool,
    keys_config: Config | None = None,
    queries_config: Config | None = None,
) -> Gradients:
    """Gradients by query, key, value and, with ``bias_grad``, by the mask."""
    call = call._replace(query=rows(call.query), key=rows(call.key), value=rows(call.value))
    grad_output = rows(grad_output)
    mean = means(call, grad_output, grad_lse, rows(output), lse)
    dkey, dvalue = keys(call, grad_output, lse, mean, keys_config)
    dquery, dbias = queries(call, grad_output, lse, mean, bias_grad, queries_config)
    return dquery, dkey, dvalue, dbias


def means(
    call: Call, grad_output: Tensor, grad_lse: Tensor | None, output: Tensor, lse: Tensor
) -> Tensor:
    """``sum(output * grad_output) - grad_lse`` of each row."""
    mean = torch.empty_like(lse)
    tiles = ceil_div(call.max_seqlen_q, MEAN_ROWS)
    head_dim = output.shape[-1]
    mean_kernel(
        (tiles * call.heads * call.batch, 1, 1),
        (
            output,
            grad_output,
            None if grad_lse is None else grad_lse.contiguous(),
            call.cu_seqlens_q,
            mean,
            tiles,
            call.heads,
            call.max_seqlen_q,
            *strides(output),
            *strides(grad_output),
            *lse_strides(call),
        ),
        {
            "HEAD_DIM": head_dim,
            "BLOCK_D": block_d(call.query.shape[-1]),
            "BLOCK_M": MEAN_ROWS,
        },
        4,
    )
    return mean


def keys(
    call: Call, grad_output: Tensor, lse: Tensor, mean: Tensor, config: Config | None = None
) -> tuple[Tensor, Tensor]:
    """Gradients by key and value; ``config`` overrides the table, for tuning."""
    dkey, dvalue = torch.empty_like(call.key), torch.empty_like(call.value)
    scores = score_arguments(call)
    config = config or _choose(call, "keys", scores)
    tiles = ceil_div(call.max_seqlen_k, config.block_n)
    group = call.heads // max(call.kv_heads, 1)
    keys_kernel(
        (tiles * call.kv_heads * call.batch, 1, 1),
        (
            *_inputs(call, scores, grad_output, lse, mean),
            dkey,
            dvalue,
            tiles,
            call.heads,
            *_sizes(call),
            *strides(grad_output),
            *strides(dkey),
            *strides(dvalue),
            *scores.bias_strides,
            scores.slopes_batch,
            *lse_strides(call),
            *scores.numbers,
        ),
        _constants(call, config, scores.scaled, call.max_seqlen_q % config.block_m, GROUP=group),
        config.num_warps,
        config.num_stages,
    )
    return dkey, dvalue


def queries(
    call: Call,
    grad_output: Tensor,
    lse: Tensor,
    mean: Tensor,
    bias_grad: bool = False,
    config: Config | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gradients by query and mask; ``config`` overrides the table, for tuning."""
    dquery = torch.empty_like(call.query)
    mask, dbias = call.attn_mask, None
    if bias_grad and mask is not None:
        shape = (call.batch, call.heads, call.max_seqlen_q, call.max_seqlen_k)
        # Tiles outside of the window are not visited.
        dbias = torch.zeros(shape, dtype=torch.float32, device=mask.device)
    scores = score_arguments(call)
    config = config or _choose(call, "queries", scores)
    tiles = ceil_div(call.max_seqlen_q, config.block_m)
    group = call.heads // max(call.kv_heads, 1)
    queries_kernel(
        (tiles * call.heads * call.batch, 1, 1),
        (
            *_inputs(call, scores, grad_output, lse, mean),
            dquery,
            dbias,
            tiles,
            call.heads,
            group,
            *_sizes(call),
            *strides(grad_output),
            *strides(dquery),
            *scores.bias_strides,
            scores.slopes_batch,
            *lse_strides(call),
            *scores.numbers,
        ),
        _constants(call, config, scores.scaled, call.max_seqlen_k % config.block_n),
        config.num_warps,
        config.num_stages,
    )
    if dbias is not None and mask is not None:
        dbias = dbias.sum_to_size(mask.shape).to(mask.dtype)
    return dquery, dbias


def _choose(call: Call, kernel: str, scores: ScoreArguments) -> Config:
    windowed = call.left is not None or call.right is not None
    query, chip = call.query, launch.capability(call.query.device)
    chosen = case(kernel, query.dtype, query.shape[-1], windowed, scores.plain, chip)
    return table.choose(chosen, chip)


def _inputs(
    call: Call, scores: ScoreArguments, grad_output: Tensor, lse: Tensor, mean: Tensor
) -> tuple[Tensor | None, ...]:
    return (
        call.query,
        call.key,
        call.value,
        scores.bias,
        call.alibi_slopes,
        call.cu_seqlens_q,
        call.cu_seqlens_k,
        call.dropout_seed,
        grad_output,
        lse,
        mean,
    )


def _sizes(call: Call) -> tuple[int, ...]:
    return (
        call.max_seqlen_q,
        call.max_seqlen_k,
        *strides(call.query),
        *strides(call.key),
        *strides(call.value),
    )


def _constants(
    call: Call, config: Config, scaled: bool, rest: int, **more: int
) -> dict[str, object]:
    mod = call.mod
    return {
        "HEAD_DIM": call.query.shape[-1],
        "BLOCK_D": block_d(call.query.shape[-1]),
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        **more,
        "SCALED": scaled,
        "BOTTOM_RIGHT": call.bottom_right,
        "SCORE_MOD": None if mod is None else mod.kernel,
        "DERIVATIVE": None if mod is None else mod.derivative,
        "PRECISION": precision(call.query.dtype),
        "RAGGED": call.packed or rest != 0,
    }
