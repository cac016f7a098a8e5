"""Attention that is differentiated, by the kernel that eager takes.

Torch chooses the kernel by looking at the operands, and for fake ones it may choose that which
stores all scores: 1.8 times eager's memory for DistilBERT on an H200. So real operands are asked
about, and the traced call is offered nothing else.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from torchsmith_fx_backend._src.capture.torch_private import fused_attention_choice

_FUSED = {
    1: SDPBackend.FLASH_ATTENTION,
    2: SDPBackend.EFFICIENT_ATTENTION,
    3: SDPBackend.CUDNN_ATTENTION,
}


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **more: Any,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` of traced operands."""
    given = (query, key, value, attn_mask, dropout_p, is_causal)
    for backends in _offers(given, more):
        try:
            with warnings.catch_warnings(), sdpa_kernel(list(backends)):
                warnings.simplefilter("ignore")  # why a kernel does not take fake operands
                return scaled_dot_product_attention(*given, **more)
        except RuntimeError:
            continue
    return scaled_dot_product_attention(*given, **more)


def _offers(given: tuple[Any, ...], more: dict[str, Any]) -> list[tuple[SDPBackend, ...]]:
    """Kernels to restrict torch to, the best first; none where its own choice is as good."""
    tensors = [x for x in given if isinstance(x, torch.Tensor)]
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return []
    sizes = [n for t in tensors for n in (*t.shape, *t.stride())]
    if any(type(n) is not int for n in sizes):
        return []
    kind = tensors[0].device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    chosen = fused_attention_choice(
        *given,
        scale=more.get("scale"),
        enable_gqa=more.get("enable_gqa", False),
        dtype=dtype,
    )
    if chosen not in _FUSED:
        return []
    flags: Any = torch.backends.cuda
    allowed = (
        flags.flash_sdp_enabled(),
        flags.mem_efficient_sdp_enabled(),
        flags.cudnn_sdp_enabled(),
    )
    others = tuple(backend for backend, on in zip(_FUSED.values(), allowed) if on)
    return [(_FUSED[chosen],), others]
