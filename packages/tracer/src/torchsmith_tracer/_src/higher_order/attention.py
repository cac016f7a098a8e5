"""``flex_attention``: what the operator computes, traced in its place.

``run`` is never used by the host: the interpreter traces it, as it does the functions that it is
given. So the graph has the whole computation, and the functions as bodies that are mapped over
batches, heads, queries and keys. What it computes is what the operator does where it has no kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch.overrides import TorchFunctionMode

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.torch_private import safe_softmax
from torchsmith_tracer._src.trace import Trace
from torchsmith_tracer._src.values.base import Value

# The traced functions are typed by what they replace.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, misc"


class _IndexByTensors(TorchFunctionMode):
    """``bias[head, query]`` reads the items at these places, also where they are mapped."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.__getitem__:
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if all(isinstance(place, torch.Tensor) for place in places):
                return torch.ops.aten.index(args[0], list(places))
        return func(*args, **(kwargs or {}))


def mapped(function, before, after):
    """``function`` for each batch, head, query and key; ``before`` are the dimensions of what comes
    before these four, ``after`` is how much follows them."""

    def indexed(*args):
        with _IndexByTensors():
            return function(*args)

    for place in (3, 2, 1, 0):
        dims = tuple([0 if i == place else None for i in range(4)])
        indexed = torch.vmap(indexed, in_dims=before + dims + (None,) * after)
    return indexed


def run(query, key, value, score_mod, block_mask, scale, options, score_rest, mask_rest):
    """Result, logarithms of the sums, and largest scores, the latter two to the base 2."""
    groups = query.size(1) // key.size(1)
    value = torch.repeat_interleave(value, groups, dim=1)
    key = torch.repeat_interleave(key, groups, dim=1)
    batches, shared = query.size(0), key.size(0)
    if not (batches == shared or (batches > 1 and shared == 1)):
        raise RuntimeError(f"Bq and Bkv must broadcast. Got Bq={batches} and Bkv={shared}")
    key = key.expand((batches, *key.size()[1:]))
    value = value.expand((batches, *value.size()[1:]))
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = query.to(dtype) @ key.to(dtype).transpose(-2, -1)
    places = [torch.arange(0, n, device=scores.device) for n in scores.shape]
    scores = (scores * scale).to(dtype)
    scores = torch.where(
        mapped(block_mask[-1], (), len(mask_rest))(*places, *mask_rest),
        mapped(score_mod, (0,), len(score_rest))(scores, *places, *score_rest),
        torch.tensor(-math.inf, dtype=dtype, device=scores.device),
    )
    sums = scores.logsumexp(dim=-1)
    sums = torch.where(torch.all(scores == -math.inf, dim=-1), -math.inf, sums)
    largest = torch.max(scores, dim=-1)[0]
    found = safe_softmax(scores, dim=-1).to(query.dtype) @ value.to(query.dtype)
    laid_out = found.new_empty_strided(found.shape, strides_like(query.stride(), found.shape))
    laid_out.copy_(found)
    return laid_out, sums / math.log(2), largest / math.log(2)


def strides_like(given, shape):
    """Strides in the order of ``given``, but for the last dimension, which is contiguous."""
    order = sorted(range(len(shape) - 1), key=lambda d: (given[d], -d))
    strides, size = [1] * len(shape), shape[-1]
    for d in order:
        strides[d] = size
        size = size * shape[d]
    return strides


def flex_attention(tx: Trace, args: Sequence[Value]) -> Value:
    """The operator on the given arguments.

    Raises:
        Unsupported: autocast would change them.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise Unsupported("opaque-call", what="flex_attention under autocast")
    return tx.builder.wrap_new(run).call(tx, list(args), {})
