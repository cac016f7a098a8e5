"""Biases of convolutions, added by the kernels that follow.

On a GPU the library computes the product alone; aten adds the bias in a pass over the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import Pass, insert

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default


@dataclass(frozen=True)
class ConvolutionBiases(Pass):
    """Takes biases out of the calls of convolutions on devices of this type."""

    device: str = "cuda"

    def run(self, graph: fx.Graph) -> None:
        found = [
            node
            for node in graph.find_nodes(op="call_function", target=CONVOLUTION)
            if isinstance(node.args[2], fx.Node)
            and node.meta["val"].device.type == self.device
            and node.args[8] == 1  # aten's own kernels for images of one channel each add it
        ]
        for node in found:
            split_bias(graph, node)


def split_bias(graph: fx.Graph, node: fx.Node) -> None:
    """``convolution(x, w, b)`` as ``convolution(x, w) + b``."""
    x, weight, bias, *rest = node.args
    if not isinstance(bias, fx.Node):
        return
    before = node.meta["val"]
    node.args = (x, weight, None, *rest)
    with graph.inserting_before(node.next):
        shaped = insert(graph, aten.view.default, bias, [1, -1, *[1] * (before.dim() - 2)])
        added = insert(graph, aten.add.Tensor, node, shaped)
    node.replace_all_uses_with(added, delete_user_cb=lambda user: user is not added)
    shaped.meta = {**node.meta, **shaped.meta}
    added.meta = {**node.meta, "val": before}
