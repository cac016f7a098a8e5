"""The public function."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Literal, overload

import torch
from torch import Tensor

from torchsmith_kernels._src import check
from torchsmith_kernels._src.flash_attention.call import Call
from torchsmith_kernels._src.flash_attention.checks import INDICES, NAME, check_starts
from torchsmith_kernels._src.flash_attention.operators import op
from torchsmith_kernels._src.flash_attention.score_mod import ScoreMod
from torchsmith_kernels.errors import ArgumentTypeError, ArgumentValueError, ShapeError

WIDEST = 2**30  # beyond any length; keeps sums of indices within 32 bits


@overload
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    bottom_right: bool = False,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_mod: ScoreMod | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_seed: Tensor | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    bottom_right: bool = False,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_mod: ScoreMod | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_seed: Tensor | None = None,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    window: tuple[int | None, int | None] | None = None,
    bottom_right: bool = False,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    score_mod: ScoreMod | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    dropout_seed: Tensor | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention, ``dropout(softmax(scores)) @ value``, without storing the scores.

    The arguments up to ``enable_gqa`` are those of
    ``torch.nn.functional.scaled_dot_product_attention``. A score is made in this order::

        score = scale * dot(query[i], key[j])
        score = softcap * tanh(score / softcap)
        score = score - alibi_slopes[head] * abs(j - place(i)) + attn_mask[i, j]
        score = score_mod(score, batch, head, i, j)
        score = -inf  unless  place(i) - left <= j <= place(i) + right

    where ``place(i)`` is ``i``, or with ``bottom_right`` ``i + len(key) - len(query)``, and
    ``is_causal`` sets ``right`` to 0. So ``is_causal`` alone is aligned as in PyTorch: the first
    query sees the first key, whatever the lengths. A query that sees no key gets zeros, as in
    PyTorch's own implementation.

    Source: Dao, 2023, FlashAttention-2 (https://arxiv.org/abs/2307.08691). Products of float16 and
    bfloat16 accumulate in float32; weights are rounded to the inputs' dtype before they meet the
    values. Float32 products follow ``torch.set_float32_matmul_precision``. Float64, head
    dimensions above 256, and tensors on the CPU take the reference path, which stores all scores.

    Deterministic, gradients included: every sum has a fixed order. Dropout takes its bits from
    Philox at the position of the score, so that a seed gives the same mask on every path.

    Memory: the result and one float32 per query and head. Backward needs another float32 per query
    and head, and on Hopper for a head dimension of 128 a float32 copy of the gradient of ``query``.
    The gradient of an additive ``attn_mask`` takes a float32 for every score.

    Gradients flow to query, key, value, and an additive ``attn_mask``; and through the second
    result, if wanted. Second derivatives use the reference path.

    Args:
        query: ``[batch, heads, q, dim]``, or without the batch; with ``cu_seqlens_q`` packed,
            ``[total_q, heads, dim]``. Any strides; only the last dimension must be contiguous to
            go without a copy. float16, bfloat16, float32 or float64.
        key: ``[batch, kv_heads, k, dim]``, or packed ``[total_k, kv_heads, dim]``.
        value: of ``key``'s shape.
        attn_mask: boolean (true where a query sees a key) or floating point to be added to the
            scores; expands to ``[batch, heads, q, k]``. Not for packed sequences. Unlike PyTorch,
            it may be given together with ``is_causal``. In a kernel, numbers below -2.3e38 hide a
            key as -inf does.
        dropout_p: probability of dropping a weight.
        is_causal: whether a query sees only keys up to its own place.
        scale: factor of the scores; ``1 / sqrt(dim)`` by default.
        enable_gqa: whether ``key`` may have fewer heads, each shared by consecutive heads of
            ``query``.
        window: ``(left, right)``, how many keys before and after its own place a query sees; None
            or -1 for all.
        bottom_right: whether the last query stands at the last key, as when decoding.
        softcap: bound of the scores, before anything is added.
        alibi_slopes: float32 ``[heads]`` or ``[batch, heads]``; constants without gradient.
        score_mod: a further pointwise change of the scores, see ``ScoreMod``.
        cu_seqlens_q: int32 or int64 ``[sequences + 1]``, where each sequence starts and the last
            ends, beginning with 0. Results and gradients of rows after the last are undefined.
        cu_seqlens_k: the same for keys; ``cu_seqlens_q`` by default.
        max_seqlen_q: at least the longest sequence of queries; the results of a longer one are
            undefined. Read back from the device, which waits for it, if not given.
        max_seqlen_k: the same for keys.
        dropout_seed: one int64 on ``query``'s device; drawn from PyTorch's generator by default.
        return_lse: whether to return ``log(sum(exp(score)))`` as well.

    Returns:
        A tensor of ``query``'s shape and dtype, laid out as ``torch.empty_like(query)``; with
        ``return_lse`` also a float32 tensor ``[batch, heads, q]`` (packed: ``[heads, total_q]``;
        for float64, float64), -inf where a query sees no key.

    Raises:
        ArgumentTypeError: an argument is of the wrong type.
        ArgumentValueError: a probability, window, softcap or length is out of range, or slopes
            require a gradient.
        DtypeError: a dtype is not accepted.
        DeviceError: tensors lie on different devices.
        ShapeError: shapes do not fit.
    """
    check.is_tensor(NAME, "query", query)
    check.is_tensor(NAME, "key", key)
    check.is_tensor(NAME, "value", value)
    if query.dim() == 3 and cu_seqlens_q is None:
        if key.dim() != 3 or value.dim() != 3:
            raise ShapeError(
                op=NAME,
                argument="query",
                given=tuple(query.shape),
                accepted="`key` and `value` must have as many dimensions",
            )
        output, lse = flash_attention(
            query[None], key[None], value[None], attn_mask, dropout_p, is_causal, scale,
            enable_gqa, window=window, bottom_right=bottom_right, softcap=softcap,
            alibi_slopes=alibi_slopes, score_mod=score_mod, cu_seqlens_k=cu_seqlens_k,
            dropout_seed=dropout_seed, return_lse=True,
        )  # fmt: skip
        return (output[0], lse[0]) if return_lse else output[0]
    if attn_mask is not None:
        check.is_tensor(NAME, "attn_mask", attn_mask)
    if alibi_slopes is not None:
        check.is_tensor(NAME, "alibi_slopes", alibi_slopes)
        if alibi_slopes.requires_grad and torch.is_grad_enabled():
            raise _value_error("alibi_slopes", "a tensor that requires grad", "detach it")
        alibi_slopes = alibi_slopes.contiguous()
    if score_mod is not None and not isinstance(score_mod, ScoreMod):
        raise ArgumentTypeError(
            op=NAME,
            argument="score_mod",
            given=f"of type {type(score_mod).__name__}",
            accepted="it must be a ScoreMod or None",
        )
    if not enable_gqa and min(query.dim(), key.dim()) > 1 and key.shape[1] != query.shape[1]:
        raise ShapeError(
            op=NAME,
            argument="key",
            given=tuple(key.shape),
            accepted=f"it must have {query.shape[1]} heads as `query`, or pass enable_gqa=True",
        )
    if cu_seqlens_q is not None:
        check.is_tensor(NAME, "cu_seqlens_q", cu_seqlens_q)
        cu_seqlens_k = cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k
        check.is_tensor(NAME, "cu_seqlens_k", cu_seqlens_k)
        # Kernels read them as they lie.
        cu_seqlens_q, cu_seqlens_k = cu_seqlens_q.contiguous(), cu_seqlens_k.contiguous()
        max_seqlen_q = _length("q", max_seqlen_q, cu_seqlens_q, query)
        max_seqlen_k = _length("k", max_seqlen_k, cu_seqlens_k, key)
    elif cu_seqlens_k is not None:
        raise _value_error("cu_seqlens_k", "given", "`cu_seqlens_q` is needed as well")
    else:
        max_seqlen_q = query.shape[2] if query.dim() == 4 else 0
        max_seqlen_k = key.shape[2] if key.dim() == 4 else 0
    left, right = (None, None) if window is None else _window(window)
    if is_causal:
        right = 0
    if dropout_p:
        check.is_number(NAME, "dropout_p", dropout_p)
        if not 0 <= dropout_p <= 1:
            raise _value_error("dropout_p", dropout_p, "it must be between 0 and 1")
        check.is_tensor(NAME, "dropout_seed", dropout_seed, optional=True)
        if dropout_seed is None:
            dropout_seed = torch.randint(2**62, (1,), device=query.device)
    else:
        dropout_p, dropout_seed = 0.0, None
    if softcap is not None:
        check.is_number(NAME, "softcap", softcap)
        if not 0 < softcap < math.inf:
            raise _value_error("softcap", softcap, "it must be positive and finite, or None")
        softcap = float(softcap) if isinstance(softcap, int) else softcap
    check.is_number(NAME, "scale", scale, optional=True)
    if scale is None:
        width = query.shape[-1] if query.dim() else 0
        scale = 1 / math.sqrt(width) if width else 1.0
    elif isinstance(scale, int):
        scale = float(scale)  # an integer would be another kernel under the same key
    call = Call(
        query,
        key,
        value,
        attn_mask,
        alibi_slopes,
        cu_seqlens_q,
        cu_seqlens_k,
        dropout_seed,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        scale,
        softcap or 0.0,
        left,
        right,
        bottom_right,
        "" if score_mod is None else score_mod.name,
    )
    output, lse = op(*call)
    return (output, lse) if return_lse else output


