"""Attention that is differentiated: without a mask that says nothing, by the kernel of eager.

A mask whose rows are not dense in memory, because a row's or a batch's elements are equal, suits
none of the fused kernels: it is written out once, for the part that does not repeat.

Torch chooses the kernel by looking at the operands, and for fake ones it may choose that which
stores all scores: 1.8 times eager's memory for DistilBERT on an H200. So real operands are asked
about, and the traced call is offered nothing else.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from torchsmith_fx_backend._src.aot.functional import FunctionalMode
from torchsmith_fx_backend._src.aot.tangents import order_of
from torchsmith_fx_backend._src.capture.torch_private import (
    fused_attention_choice,
    without_active_modes,
)
from torchsmith_fx_backend._src.passes.attention import Pattern, pattern_of
from torchsmith_fx_backend._src.passes.constants import Constants

_KERNELS = {
    0: SDPBackend.MATH,
    1: SDPBackend.FLASH_ATTENTION,
    2: SDPBackend.EFFICIENT_ATTENTION,
    3: SDPBackend.CUDNN_ATTENTION,
}


@dataclass(frozen=True, slots=True)
class _Operands:
    """What a call is given, as the program gives it."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    attn_mask: torch.Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> list[torch.Tensor]:
        given = (self.query, self.key, self.value, self.attn_mask)
        return [each for each in given if each is not None]

    def positional(self) -> tuple[Any, ...]:
        q, k, v = self.query, self.key, self.value
        return q, k, v, self.attn_mask, self.dropout_p, self.is_causal


class Attention:
    """``scaled_dot_product_attention`` of a traced program."""

    def __init__(self, mode: FunctionalMode, *, exact_draws: bool) -> None:
        """
        Args:
            mode: the recording.
            exact_draws: which elements are dropped shall be as in eager, where it depends on the
                kernel and thereby on the mask.
        """
        self._mode = mode
        self._exact_draws = exact_draws
        self._constants = Constants()
        self._patterns: dict[fx.Node, Pattern] = {}  # layers share their mask

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        **more: Any,
    ) -> torch.Tensor:
        """Record the call."""
        if guards.varying_floats(scaled_dot_product_attention, (), more):
            query = query * (more.pop("scale") * query.shape[-1] ** 0.5)  # undone by the kernel's
        given = _Operands(query, key, value, attn_mask, float(dropout_p), is_causal, more)
        wide = given if self._draws_as_eager(given) else _of_four_axes(_spread(given))
        simpler = wide
        if needed := torch.is_grad_enabled() and any(t.requires_grad for t in given.tensors()):
            simpler = self._without_mask(wide) or self._with_dense_mask(wide) or wide
        offers = _offers(simpler) if needed else []  # else the graph holds the call as it is
        if simpler is given:
            return _run(given, offers)
        expected = self._described(given)
        result = _run(simpler, offers).reshape(expected.shape)
        return result if result.stride() == expected.stride() else _laid_out_as(expected, result)

    def _without_mask(self, given: _Operands) -> _Operands | None:
        """The call with a constant mask that hides nothing left out, or said by ``is_causal``."""
        mask = given.attn_mask
        if mask is None or given.is_causal or self._draws_as_eager(given):
            return None
        sizes = [n for tensor in given.tensors() for n in tensor.shape]
        if any(type(n) is not int or n == 0 for n in sizes) or not _broadcasts(given):
            return None
        node = self._mode.value_of(mask).node
        if node not in self._patterns:
            values = self._constants.of(node)
            with without_active_modes(), torch.no_grad():
                self._patterns[node] = pattern_of(values)
        match self._patterns[node]:
            case Pattern.ALL:
                return replace(given, attn_mask=None)
            case Pattern.CAUSAL:  # as many queries as keys, since the mask fits
                return replace(given, attn_mask=None, is_causal=True)
        return None

    def _with_dense_mask(self, given: _Operands) -> _Operands | None:
        """The call with a mask laid out by rows, if a fused kernel takes the operands only so."""
        mask = given.attn_mask
        if mask is None or mask.dim() < 2 or mask.requires_grad or self._draws_as_eager(given):
            return None
        if mask.stride(-1) == 1 or 0 in mask.shape or not _stores_scores(_offers(given)):
            return None
        part = mask
        for axis in range(mask.dim() - 2):
            if mask.stride(axis) == 0:
                part = part.narrow(axis, 0, 1)
        dense = replace(given, attn_mask=part.contiguous().expand(mask.shape))
        return None if _stores_scores(_offers(dense)) else dense

    def _draws_as_eager(self, given: _Operands) -> bool:
        return bool(given.dropout_p and self._exact_draws)

    def _described(self, given: _Operands) -> torch.Tensor:
        """Metadata of the result that eager gives.

        Raises:
            RuntimeError: eager refuses the operands, a mask of another type for instance.
        """
        fakes: Any = (self._mode.value_of(t).tensor for t in given.tensors())
        fake = replace(given, **dict(zip(("query", "key", "value", "attn_mask"), fakes)))
        with without_active_modes(), self._mode.fake_mode:
            return _run(fake, _offers(given)[:1])


