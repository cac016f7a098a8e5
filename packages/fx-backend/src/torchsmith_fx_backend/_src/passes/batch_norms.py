"""Batch norm in training as reductions and arithmetic, which fuse with what is around them.

Eager's functions walk each channel several times, on a GPU with one program for each, and their
neighbours (a ReLU, the gradient of one) walk memory again.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.body import compute_dtype
from torchsmith_fx_backend._src.passes.base import Pass, as_traced, insert, is_static

aten = torch.ops.aten
_TRACKING = aten._native_batch_norm_legit_functional.default
_PLAIN = aten._native_batch_norm_legit.no_stats
_BACKWARD = aten.native_batch_norm_backward.default
_FORMATS = (torch.contiguous_format, torch.channels_last)


@dataclass(frozen=True)
class BatchNorms(Pass):
    """Writes out batch norms over dense images.

    Attributes:
        device: calls on devices of this type are rewritten.
        dtypes: those of images.
        one_walk: whether an image is read once for both statistics: on a GPU reading is what takes
            time.
    """

    device: str = "cpu"
    dtypes: tuple[torch.dtype, ...] = (torch.float32, torch.float64)
    one_walk: bool = False

    def run(self, graph: fx.Graph) -> None:
        found = [n for n in graph.nodes if n.target in (_TRACKING, _PLAIN, _BACKWARD)]
        if not found:
            return
        with as_traced(graph):
            found = [node for node in found if self._takes(node)]
            for node in found:
                self._write_out(graph, node)

    def _write_out(self, graph: fx.Graph, node: fx.Node) -> None:
        with graph.inserting_before(node):
            if node.target is _BACKWARD:
                results = _backward(graph, node)
            else:
                results = _forward(graph, node, one_walk=self.one_walk)
            picks: Any = list(node.users)
            wanted = [_as(graph, results[n.args[1]], n.meta["val"].dtype) for n in picks]
        for pick, result in zip(picks, wanted):
            pick.replace_all_uses_with(result)
            graph.erase_node(pick)
        graph.erase_node(node)

    def _takes(self, node: fx.Node) -> bool:
        backward = node.target is _BACKWARD
        training: Any = node.args[7 if backward else 3 if node.target is _PLAIN else 5]
        image: Any = node.args[1 if backward else 0]
        x, result = image.meta["val"], node.meta["val"][0]
        return (
            training is True
            and all(user.target is operator.getitem for user in node.users)
            and x.device.type == self.device
            and x.dtype in self.dtypes
            and is_static(x)
            and x.numel() > x.shape[1]
            and _format(x) is not None
            and (result is None or result.stride() == x.stride())
            and all(
                n.meta["val"].dtype in (x.dtype, compute_dtype(x.dtype))
                for n in node.all_input_nodes
            )
        )


def _format(image: torch.Tensor) -> torch.memory_format | None:
    """The order in which an image lies densely, if it is one of the two."""
    formats = _FORMATS if image.dim() == 4 else _FORMATS[:1]
    return next((f for f in formats if image.is_contiguous(memory_format=f)), None)


def _as(graph: fx.Graph, value: fx.Node, dtype: torch.dtype) -> fx.Node:
    if value.meta["val"].dtype is dtype:
        return value
    return insert(graph, aten._to_copy.default, value, dtype=dtype)


class _Formula:
    """Inserts operators over images, and over vectors of one number per channel."""

    def __init__(self, graph: fx.Graph, image: torch.Tensor) -> None:
        self.graph = graph
        self.dtype = compute_dtype(image.dtype)  # as eager's on a GPU; on a CPU it rounds elsewhere
        self.axes = [axis for axis in range(image.dim()) if axis != 1]
        self.channels = [1, image.shape[1]] + [1] * (image.dim() - 2)
        self.number = image.numel() // image.shape[1]

    def __call__(self, target: Any, *args: Any) -> Any:
        return insert(self.graph, target, *args)

    def wide(self, value: Any) -> Any:
        return _as(self.graph, value, self.dtype)

    def across(self, vector: Any) -> Any:
        return self(aten.view.default, self.wide(vector), self.channels)

    def total(self, image: Any) -> Any:
        return self(aten.sum.dim_IntList, image, self.axes)

    def average(self, image: Any) -> Any:
        return self(aten.div.Tensor, self.total(image), self.number)

    def first(self, image: Any) -> Any:
        """Of each channel the first element."""
        for axis in reversed(self.axes):
            image = self(aten.select.int, image, axis, 0)
        return image


def _statistics(f: _Formula, x: Any, *, one_walk: bool) -> tuple[Any, Any]:
    """Mean and variance. In one walk both are those of the distances from one of the elements,
    which is no further from the mean than the root of the number of elements allows for."""
    if not one_walk:
        mean = f.average(x)
        centred = f(aten.sub.Tensor, x, f.across(mean))
        return mean, f.average(f(aten.mul.Tensor, centred, centred))
    first = f.first(x)
    away = f(aten.sub.Tensor, x, f.across(first))
    mean, square = f.average(away), f.average(f(aten.mul.Tensor, away, away))
    variance = f(aten.sub.Tensor, square, f(aten.mul.Tensor, mean, mean))
    return f(aten.add.Tensor, mean, first), f(aten.clamp_min.default, variance, 0)


def _forward(graph: fx.Graph, node: fx.Node, *, one_walk: bool) -> list[Any]:
    """The result, its mean and the reciprocal of its deviation, and new running statistics."""
    image, weight, bias, *running, _, momentum, eps = node.args
    f = _Formula(graph, image.meta["val"])  # type: ignore[union-attr]
    x = f.wide(image)
    mean, variance = _statistics(f, x, one_walk=one_walk)
    scale = f(aten.rsqrt.default, f(aten.add.Tensor, variance, eps))
    result = f(aten.mul.Tensor, f(aten.sub.Tensor, x, f.across(mean)), f.across(scale))
    if weight is not None:
        result = f(aten.mul.Tensor, result, f.across(weight))
    if bias is not None:
        result = f(aten.add.Tensor, result, f.across(bias))
    results = [result, mean, scale]
    unbiased = momentum * f.number / (f.number - 1)  # type: ignore[operator]
    for old, new, share in zip(running, (mean, variance), (momentum, unbiased)):
        kept = f(aten.mul.Tensor, f.wide(old), 1 - momentum)  # type: ignore[operator]
        results.append(f(aten.add.Tensor, kept, f(aten.mul.Tensor, new, share)))
    return results


def _backward(graph: fx.Graph, node: fx.Node) -> list[Any]:
    """The gradients of the input, the weight and the bias."""
    grad, image, weight, _, _, mean, scale, *_ = node.args
    x: torch.Tensor = image.meta["val"]  # type: ignore[union-attr]
    f = _Formula(graph, x)
    if grad.meta["val"].stride() != x.stride():  # type: ignore[union-attr]
        grad = insert(graph, aten.clone.default, grad, memory_format=_format(x))
    grad, image = f.wide(grad), f.wide(image)
    normal = f(aten.sub.Tensor, image, f.across(mean))
    normal = f(aten.mul.Tensor, normal, f.across(scale))
    along, whole = f.total(f(aten.mul.Tensor, grad, normal)), f.total(grad)
    shares = [f.across(f(aten.div.Tensor, vector, f.number)) for vector in (whole, along)]
    inside = f(aten.sub.Tensor, grad, shares[0])
    inside = f(aten.sub.Tensor, inside, f(aten.mul.Tensor, normal, shares[1]))
    factor = f.wide(scale)
    if weight is not None:
        factor = f(aten.mul.Tensor, factor, f.wide(weight))
    return [f(aten.mul.Tensor, inside, f.across(factor)), along, whole]
