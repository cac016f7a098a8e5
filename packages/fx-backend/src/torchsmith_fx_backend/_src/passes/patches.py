"""Convolutions over patches that do not overlap, as matrix products.

The first layer of a vision transformer and a convolution over a whole image multiply each element
once with each filter: after a rearrangement that is one product. Libraries have no fast kernel for
such shapes (7 x 7 over 7 x 7 with 4,096 filters on an H200, bfloat16: 3.5 ms; the weights are read
in 0.05). So is a convolution of single pixels in groups, one product of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, escaping, insert, is_static, replace_with
from torchsmith_fx_backend._src.passes.biases import CONVOLUTION
from torchsmith_fx_backend._src.passes.layouts import follow
from torchsmith_fx_backend._src.passes.noop import NoOps

aten = torch.ops.aten
_CONTIGUOUS = torch.contiguous_format
_WIDE = 64  # channels of a group; narrower ones were not measured


@dataclass(frozen=True)
class PatchProducts(Pass):
    """Replaces convolutions whose stride is their kernel by ``linear`` over rearranged images.

    The product has its channels side by side, and what is computed from it lies likewise: else all
    of a transformer would have the layout of the convolution, in which each row lies across.

    Attributes:
        device: convolutions on devices of this type are rewritten.
        dtypes: those for which matrix products are that much faster.
        same_draws: as for ``ChannelsLast``.
    """

    device: str = "cuda"
    dtypes: tuple[torch.dtype, ...] = (torch.float16, torch.bfloat16)
    same_draws: bool = False

    def run(self, graph: fx.Graph) -> None:
        if torch.are_deterministic_algorithms_enabled():
            return  # under which a library's products may be refused
        convolutions = graph.find_nodes(op="call_function", target=CONVOLUTION)
        taken = [node for node in convolutions if self._takes(node)]
        if not taken:
            return
        seen, before = escaping(graph, saved=False), {}
        for node in taken:
            product = self._product(graph, node)
            if node in seen:
                replace_with(graph, node, product)
                continue
            product.meta = {**node.meta, "val": product.meta["val"]}
            before[product] = node.meta["val"]
            node.replace_all_uses_with(product)
            graph.erase_node(node)
        follow(graph, before, same_draws=self.same_draws)

    def _takes(self, node: fx.Node) -> bool:
        x, weight = (n.meta["val"] for n in node.args[:2])  # type: ignore[union-attr]
        stride, padding, dilation, transposed, _, groups = node.args[3:9]
        if not (is_static(x) and is_static(weight) and x.dim() == weight.dim() == 4):
            return False
        kernel = weight.shape[2:]
        if transposed or groups != 1 or x.dtype not in self.dtypes or not x.numel():
            return False
        if x.device.type != self.device or x.dtype != weight.dtype:
            return False
        apart = all(
            s == k or n == k for s, k, n in zip(_pair(stride), kernel, x.shape[2:], strict=True)
        )
        fits = all(n % k == 0 for n, k in zip(x.shape[2:], kernel, strict=True))
        plain = _pair(padding) == [0, 0] and _pair(dilation) == [1, 1]
        return plain and apart and fits and max(kernel) > 1

    def _product(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        image, weight, bias = node.args[:3]
        (batch, channels, height, width) = image.meta["val"].shape  # type: ignore[union-attr]
        filters, _, tall, wide = weight.meta["val"].shape  # type: ignore[union-attr]
        rows, columns, inner = height // tall, width // wide, channels * tall * wide
        with graph.inserting_before(node):
            flat: Any = image
            if (rows, columns) != (1, 1):
                flat = insert(graph, aten.clone.default, flat, memory_format=_CONTIGUOUS)
                pieces = [batch, channels, rows, tall, columns, wide]
                flat = insert(graph, aten.view.default, flat, pieces)
                flat = insert(graph, aten.permute.default, flat, [0, 2, 4, 1, 3, 5])
            flat = insert(graph, aten.clone.default, flat, memory_format=_CONTIGUOUS)
            flat = insert(graph, aten.view.default, flat, [batch, rows, columns, inner])
            filled: Any = weight
            if not weight.meta["val"].is_contiguous():  # type: ignore[union-attr]
                filled = insert(graph, aten.clone.default, filled, memory_format=_CONTIGUOUS)
            filled = insert(graph, aten.view.default, filled, [filters, inner])
            product = insert(graph, aten.linear.default, flat, filled, bias)
            return insert(graph, aten.permute.default, product, [0, 3, 1, 2])


@dataclass(frozen=True)
class GroupProducts(PatchProducts):
    """Replaces convolutions of single pixels (or places of a row) in groups by ``bmm``, where the
    library would rearrange images of such groups at each call: on an H200 in bfloat16 the first
    took four to twelve times as long for two to four groups of 72 to 768 channels."""

    def run(self, graph: fx.Graph) -> None:
        before = len(graph.nodes)
        super().run(graph)
        if len(graph.nodes) != before:
            NoOps().run(graph)  # what is computed from a product lies as the next one reads it

    def _takes(self, node: fx.Node) -> bool:
        x, weight = (n.meta["val"] for n in node.args[:2])  # type: ignore[union-attr]
        stride, padding, _, transposed, _, groups = cast("tuple[Any, ...]", node.args[3:9])
        width = weight.shape[1]
        plain = max(stride) == 1 and max(padding) == 0 and not transposed and groups > 1
        if not (plain and is_static(x) and is_static(weight) and weight.is_contiguous()):
            return False
        if x.device.type != self.device or not x.dtype == weight.dtype in self.dtypes:
            return False
        pixels = math.prod(weight.shape[2:]) == 1 and x.numel() > 0 and x.dim() in (3, 4)
        return bool(pixels and width >= _WIDE and width % 8 == 0 and width & (width - 1))

    def _product(self, graph: fx.Graph, node: fx.Node) -> fx.Node:
        image, weight, bias, *_, groups = cast("tuple[Any, ...]", node.args)
        batch, _, *places = image.meta["val"].shape
        filters, width = weight.meta["val"].shape[:2]
        pixels, each = batch * math.prod(places), filters // groups
        inside = range(2, 2 + len(places))
        with graph.inserting_before(node):
            turned = insert(graph, aten.permute.default, image, [0, *inside, 1])
            if not turned.meta["val"].is_contiguous():
                turned = insert(graph, aten.clone.default, turned, memory_format=_CONTIGUOUS)
            rows = insert(graph, aten.view.default, turned, [pixels, groups, width])
            rows = insert(graph, aten.permute.default, rows, [1, 0, 2])
            columns = insert(graph, aten.view.default, weight, [groups, each, width])
            columns = insert(graph, aten.permute.default, columns, [0, 2, 1])
            parts = insert(graph, aten.bmm.default, rows, columns)
            parts = insert(graph, aten.permute.default, parts, [1, 0, 2])
            joined = insert(graph, aten.clone.default, parts, memory_format=_CONTIGUOUS)
            result = insert(graph, aten.view.default, joined, [batch, *places, filters])
            if bias is not None:
                result = insert(graph, aten.add.Tensor, result, bias)
            return insert(graph, aten.permute.default, result, [0, -1, *(n - 1 for n in inside)])


def _pair(values: Any) -> list[int]:
    return list(values) * (3 - len(values))