def _laid_out_as(expected: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """A copy of ``result`` whose axes lie in memory in the order of ``expected``'s."""
    order = order_of(expected.shape, expected.stride())
    back = [order.index(axis) for axis in range(len(order))]
    return result.permute(order).contiguous().permute(back).clone()  # no view, as the kernel's


def _spread(given: _Operands) -> _Operands:
    """The call with keys and values that heads or batches share by broadcasting said to be those
    of each, where torch would store all scores for it alone: no other kernel broadcasts."""
    lead, others = given.query.shape[:-2], (given.key, given.value)
    pairs = [pair for t in others for pair in zip(t.shape, lead)]
    apart = given.more.get("enable_gqa") or len({t.dim() for t in (given.query, *others)}) > 1
    if apart or all(m == n for m, n in pairs) or any(m not in (1, n) for m, n in pairs):
        return given
    key, value = (t.expand(*lead, *t.shape[-2:]) for t in others)
    wide = replace(given, key=key, value=value)
    return wide if _stores_scores(_offers(given)) and not _stores_scores(_offers(wide)) else given


def _of_four_axes(given: _Operands) -> _Operands:
    """The call with axes merged or added in front of heads, where torch would store all scores for
    the number of axes alone: windows of images have five."""
    lead = given.query.shape[:-2]
    operands, mask = (given.query, given.key, given.value), given.attn_mask
    if (
        len(lead) == 2
        or any(t.shape[:-2] != lead for t in operands)
        or not _stores_scores(_offers(given))
    ):
        return given
    heads = lead[-1:] or (1,)
    query, key, value = (t.reshape(math.prod(lead[:-1]), *heads, *t.shape[-2:]) for t in operands)
    if mask is not None and mask.dim() > 3:
        if mask.shape[:-2] != lead and set(mask.shape[:-3]) != {1}:
            return given  # it would have to be written out
        mask = mask.reshape(math.prod(mask.shape[:-3]), *mask.shape[-3:])
    merged = replace(given, query=query, key=key, value=value, attn_mask=mask)
    return given if _stores_scores(_offers(merged)) else merged


def _broadcasts(given: _Operands) -> bool:
    """Whether the mask is one of the scores, so that without it the result has the same sizes."""
    assert given.attn_mask is not None
    scores, sizes = (*given.query.shape[:-1], given.key.shape[-2]), given.attn_mask.shape
    return len(sizes) <= len(scores) and all(
        m in (1, n) for m, n in zip(reversed(sizes), reversed(scores))
    )


def _run(given: _Operands, offers: Sequence[tuple[SDPBackend, ...]] = ()) -> torch.Tensor:
    """The call, by the first of these groups of kernels that takes the operands."""
    for backends in offers:
        try:
            with warnings.catch_warnings(), sdpa_kernel(list(backends)):
                warnings.simplefilter("ignore")  # why a kernel does not take fake operands
                return scaled_dot_product_attention(*given.positional(), **given.more)
        except RuntimeError:
            continue
    return scaled_dot_product_attention(*given.positional(), **given.more)


def _stores_scores(offers: Sequence[tuple[SDPBackend, ...]]) -> bool:
    return bool(offers) and offers[0] == (SDPBackend.MATH,)


def _offers(given: _Operands) -> list[tuple[SDPBackend, ...]]:
    """Kernels to restrict torch to, the best first; none where its own choice is as good."""
    sizes = [n for t in given.tensors() for n in (*t.shape, *t.stride())]
    if any(type(n) is not int for n in sizes):
        return []
    kind = given.query.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    chosen = fused_attention_choice(
        *given.positional(),
        scale=given.more.get("scale"),
        enable_gqa=given.more.get("enable_gqa", False),
        dtype=dtype,
    )
    if chosen not in _KERNELS:
        return []
    flags: Any = torch.backends.cuda
    on = flags.flash_sdp_enabled(), flags.mem_efficient_sdp_enabled(), flags.cudnn_sdp_enabled()
    fused = (_KERNELS[number] for number, allowed in enumerate(on, 1) if allowed)
    return [(_KERNELS[chosen],), tuple(fused)]
