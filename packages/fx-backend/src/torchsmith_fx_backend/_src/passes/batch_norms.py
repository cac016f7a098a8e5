"""Batch norm in training as reductions and arithmetic, which fuse with what is around them.

On a CPU eager's function walks each channel several times, and its neighbours (a ReLU, the gradient
of one) walk memory again. On a GPU the library's function is called.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.passes.base import insert, is_static

aten = torch.ops.aten
_TRACKING = aten._native_batch_norm_legit_functional.default
_PLAIN = aten._native_batch_norm_legit.no_stats
_BACKWARD = aten.native_batch_norm_backward.default
_DTYPES = (torch.float32, torch.float64)


@dataclass(frozen=True)
class BatchNorms:
    """Writes out batch norms in single or double precision over dense images.

    Attributes:
        device: calls on devices of this type are rewritten.
    """

    device: str = "cpu"
    name: str = "batch-norms"

    def run(self, graph: fx.Graph) -> bool:
        """Rewrite ``graph`` in place."""
        changed = False
        for node in list(graph.nodes):
            if node.target not in (_TRACKING, _PLAIN, _BACKWARD) or not self._takes(node):
                continue
            picks = list(node.users)
            if any(user.target is not operator.getitem for user in picks):
                continue
            with graph.inserting_before(node):
                results = (_backward if node.target is _BACKWARD else _forward)(graph, node)
            for pick in picks:
                pick.replace_all_uses_with(results[pick.args[1]])
                graph.erase_node(pick)
            graph.erase_node(node)
            changed = True
        return changed

    def _takes(self, node: fx.Node) -> bool:
        backward = node.target is _BACKWARD
        training: Any = node.args[7 if backward else 3 if node.target is _PLAIN else 5]
        x: Any = node.args[1 if backward else 0]
        x = x.meta["val"]
        return (
            training is True
            and x.device.type == self.device
            and x.dtype in _DTYPES
            and is_static(x)
            and x.is_contiguous()
            and x.numel() > x.shape[1]
            and all(n.meta["val"].dtype is x.dtype for n in node.all_input_nodes)
        )


class _Formula:
    """Inserts operators over images, and over vectors of one number per channel."""

    def __init__(self, graph: fx.Graph, image: torch.Tensor) -> None:
        self.graph = graph
        self.axes = [axis for axis in range(image.dim()) if axis != 1]
        self.channels = [1, image.shape[1]] + [1] * (image.dim() - 2)
        self.number = image.numel() // image.shape[1]

    def __call__(self, target: Any, *args: Any) -> Any:
        return insert(self.graph, target, *args)

    def across(self, vector: Any) -> Any:
        return self(aten.view.default, vector, self.channels)

    def total(self, image: Any) -> Any:
        return self(aten.sum.dim_IntList, image, self.axes)

    def average(self, image: Any) -> Any:
        return self(aten.div.Tensor, self.total(image), self.number)


def _forward(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The result, its mean and the reciprocal of its deviation, and new running statistics."""
    x, weight, bias, *running, _, momentum, eps = node.args
    f = _Formula(graph, x.meta["val"])  # type: ignore[union-attr]
    mean = f.average(x)
    centred = f(aten.sub.Tensor, x, f.across(mean))
    variance = f.average(f(aten.mul.Tensor, centred, centred))
    scale = f(aten.rsqrt.default, f(aten.add.Tensor, variance, eps))
    result = f(aten.mul.Tensor, centred, f.across(scale))
    if weight is not None:
        result = f(aten.mul.Tensor, result, f.across(weight))
    if bias is not None:
        result = f(aten.add.Tensor, result, f.across(bias))
    results = [result, mean, scale]
    unbiased = momentum * f.number / (f.number - 1)  # type: ignore[operator]
    for old, new, share in zip(running, (mean, variance), (momentum, unbiased)):
        kept = f(aten.mul.Tensor, old, 1 - momentum)  # type: ignore[operator]
        results.append(f(aten.add.Tensor, kept, f(aten.mul.Tensor, new, share)))
    return results


def _backward(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The gradients of the input, the weight and the bias."""
    grad, x, weight, _, _, mean, scale, *_ = node.args
    f = _Formula(graph, x.meta["val"])  # type: ignore[union-attr]
    if not grad.meta["val"].is_contiguous():  # type: ignore[union-attr]
        layout = torch.contiguous_format
        grad = insert(graph, aten.clone.default, grad, memory_format=layout)
    normal = f(aten.sub.Tensor, x, f.across(mean))
    normal = f(aten.mul.Tensor, normal, f.across(scale))
    along, whole = f.total(f(aten.mul.Tensor, grad, normal)), f.total(grad)
    shares = [f.across(f(aten.div.Tensor, vector, f.number)) for vector in (whole, along)]
    inside = f(aten.sub.Tensor, grad, shares[0])
    inside = f(aten.sub.Tensor, inside, f(aten.mul.Tensor, normal, shares[1]))
    factor = scale if weight is None else f(aten.mul.Tensor, scale, weight)
    return [f(aten.mul.Tensor, inside, f.across(factor)), along, whole]
