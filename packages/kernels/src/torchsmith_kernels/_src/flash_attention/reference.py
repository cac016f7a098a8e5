"""Attention in plain PyTorch: the meaning of the kernels, and what runs without them.

It stores all scores of a sequence. ``backward`` is written out, so that it can be differentiated
again.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from torchsmith_kernels._src.flash_attention import philox
from torchsmith_kernels._src.flash_attention.call import Call
from torchsmith_kernels._src.flash_attention.checks import check_starts
from torchsmith_kernels._src.sizes import compute_dtype

#: Gradients by query, key, value, and (where asked for) the mask.
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]


def forward(call: Call) -> tuple[Tensor, Tensor]:
    """The result in ``query``'s dtype and layout, and log(sum(exp(scores))) in float32."""
    query = call.query
    results = [_attend(part, batch) for batch, part in enumerate(_sequences(call))]
    lse_dtype = torch.float64 if query.dtype is torch.float64 else torch.float32
    if not call.packed:
        output, lse = results[0]
    elif results:
        output = _joined([out[0].transpose(0, 1) for out, _ in results], query)
        lse = torch.cat([lse[0] for _, lse in results], 1)
        lse = torch.nn.functional.pad(lse, (0, query.shape[0] - lse.shape[1]))
    else:
        output, lse = torch.zeros_like(query), query.new_zeros(call.lse_shape())
    return output.to(query.dtype), lse.to(lse_dtype)


def backward(
    call: Call, grad_output: Tensor, grad_lse: Tensor | None, bias_grad: bool
) -> Gradients:
    """Gradients by query, key, value and, with ``bias_grad``, by the mask."""
    grads: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    start = 0
    for batch, part in enumerate(_sequences(call)):
        grad, lse = grad_output, grad_lse
        if call.packed:
            end = start + part.query.shape[2]
            grad = grad_output[start:end].transpose(0, 1)[None]
            lse = None if grad_lse is None else grad_lse[None, :, start:end]
            start = end
        grads.append(_attend_backward(part, batch, grad, lse))
    if not call.packed:
        query, key, value, bias = grads[0]
    elif grads:
        query, key, value = (
            _joined([grad[which][0].transpose(0, 1) for grad in grads], like)
            for which, like in enumerate((call.query, call.key, call.value))
        )
    else:
        query, key, value = (torch.zeros_like(t) for t in call[:3])
    dbias = None
    if bias_grad and call.attn_mask is not None:
        dbias = bias.sum_to_size(call.attn_mask.shape).to(call.attn_mask.dtype)
    return query.to(call.query.dtype), key.to(call.key.dtype), value.to(call.value.dtype), dbias


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    """Sequences one after the other, then zeros for the rows of ``like`` after the last."""
    joined = torch.cat(parts)
    return torch.nn.functional.pad(joined, (0, 0, 0, 0, 0, like.shape[0] - joined.shape[0]))


def _sequences(call: Call) -> list[Call]:
    """One dense call, or one call of batch 1 for each sequence of a packed batch."""
    if call.cu_seqlens_q is None or call.cu_seqlens_k is None:
        return [call]
    starts_q, starts_k = call.cu_seqlens_q.tolist(), call.cu_seqlens_k.tolist()
    check_starts("cu_seqlens_q", starts_q, call.query.shape[0])
    check_starts("cu_seqlens_k", starts_k, call.key.shape[0])
    parts: list[Call] = []
    for b in range(call.batch):
        q = slice(starts_q[b], starts_q[b + 1])
        k = slice(starts_k[b], starts_k[b + 1])
        slopes = call.alibi_slopes
        if slopes is not None and slopes.dim() == 2:
            slopes = slopes[b]
        part = call._replace(
            query=call.query[q].transpose(0, 1)[None],
            key=call.key[k].transpose(0, 1)[None],
            value=call.value[k].transpose(0, 1)[None],
            alibi_slopes=slopes,
            cu_seqlens_q=None,
            cu_seqlens_k=None,
        )
        parts.append(part)
    return parts


class _Places(NamedTuple):
    """Indices that broadcast against scores ``[batch, heads, q, k]``."""

    batch: Tensor
    head: Tensor
    q: Tensor
    k: Tensor


def _places(call: Call, first_batch: int) -> _Places:
    """Where each score is."""
    device = call.query.device
    batch, heads, length_q = call.query.shape[:3]
    length_k = call.key.shape[2]
    return _Places(
        torch.arange(batch, device=device).view(-1, 1, 1, 1) + first_batch,
        torch.arange(heads, device=device).view(-1, 1, 1),
        torch.arange(length_q, device=device).view(-1, 1),
        torch.arange(length_k, device=device),
    )


