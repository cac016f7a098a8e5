"""What eager execution of a graph holds in memory, from the sizes and last uses of its values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import fx
from torchsmith_guards import hint_of


def tensors(value: object) -> Iterator[torch.Tensor]:
    """The tensors in a node's result."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        yield from tensors(list(value.values()))


def size_in_bytes(tensor: torch.Tensor) -> int:
    """Bytes of the elements of a (fake) tensor; symbolic sizes count as in the call they are from.

    Raises:
        ValueError: a size depends on the contents of a tensor.
    """
    sizes = [hint_of(size) for size in tensor.shape]
    if None in sizes:
        raise ValueError("a size depends on data")
    numbers = [int(size) for size in sizes if size is not None]
    return math.prod(numbers) * tensor.element_size()


def eager_memory(graph: fx.Graph) -> dict[str, Any] | None:
    """Bytes that eager execution holds after each call, beyond its inputs.

    A tensor is freed after its last use; views share the memory of what they are views of.

    Returns:
        ``live``: for each call node, by name in order; ``peak``: the most; ``floor``: true when
        autograd keeps more than this. None when sizes are not known.
    """
    nodes = list(graph.nodes)
    owners: dict[int, int] = {}  # storage -> bytes
    ends: dict[int, int] = {}
    begins: dict[int, list[int]] = {}
    outside: set[int] = set()
    kept: list[torch.Tensor] = []  # so that addresses stay theirs
    floor = False
    for position, node in enumerate(nodes):
        for tensor in tensors(node.meta.get("example_value")):
            if tensor.layout is not torch.strided:
                return None
            kept.append(tensor)
            key = tensor.untyped_storage()._cdata
            ends[key] = position
            if node.op in ("placeholder", "get_attr"):
                outside.add(key)
            elif key not in owners and key not in outside:
                try:
                    owners[key] = size_in_bytes(tensor)
                except ValueError:
                    return None
                begins.setdefault(position, []).append(key)
            if tensor.requires_grad and node.op.startswith("call"):
                floor = True
        for argument in node.all_input_nodes:
            for tensor in tensors(argument.meta.get("example_value")):
                ends[tensor.untyped_storage()._cdata] = position
    drops: dict[int, list[int]] = {}
    for key in owners:
        drops.setdefault(ends[key], []).append(key)
    live: list[list[object]] = []
    now = peak = 0
    for position, node in enumerate(nodes):
        now += sum(owners[key] for key in begins.get(position, ()))
        peak = max(peak, now)
        if node.op.startswith("call"):
            live.append([node.name, now])
        if node.op != "output":
            now -= sum(owners[key] for key in drops.get(position, ()))
    return {"live": live, "peak": peak, "floor": floor}
