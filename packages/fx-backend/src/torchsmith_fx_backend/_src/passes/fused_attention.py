"""Attention calls in the form that the fastest kernel takes.

Eager chooses between kernels by looking at the operands. A bias that is a transposed view sends a
call through float32 matrix products (T5: 0.64 ms a call on an H200, 0.04 with the bias laid out by
rows); keys that a caller repeated for grouped queries are written and read once per query head (27
us a call of one token, 8 without); a mask of booleans is made numbers again in each layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.recorder import values_of
from torchsmith_fx_backend._src.capture.torch_private import fused_attention_choice
from torchsmith_fx_backend._src.passes.attention import (
    ATTENTION,
    DEFAULTS,
    arguments,
    call_with,
    result_of,
)
from torchsmith_fx_backend._src.passes.base import Pass, insert, is_static

aten = torch.ops.aten
HALF = (torch.float16, torch.bfloat16)
_ROW = 8  # elements: fused kernels load mask rows in pieces of 16 bytes
_REPEATS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


@dataclass(frozen=True)
class FusedAttention(Pass):
    """Lays out masks by aligned rows, as numbers, once for all layers, and leaves repeated keys and
    values to the kernel, where eager's own choice is a fused kernel then.

    Attributes:
        device: calls on devices of this type are rewritten.
        choose: number of the kernel that eager chooses for operands like these; 0 is the one that
            stores all scores, None: cannot be told.
    """

    device: str = "cuda"
    choose: Callable[..., int | None] = fused_attention_choice

    def run(self, graph: fx.Graph) -> None:
        masks: dict[tuple[fx.Node, torch.dtype], fx.Node] = {}
        for node in graph.find_nodes(op="call_function", target=ATTENTION):
            call = arguments(node)
            if self._takes(call):
                self._rewrite(graph, node, call, masks)

    def _takes(self, call: dict[str, Any]) -> bool:
        operands = [call[name].meta["val"] for name in ("query", "key", "value")]
        return (
            call.get("dropout_p", 0.0) == 0
            and all(v.device.type == self.device and v.dim() == 4 for v in operands)
            and all(is_static(v) and v.dtype in HALF and v.numel() for v in operands)
        )

    def _rewrite(
        self,
        graph: fx.Graph,
        node: fx.Node,
        call: dict[str, Any],
        masks: dict[tuple[fx.Node, torch.dtype], fx.Node],
    ) -> None:
        if self._chosen(call) is None:
            return
        new = dict(call)
        key, value = unrepeated(call["key"]), unrepeated(call["value"])
        if key is not None and value is not None and not call.get("enable_gqa", False):
            grouped = {**new, "key": key, "value": value, "enable_gqa": True}
            if self._chosen(grouped):
                new = grouped
        mask = call.get("attn_mask")
        if isinstance(mask, fx.Node) and is_static(mask.meta["val"]):
            dtype = call["query"].meta["val"].dtype
            if (mask, dtype) not in masks:
                masks[mask, dtype] = _rows(graph, node, mask, dtype)
            laid = {**new, "attn_mask": masks[mask, dtype]}
            if masks[mask, dtype] is not mask and self._chosen(laid):
                new = laid
        if new != call:
            call_with(graph, node, new, result_of(new))

    def _chosen(self, call: dict[str, Any]) -> int | None:
        values = values_of(call)
        return self.choose(
            *(values.get(name, default) for name, default in DEFAULTS.items()),
            scale=values.get("scale"),
            enable_gqa=values.get("enable_gqa", False),
        )


def unrepeated(node: fx.Node) -> fx.Node | None:
    """What ``node`` repeats along its heads: ``x[:, :, None].expand(...).reshape(...)``."""
    chain: Any = node
    if chain.target not in _REPEATS:
        return None
    chain = chain.args[0]
    if chain.target is aten.clone.default:
        chain = chain.args[0]
    if chain.target is not aten.expand.default:
        return None
    added = chain.args[0]
    if added.target is not aten.unsqueeze.default or added.args[1] not in (2, -3):
        return None
    base = added.args[0]
    wide, narrow = chain.meta["val"].shape, base.meta["val"].shape
    batch, heads, length, width = narrow
    same = tuple(wide) == (batch, heads, wide[2], length, width)
    whole = (batch, heads * wide[2], length, width)
    return base if same and tuple(node.meta["val"].shape) == whole else None


def _rows(graph: fx.Graph, before: fx.Node, mask: fx.Node, dtype: torch.dtype) -> fx.Node:
    """``mask`` as numbers in rows that start at multiples of 16 bytes; itself if it is that."""
    value = mask.meta["val"]
    if value.dim() < 2 or not value.numel():
        return mask
    strides = [s for s, n in zip(value.stride()[:-1], value.shape[:-1]) if n > 1]
    aligned = value.stride(-1) == 1 and all(s % _ROW == 0 for s in strides)
    if aligned and value.dtype is not torch.bool and value.shape[-1] % _ROW == 0:
        return mask
    with graph.inserting_before(before):
        small = mask
        for dim, (size, stride) in enumerate(zip(value.shape, value.stride())):
            if stride == 0 and size > 1 and dim < value.dim() - 1:  # what repeats is kept once
                small = insert(graph, aten.slice.Tensor, small, dim, 0, 1)
        if value.dtype is torch.bool:
            options = {"dtype": dtype, "device": value.device}
            zero = insert(graph, aten.full.default, [], 0.0, **options)
            hidden = insert(graph, aten.full.default, [], -torch.inf, **options)
            small = insert(graph, aten.where.self, small, zero, hidden)
        length = value.shape[-1]
        if small.meta["val"].stride(-1) != 1:
            contiguous = torch.contiguous_format
            small = insert(graph, aten.clone.default, small, memory_format=contiguous)
        if length % _ROW:
            padded = insert(graph, aten.constant_pad_nd.default, small, [0, -length % _ROW], 0.0)
            small = insert(graph, aten.slice.Tensor, padded, -1, 0, length)
        if small.meta["val"].shape != value.shape:
            small = insert(graph, aten.expand.default, small, list(value.shape))
    return small
