"""Launching the kernels for Hopper, which take dense attention with a head dimension of 128."""

from __future__ import annotations

import math
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from torchsmith_kernels._src import launch
from torchsmith_kernels._src.flash_attention.call import Call, strides
from torchsmith_kernels._src.flash_attention.run_forward import Launch
from torchsmith_kernels._src.sizes import ceil_div, new_like

_FOLDER = "torchsmith_kernels._src.flash_attention"
forward_kernel = launch.Kernel(f"{_FOLDER}.kernel_hopper", "forward_kernel")
prepare_kernel = launch.Kernel(f"{_FOLDER}.kernel_hopper_backward", "prepare_kernel")
backward_kernel = launch.Kernel(f"{_FOLDER}.kernel_hopper_backward", "backward_kernel")
finish_kernel = launch.Kernel(f"{_FOLDER}.kernel_hopper_backward", "finish_kernel")
HEAD_DIM = 128
TILE = 128
STEP = 64
STAGES = 2
#: Bytes of keys and values that stay in the second-level cache beside everything else.
CACHE = 24 << 20
#: As many keys after its own place as a query can see.
EVERYTHING = 1 << 30
LOG2_E = math.log2(math.e)


@cache
def available(device: torch.device) -> bool:
    """Whether the device and the installed Triton run Hopper kernels written in Gluon."""
    if find_spec("triton") is None or launch.interpreted() or launch.capability(device) != 90:
        return False
    if find_spec("triton.experimental") is None:
        return False
    import triton

    major, minor = triton.__version__.split(".")[:2]
    return (int(major), int(minor)) >= (3, 6)


def regular(tensor: Tensor) -> bool:
    """Whether the tensor memory accelerator can load tiles of ``[batch, heads, rows, dim]``."""
    aligned = all(
        size == 1 or (stride > 0 and stride % 8 == 0)
        for size, stride in zip(tensor.shape[:-1], tensor.stride(), strict=False)
    )
    return aligned and tensor.stride(-1) == 1 and tensor.data_ptr() % 16 == 0


def steps(tensor: Tensor) -> tuple[int, ...]:
    """``strides``, but of dimensions of size 1, which may be anything, a multiple of 16 bytes."""
    found = zip(tensor.shape, strides(tensor), strict=False)
    return tuple(HEAD_DIM if size == 1 else stride for size, stride in found)


def fits(call: Call) -> bool:
    """Whether these kernels compute this call."""
    query, key = call.query, call.key
    return (
        available(query.device)
        and query.dim() == 4
        and query.shape[-1] == HEAD_DIM
        and query.dtype in (torch.bfloat16, torch.float16)
        and not call.packed
        and call.attn_mask is None
        and call.alibi_slopes is None
        and call.dropout_seed is None
        and not call.softcap
        and not call.score_mod
        and 0 < call.scale < 2
        and call.left is None
        and (call.right is None or (call.right == 0 and _from_the_start(call)))
        and query.numel() > 0
        and key.numel() > 0
        and all(map(regular, call[:3]))
    )


def _from_the_start(call: Call) -> bool:
    return not call.bottom_right or call.max_seqlen_q == call.max_seqlen_k


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """Attention and the logarithms of its denominators."""
    output = torch.empty_like(call.query)
    lse = new_like(output, call.lse_shape(), torch.float32)
    forward_kernel(*arguments(call, output, lse, counter(call)))
    return output, lse


def _tiles(call: Call) -> int:
    return ceil_div(call.max_seqlen_q, TILE) * call.batch * call.heads


def counter(call: Call) -> Tensor | None:
    """From which programs take their next tile, where tiles differ in length."""
    if call.right is None or _tiles(call) <= launch.sm_count(call.query.device):
        return None
    return torch.zeros(1, dtype=torch.int32, device=call.query.device)


def arguments(call: Call, output: Tensor, lse: Tensor, number: Tensor | None) -> Launch:
    """What the forward kernel is launched with."""
    query, key, value = call[:3]
    length_q, length_k = call.max_seqlen_q, call.max_seqlen_k
    args = (
        query,
        key,
        value,
        output,
        lse,
        number,
        length_q,
        length_k,
        call.batch,
        call.heads,
        call.heads // call.kv_heads,
        min(max(CACHE // (length_k * HEAD_DIM * 4), 1), call.batch * call.heads),
        call.scale * LOG2_E,
        *steps(query),
        *steps(key),
        *steps(value),
        *steps(output),
    )
    constants: dict[str, object] = {
        "D": HEAD_DIM,
        "STAGES": STAGES,
        "CAUSAL": call.right is not None,
        "TAIL": length_k % TILE != 0,
    }
    return Launch((min(_tiles(call), launch.sm_count(query.device)), 1, 1), args, constants, 4, 3)


def backward(
    call: Call, grad_output: Tensor, grad_lse: Tensor | None, output: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by query, key and value."""
    query, key, value = call[:3]
    if not regular(grad_output):
        grad_output = torch.empty(query.shape, dtype=query.dtype, device=query.device).copy_(
            grad_output
        )
    length_q, length_k = call.max_seqlen_q, call.max_seqlen_k
    planes, kv_planes = call.batch * call.heads, call.batch * call.kv_heads
    padded = ceil_div(length_q, TILE) * TILE
    dquery, dkey, dvalue = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
    stats = new_like(query, (2, planes, padded), torch.float32)
    turns = new_like(query, (1 + planes * (padded // STEP),), torch.int32)
    sums = new_like(query, (planes, padded, HEAD_DIM), torch.float32)
    prepare_kernel(
        (padded // TILE * planes, 1, 1),
        (
            output,
            grad_output,
            lse,
            None if grad_lse is None else grad_lse.contiguous(),
            stats,
            turns,
            length_q,
            padded,
            call.heads,
            planes,
            call.scale,
            *steps(output),
            *steps(grad_output),
        ),
        {"D": HEAD_DIM, "ROWS": TILE, "STEPS": STEP},
        8,
    )
    blocks = ceil_div(length_k, TILE)
    programs = launch.sm_count(query.device)
    repeats = call.heads // call.kv_heads
    # What passes by while the blocks of one plane are worked on: queries, gradients, sums.
    passing = padded * HEAD_DIM * 8 * repeats
    backward_kernel(
        (min(blocks * kv_planes, programs), 1, 1),
        (
            query,
            key,
            value,
            grad_output,
            dkey,
            dvalue,
            stats,
            sums,
            turns,
            length_q,
            length_k,
            padded,
            call.batch,
            call.kv_heads,
            repeats,
            min(max(CACHE // passing, ceil_div(programs, blocks)), kv_planes),
            EVERYTHING if call.right is None else call.right,
            call.scale * LOG2_E,
            call.scale,
            *steps(query),
            *steps(key),
            *steps(value),
            *steps(grad_output),
            *steps(dkey),
            *steps(dvalue),
        ),
        {
            "D": HEAD_DIM,
            "STAGES": STAGES,
            "TAIL": length_k % TILE != 0,
        },
        4,
    )
    finish_kernel(
        (padded // TILE * planes, 1, 1),
        (sums, dquery, length_q, padded, call.heads, call.scale, *steps(dquery)),
        {"D": HEAD_DIM, "ROWS": TILE},
        8,
    )
    return dquery, dkey, dvalue
