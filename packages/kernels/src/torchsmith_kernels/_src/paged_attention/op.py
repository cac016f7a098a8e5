"""The operator ``torchsmith::paged_attention`` and the public function."""

from __future__ import annotations

import torch
from torch import Tensor

from torchsmith_kernels._src import check, launch
from torchsmith_kernels._src.dispatch import Op
from torchsmith_kernels._src.paged_attention import reference, run
from torchsmith_kernels.errors import ArgumentTypeError, DtypeError, ShapeError

NAME = "paged_attention"
WIDEST = 256


def _check(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> None:
    """Raises for tensors that do not fit."""
    check.dtype(NAME, "query", query, check.FLOATING)
    for argument, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        if tensor.dtype != query.dtype:
            raise DtypeError(
                op=NAME,
                argument=argument,
                given=tensor.dtype,
                accepted=f"{str(query.dtype).removeprefix('torch.')}, which is `query`'s",
            )
    for argument, tensor in (("block_tables", block_tables), ("seq_lens", seq_lens)):
        check.dtype(NAME, argument, tensor, (torch.int32, torch.int64))
    for argument, tensor in (
        ("key_cache", key_cache),
        ("value_cache", value_cache),
        ("block_tables", block_tables),
        ("seq_lens", seq_lens),
    ):
        check.device(NAME, argument, tensor, query, "query")
    _check_shapes(query, key_cache, value_cache, block_tables, seq_lens)


def _check_shapes(
    query: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor
) -> None:
    if query.dim() != 3:
        raise ShapeError(
            op=NAME,
            argument="query",
            given=tuple(query.shape),
            accepted="it must be [batch, heads, width], one token per sequence",
        )
    batch, heads, width = query.shape
    if not 1 <= width <= WIDEST:
        raise ShapeError(
            op=NAME,
            argument="query",
            given=tuple(query.shape),
            accepted=f"heads must be 1 to {WIDEST} elements wide",
        )
    if key_cache.dim() != 4 or key_cache.size(3) != width or key_cache.size(1) == 0:
        raise ShapeError(
            op=NAME,
            argument="key_cache",
            given=tuple(key_cache.shape),
            accepted=f"it must be [blocks, block size, heads, {width}] beside `query` "
            f"{tuple(query.shape)}",
        )
    check.shape(NAME, "value_cache", value_cache, key_cache.shape, "the shape of `key_cache`")
    kv_heads = key_cache.size(2)
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            op=NAME,
            argument="query",
            given=tuple(query.shape),
            accepted=f"its heads must be a multiple of the {kv_heads} heads of `key_cache`",
        )
    for argument, tensor in (("key_cache", key_cache), ("value_cache", value_cache)):
        if width > 1 and tensor.stride(3) != 1:
            raise ShapeError(
                op=NAME,
                argument=argument,
                given=f"{tuple(tensor.shape)} with strides {tensor.stride()}",
                accepted="its last dimension must be contiguous; a copy would double the memory",
            )
        if (tensor.size(1) - 1) * tensor.stride(1) >= 2**31:  # a kernel's offsets in a block
            raise ShapeError(
                op=NAME,
                argument=argument,
                given=f"{tuple(tensor.shape)} with strides {tensor.stride()}",
                accepted="the tokens of a block must lie within 2**31 elements",
            )
    if block_tables.dim() != 2 or block_tables.size(0) != batch:
        raise ShapeError(
            op=NAME,
            argument="block_tables",
            given=tuple(block_tables.shape),
            accepted=f"it must be [{batch}, blocks per sequence]",
        )
    check.shape(NAME, "seq_lens", seq_lens, (batch,), "one length per sequence")


