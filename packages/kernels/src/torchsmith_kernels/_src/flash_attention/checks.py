"""Checks of the operator's arguments; the same on real and fake tensors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from torchsmith_kernels._src import check
from torchsmith_kernels._src.flash_attention.call import Call
from torchsmith_kernels.errors import ArgumentValueError, DtypeError, ShapeError

NAME = "flash_attention"
INDICES = (torch.int32, torch.int64)


def _shape_error(argument: str, tensor: Tensor, accepted: str) -> ShapeError:
    return ShapeError(op=NAME, argument=argument, given=tuple(tensor.shape), accepted=accepted)


def check_call(call: Call) -> None:
    """Raises the error that names the argument that does not fit."""
    query, key, value = call.query, call.key, call.value
    check.dtype(NAME, "query", query, check.FLOATING)
    dimensions = 3 if call.packed else 4
    layout = "[total, heads, dim]" if call.packed else "[batch, heads, length, dim]"
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.dim() != dimensions:
            raise _shape_error(name, tensor, f"it must be {layout}")
        if tensor.dtype is not query.dtype:
            raise DtypeError(op=NAME, argument=name, given=tensor.dtype, accepted=query.dtype)
        if tensor is not query:
            check.device(NAME, name, tensor, query, "query")
    if key.shape[-1] != query.shape[-1]:
        raise _shape_error("key", key, f"its last size must be query's, {query.shape[-1]}")
    if not call.packed and key.shape[0] != query.shape[0]:
        raise _shape_error("key", key, f"its first size must be query's, {query.shape[0]}")
    check.shape(NAME, "value", value, key.shape, "the shape of `key`")
    heads, kv_heads = query.shape[1], key.shape[1]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        raise _shape_error("key", key, f"its heads must divide those of `query`, {heads}")
    _check_extras(call)


def check_starts(argument: str, starts: Sequence[int], rows: int) -> None:
    """Raises unless ``starts`` divide ``rows``; reads numbers, so not for fake tensors."""
    ascending = all(a <= b for a, b in pairwise(starts))
    if not ascending or (starts and (starts[0] != 0 or starts[-1] > rows)):
        raise ArgumentValueError(
            op=NAME,
            argument=argument,
            given=f"{list(starts)}" if len(starts) < 10 else f"{starts[0]} ... {starts[-1]}",
            accepted=f"it must ascend from 0 to at most {rows}",
        )


def _check_extras(call: Call) -> None:
    query, mask, slopes = call.query, call.attn_mask, call.alibi_slopes
    if mask is not None:
        if call.packed:
            raise _shape_error("attn_mask", mask, "packed sequences take no mask")
        check.dtype(NAME, "attn_mask", mask, (torch.bool, *check.FLOATING))
        check.device(NAME, "attn_mask", mask, query, "query")
        full = (call.batch, call.heads, call.max_seqlen_q, call.max_seqlen_k)
        shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
        if mask.dim() > 4 or any(a != b and a != 1 for a, b in zip(shape, full, strict=True)):
            raise _shape_error("attn_mask", mask, f"it must expand to {full}")
    if slopes is not None:
        check.dtype(NAME, "alibi_slopes", slopes, (torch.float32,))
        check.device(NAME, "alibi_slopes", slopes, query, "query")
        accepted = ((call.heads,), (call.batch, call.heads))
        if tuple(slopes.shape) not in accepted:
            raise _shape_error("alibi_slopes", slopes, f"it must be {accepted[0]} or {accepted[1]}")
    if call.cu_seqlens_q is not None:
        for name, starts in (
            ("cu_seqlens_q", call.cu_seqlens_q),
            ("cu_seqlens_k", call.cu_seqlens_k),
        ):
            if starts is None:
                raise ArgumentValueError(
                    op=NAME, argument=name, given="None", accepted="give both or none"
                )
            check.dtype(NAME, name, starts, INDICES)
            check.device(NAME, name, starts, query, "query")
            if starts.dim() != 1 or starts.shape[0] < 1:
                raise _shape_error(name, starts, "it must be [sequences + 1]")
            check.shape(NAME, name, starts, call.cu_seqlens_q.shape, "the shape of `cu_seqlens_q`")
    if call.dropout_seed is not None:
        check.dtype(NAME, "dropout_seed", call.dropout_seed, (torch.int64,))
        check.device(NAME, "dropout_seed", call.dropout_seed, query, "query")
        check.shape(NAME, "dropout_seed", call.dropout_seed, (1,), "one number")
