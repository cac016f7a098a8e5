"""Attention masks: constant masks that say nothing, or only "causal", leave attention calls."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.ops import op_info
from torchsmith_fx_backend._src.capture.recorder import values_of
from torchsmith_fx_backend._src.capture.torch_private import fake_mode_of, run_composite_kernel
from torchsmith_fx_backend._src.passes.base import Pass, inferred, keep_layout, same_layout
from torchsmith_fx_backend._src.passes.constants import Constant, Constants

aten = torch.ops.aten
ATTENTION = aten.scaled_dot_product_attention.default
_KEPT = ("query", "key", "value", "scale", "enable_gqa")
# Arguments by position, with what stands for one that is not given.
DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("query", "key", "value", "attn_mask")),
    "dropout_p": 0.0,
    "is_causal": False,
}


class Pattern(Enum):
    """What a mask lets through."""

    ALL = "all"
    CAUSAL = "causal"  # each query sees the keys up to its own position
    OTHER = "other"


class AttentionMasks(Pass):
    """Replaces a constant mask that hides nothing by none, and a causal one by ``is_causal``, so
    that the call can use the kernels without a mask. Calls with dropout keep theirs, because which
    elements are dropped depends on the kernel. The mask itself is left to dead-code elimination.
    """

    def run(self, graph: fx.Graph) -> None:
        constants = Constants()
        patterns: dict[fx.Node, Pattern] = {}
        layouts: dict[Any, torch.Tensor | None] = {}
        for node in list(graph.nodes):
            if node.op != "call_function" or node.target is not ATTENTION:
                continue
            call = arguments(node)
            mask: Any = call.get("attn_mask")
            if not isinstance(mask, fx.Node) or not _is_plain(call):
                continue
            pattern = patterns.get(mask)
            if pattern is None:
                pattern = patterns[mask] = pattern_of(constants.of(mask))
            causal = pattern is Pattern.CAUSAL and _sizes(call) == mask.meta["val"].shape[-2:]
            if pattern is not Pattern.ALL and not causal:
                continue
            new = {name: value for name, value in call.items() if name in _KEPT}
            new |= {"is_causal": True} if causal else {}
            key = tuple((k, _layout(v) if isinstance(v, fx.Node) else v) for k, v in new.items())
            if key not in layouts:
                layouts[key] = result_of(new)
            call_with(graph, node, new, layouts[key])


def arguments(node: fx.Node) -> dict[str, Any]:
    """Those of a call of attention, by name."""
    return dict(zip(op_info(ATTENTION).names, node.args)) | dict(node.kwargs)


def _is_plain(call: dict[str, Any]) -> bool:
    """Whether there is no dropout, no second mask, and all sizes are numbers."""
    operands = [call[name].meta["val"] for name in ("query", "key", "value")]
    return (
        call.get("dropout_p", 0.0) == 0
        and call.get("is_causal", False) is False
        and all(type(n) is int and n > 0 for value in operands for n in value.shape)
    )


def _sizes(call: dict[str, Any]) -> tuple[int, int]:
    """Numbers of queries and of keys."""
    return call["query"].meta["val"].shape[-2], call["key"].meta["val"].shape[-2]


def pattern_of(mask: Constant | None) -> Pattern:
    """What a mask of these values, None for one that is not known, lets through."""
    if mask is None:
        return Pattern.OTHER
    kept = mask.kept
    if kept.dtype is torch.bool:
        visible = kept
    elif kept.dtype.is_floating_point:
        visible = kept == 0
        if not bool((visible | (kept == -torch.inf)).all()):
            return Pattern.OTHER
    else:
        return Pattern.OTHER
    if bool(visible.all()):
        return Pattern.ALL
    length = mask.shape[-1]
    if visible.dim() < 2 or visible.shape[-2:] != (length, length):
        return Pattern.OTHER
    position = torch.arange(length, device="cpu")
    expected = position <= position.unsqueeze(1)
    return Pattern.CAUSAL if bool((visible == expected).all()) else Pattern.OTHER


def _layout(node: fx.Node) -> Any:
    value = node.meta["val"]
    return tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.device


def result_of(call: dict[str, Any]) -> torch.Tensor | None:
    """Metadata of a call with these arguments: another kernel may give other strides."""
    values = values_of(call)
    mode = fake_mode_of(values["query"])
    if mode is None:
        return None
    result = inferred(mode, lambda: run_composite_kernel(ATTENTION, (), values))
    return result if isinstance(result, torch.Tensor) else None


def call_with(
    graph: fx.Graph, node: fx.Node, new: dict[str, Any], result: torch.Tensor | None
) -> None:
    """Give a call the arguments ``new``, where its ``result`` then is of the size that it was."""
    before = node.meta["val"]
    if result is None or result.shape != before.shape:
        return
    node.args = tuple(new.get(name, default) for name, default in DEFAULTS.items())
    node.kwargs = {name: value for name, value in new.items() if name not in DEFAULTS}
    if not same_layout(result, before):
        keep_layout(graph, node, result)