def _forward(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    seen = run.key(query, key_cache, value_cache, block_tables, seq_lens)
    plan = run.plans.get(seen)
    if plan is None:
        _check(query, key_cache, value_cache, block_tables, seq_lens)
        if query.device.type == "meta":
            return query.new_empty(query.shape)
        if query.dtype is torch.float64 or not launch.usable(query.device, NAME):
            return reference.forward(query, key_cache, value_cache, block_tables, seq_lens, scale)
        if query.numel() == 0 or block_tables.numel() == 0:
            return query.new_zeros(query.shape)
        given = (query, block_tables, seq_lens)
        query, block_tables, seq_lens = (t if t.stride(-1) == 1 else t.contiguous() for t in given)
        plan = run.plan(query, key_cache, value_cache, block_tables)
        if query is given[0] and block_tables is given[1] and seq_lens is given[2]:
            run.plans.keep(seen, plan)
    return run.execute(plan, query, key_cache, value_cache, block_tables, seq_lens, scale)


def _forward_fake(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> Tensor:
    _check(query, key_cache, value_cache, block_tables, seq_lens)
    return query.new_empty(query.shape)


op = Op(
    "paged_attention(Tensor query, Tensor key_cache, Tensor value_cache, Tensor block_tables, "
    "Tensor seq_lens, float scale) -> Tensor",
    kernel=_forward,
    fake=_forward_fake,
)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float | None = None,
) -> Tensor:
    """Attention of one new token per sequence over keys and values in pages (decoding).

    ``output[b, h] = softmax(scale * query[b, h] @ K.T) @ V``, where ``K`` and ``V`` are the first
    ``seq_lens[b]`` tokens of key/value head ``h // (heads // kv_heads)`` of sequence ``b``: token
    ``t`` lies in block ``block_tables[b, t // block_size]`` at ``t % block_size`` (the paged cache
    of Kwon et al., 2023, https://arxiv.org/abs/2309.06180). The new token's own key and value must
    have been written to the cache, and count in ``seq_lens``.

    Keys and values are read once: the query heads that share them are computed together, and long
    sequences are cut into parts that run at the same time (Flash-Decoding), as many as the batch,
    the heads and the width of ``block_tables`` call for. Nothing waits for the GPU, so the call can
    be captured in a CUDA graph. float32 accumulation, one rounding; float32 inputs are multiplied
    in full precision.

    Deterministic: the parts are summed in order. Memory: the result, and with more than one part
    their results in float32 (``batch * heads * parts * width``). Inference only.

    Args:
        query: ``[batch, heads, width]``, floating point, width up to 256; any strides.
        key_cache: ``[blocks, block_size, kv_heads, width]`` of ``query``'s dtype; ``heads`` is a
            multiple of ``kv_heads``. Any strides, but the last dimension contiguous; any block
            size, powers of two are fastest.
        value_cache: the same shape; strides may differ.
        block_tables: ``[batch, blocks per sequence]``, int32 or int64. Entries beyond a sequence's
            length are never read.
        seq_lens: ``[batch]``, int32 or int64. A length of 0 gives zeros; tokens for which a row of
            ``block_tables`` has no entry do not count.
        scale: factor of the scores, by default ``width ** -0.5``.

    Returns:
        A contiguous tensor ``[batch, heads, width]`` of ``query``'s dtype.

    Raises:
        ArgumentTypeError: an argument is of the wrong type, or a gradient would be needed.
        DtypeError: dtypes do not fit.
        ShapeError: shapes do not fit, or a cache's last dimension is not contiguous.
        DeviceError: tensors are on different devices.
    """
    for argument, value in (
        ("query", query),
        ("key_cache", key_cache),
        ("value_cache", value_cache),
        ("block_tables", block_tables),
        ("seq_lens", seq_lens),
    ):
        check.is_tensor(NAME, argument, value)
    check.is_number(NAME, "scale", scale, optional=True)
    if torch.is_grad_enabled():
        for argument, value in (
            ("query", query),
            ("key_cache", key_cache),
            ("value_cache", value_cache),
        ):
            if value.requires_grad:
                raise ArgumentTypeError(
                    op=NAME,
                    argument=argument,
                    given="a tensor that requires a gradient",
                    accepted="this op has none; call it under torch.no_grad(), or train with "
                    "flash_attention",
                )
    if scale is None:
        scale = query.size(-1) ** -0.5 if query.dim() else 1.0
    result: Tensor = op(query, key_cache, value_cache, block_tables, seq_lens, float(scale))
    return result
