"""Where the maxima of pooling windows lie, kept for the backward pass in a byte or two.

Eager saves positions in the image, eight bytes for each window. A maximum is near the start of its
window, and that is known from the window's place: how far behind it is is saved instead.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.loops.registry import argument
from torchsmith_fx_backend._src.passes.base import Pass, insert, is_static

aten = torch.ops.aten
_POOLS: dict[Any, int] = {
    aten.max_pool2d_with_indices.default: 2,
    aten.max_pool3d_with_indices.default: 3,
}
_SMALL = (torch.uint8, torch.int16, torch.int32)


@dataclass(frozen=True)
class PoolPositions(Pass):
    """Gives nodes that have ``late`` in their meta positions that are computed again from what is
    small. For joint graphs, before they are divided."""

    late: str

    def run(self, graph: fx.Graph) -> None:
        calls = [n for pool in _POOLS for n in graph.find_nodes(op="call_function", target=pool)]
        items = [u for n in calls for u in n.users if u.target is operator.getitem and u.args[1]]
        for node in items:
            self._shrink(graph, node)

    def _shrink(self, graph: fx.Graph, positions: fx.Node) -> None:
        """Rewrite the late users of ``positions``, of which all or none can be."""
        users = [user for user in positions.users if self.late in user.meta]
        call = positions.args[0]
        assert isinstance(call, fx.Node)
        source = call.args[0]
        assert isinstance(source, fx.Node)
        image, value = source.meta["val"], positions.meta["val"]
        if not users or not is_static(image) or not is_static(value):
            return
        dims = _POOLS[call.target]
        kernel, stride, padding, dilation = (
            _numbers(argument(call, place, name, default), dims)
            for place, (name, default) in enumerate(_ARGUMENTS.items(), 1)
        )
        stride = stride or kernel
        rows = [1]  # elements from one point to the next along each dimension, the last one first
        for size in image.shape[:-dims:-1]:
            rows.append(rows[-1] * size)
        rows.reverse()
        farthest = sum((k - 1) * d * row for k, d, row in zip(kernel, dilation, rows))
        dtype = next((t for t in _SMALL if farthest <= torch.iinfo(t).max), None)
        if dtype is None:
            return
        starts: fx.Node | None = None
        with graph.inserting_before(positions.next):
            for dim, row in enumerate(rows):
                first, step = -padding[dim] * row, stride[dim] * row
                count = value.shape[value.dim() - dims + dim]
                line = insert(
                    graph,
                    aten.arange.start_step,
                    first,
                    first + count * step,
                    step,
                    dtype=torch.int64,
                    device=value.device,
                )
                line = insert(graph, aten.view.default, line, [-1, *[1] * (dims - 1 - dim)])
                starts = line if starts is None else insert(graph, aten.add.Tensor, starts, line)
            behind = insert(graph, aten.sub.Tensor, positions, starts)
            small = insert(graph, aten._to_copy.default, behind, dtype=dtype)
            small._rename(f"{positions.name}_behind")  # the same in each graph of this program
            wide = insert(graph, aten._to_copy.default, small, dtype=torch.int64)
            again = insert(graph, aten.add.Tensor, wide, starts)
        for user in users:
            user.replace_input_with(positions, again)


# The arguments that say where windows lie, in order after the image, and their defaults.
_ARGUMENTS: dict[str, Any] = {"kernel_size": 0, "stride": (), "padding": 0, "dilation": 1}


def _numbers(given: Any, dims: int) -> list[int]:
    numbers = list(given) if isinstance(given, (list, tuple)) else [given]
    return numbers * dims if len(numbers) == 1 else numbers