class _Scores(NamedTuple):
    """Scores and what backward needs of the way to them."""

    scores: Tensor  # masked
    cap_slope: Tensor | None
    mod_slope: Tensor | None
    key: Tensor  # per head of the query
    value: Tensor
    kept: Tensor | None  # the factor of dropout


def _scores(call: Call, first_batch: int, slopes: bool = False) -> _Scores:
    compute = compute_dtype(call.query.dtype)
    place = _places(call, first_batch)
    group = call.heads // max(call.kv_heads, 1)
    query, key, value = (t.to(compute) for t in call[:3])
    if group != 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.transpose(-1, -2)) * call.scale
    cap_slope = mod_slope = kept = None
    if call.softcap:
        tanh = torch.tanh(scores / call.softcap)
        scores, cap_slope = call.softcap * tanh, 1 - tanh * tanh
    offset = call.key.shape[2] - call.query.shape[2] if call.bottom_right else 0
    distance = place.k - place.q - offset
    if call.alibi_slopes is not None:
        scores = scores - call.alibi_slopes[..., None, None].to(compute) * distance.abs()
    visible = torch.ones_like(distance, dtype=torch.bool)
    if call.attn_mask is not None and call.attn_mask.dtype is torch.bool:
        visible = call.attn_mask
    elif call.attn_mask is not None:
        scores = scores + call.attn_mask.to(compute)
    mod = call.mod
    if mod is not None and slopes:
        scores, mod_slope = mod.slope(scores, *place)
    elif mod is not None:
        scores = mod.reference(scores, *place)
    if call.left is not None:
        visible = visible & (distance >= -call.left)
    if call.right is not None:
        visible = visible & (distance <= call.right)
    scores = torch.where(visible, scores, -math.inf)
    if call.dropout_seed is not None:
        plane = place.batch * call.heads + place.head
        kept = philox.kept(call.dropout_seed, plane, place.q, place.k, call.dropout_p)
        kept = kept.to(compute) * call.keep_scale
    return _Scores(scores, cap_slope, mod_slope, key, value, kept)


def _softmax(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax that is 0 in rows where all is masked, and log(sum(exp))."""
    if scores.shape[-1] == 0:
        return scores, scores.new_full(scores.shape[:-1], -math.inf)
    peak = scores.detach().amax(-1, keepdim=True)
    peak = torch.where(peak == -math.inf, 0.0, peak)
    weights = torch.exp(scores - peak)
    total = weights.sum(-1, keepdim=True)
    empty = total == 0
    total = torch.where(empty, 1.0, total)
    lse = torch.where(empty, -math.inf, total.log() + peak)
    return weights / total, lse.squeeze(-1)


def _attend(call: Call, first_batch: int) -> tuple[Tensor, Tensor]:
    found = _scores(call, first_batch)
    weights, lse = _softmax(found.scores)
    if found.kept is not None:
        weights = weights * found.kept
    return weights @ found.value, lse


def _attend_backward(
    call: Call, first_batch: int, grad_output: Tensor, grad_lse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    found = _scores(call, first_batch, slopes=True)
    weights, _ = _softmax(found.scores)
    grad = grad_output.to(weights.dtype)
    dropped = weights if found.kept is None else weights * found.kept
    grad_value = dropped.transpose(-1, -2) @ grad
    grad_weights = grad @ found.value.transpose(-1, -2)
    if found.kept is not None:
        grad_weights = grad_weights * found.kept
    mean = (grad_weights * weights).sum(-1, keepdim=True)
    if grad_lse is not None:
        mean = mean - grad_lse.to(weights.dtype).unsqueeze(-1)
    grad_scores = weights * (grad_weights - mean)
    if found.mod_slope is not None:
        grad_scores = grad_scores * found.mod_slope
    grad_bias = grad_scores
    if found.cap_slope is not None:
        grad_scores = grad_scores * found.cap_slope
    grad_scores = grad_scores * call.scale
    grad_query = grad_scores @ found.key
    grad_key = grad_scores.transpose(-1, -2) @ call.query.to(weights.dtype)
    if call.heads != call.kv_heads:
        group = call.heads // call.kv_heads
        grouped = (call.query.shape[0], call.kv_heads, group, *grad_key.shape[2:])
        grad_key = grad_key.view(grouped).sum(2)
        grad_value = grad_value.view(grouped).sum(2)
    return grad_query, grad_key, grad_value, grad_bias