def _value_error(argument: str, given: object, accepted: str) -> ArgumentValueError:
    return ArgumentValueError(op=NAME, argument=argument, given=given, accepted=accepted)


def _length(side: str, given: int | None, starts: Tensor, packed: Tensor) -> int:
    """The longest sequence of ``packed`` as given, or else read back from ``starts``."""
    argument = f"max_seqlen_{side}"
    if given is None:
        check.dtype(NAME, f"cu_seqlens_{side}", starts, INDICES)
        if starts.dim() != 1 or starts.shape[0] < 2 or packed.dim() != 3:
            return 0  # the last two are refused with all other arguments
        numbers: list[int] = starts.tolist()
        check_starts(f"cu_seqlens_{side}", numbers, packed.shape[0])
        return max(b - a for a, b in pairwise(numbers))
    if not isinstance(given, int | torch.SymInt):
        raise ArgumentTypeError(
            op=NAME,
            argument=argument,
            given=f"of type {type(given).__name__}",
            accepted="it must be an int or None",
        )
    if given < 0:
        raise _value_error(argument, given, "it must not be negative")
    return given


def _window(window: tuple[int | None, int | None]) -> tuple[int | None, int | None]:
    """Both sides, None for unlimited."""
    if not isinstance(window, tuple | list) or len(window) != 2:
        raise _value_error("window", repr(window), "it must be (left, right)")
    sides: list[int | None] = []
    for side in window:
        if side is None or side == -1:
            sides.append(None)
        elif isinstance(side, int | torch.SymInt) and side >= 0:
            sides.append(min(side, WIDEST))
        else:
            raise _value_error(
                "window", repr(window), "each side must be a number of keys, None or -1"
            )
    return sides[0], sides[1]
