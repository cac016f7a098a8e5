"""The values of tensors that are computed from nothing but numbers of the program.

``torch.linspace(999, 0, 51).long().tolist()`` is the same list at each call, and the mask that
``generate_square_subsequent_mask(8)`` makes is causal. Where Python asks for such values, the nodes
that lead to them are run once, on real tensors; the graph keeps them for whatever else uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer._src.graph.fakes import in_place
from torchsmith_tracer._src.graph.may_raise import Operation, draws
from torchsmith_tracer._src.torch_private import (
    FakeTensor,
    disable_torch_function,
    has_symbols,
    map_nodes,
    storage_id,
)

if TYPE_CHECKING:
    from torchsmith_tracer._src.graph.output import OutputGraph
    from torchsmith_tracer._src.values.base import Value

_MOST_NODES = 200
_LARGEST = 2**16  # elements
_LONGEST_LITERAL = 64
_MAKING = frozenset(
    "arange linspace logspace zeros ones full eye tensor scalar_tensor tril_indices "
    "triu_indices".split()
)


def values(graph: OutputGraph, node: fx.Node) -> torch.Tensor | None:
    """The tensor ``node`` at each call, if nothing but constants is in it; not to be changed."""
    nodes: dict[fx.Node, None] = {}
    if graph.transforms or not _collect(graph, node, nodes):
        return None
    found: dict[fx.Node, Any] = {}
    for made in sorted(nodes):
        if (result := run(made.target, made.args, made.kwargs, found)) is None:
            return None
        found[made] = result
    result, fake = found[node], node.meta["example_value"]
    same = isinstance(result, torch.Tensor) and result.dtype is fake.dtype
    return result if same and (result.shape, result.device) == (fake.shape, fake.device) else None


def run(target: Any, args: Any, kwargs: Any, found: dict[fx.Node, Any]) -> Any:
    """The result of a call for what its nodes were ``found`` to hold, or None."""
    try:
        with torch.no_grad(), disable_torch_function[0]():
            args, kwargs = map_nodes((args, dict(kwargs)), found.__getitem__)
            if isinstance(target, str):
                return getattr(args[0], target)(*args[1:], **kwargs)
            return target(*args, **kwargs)
    except Exception:  # noqa: BLE001 - the program will meet it in the graph
        return None


def literal(
    graph: OutputGraph, refusal: Unsupported, target: Any, args: object, kwargs: Any
) -> Value | None:
    """What a call gives that was refused because its sizes depend on values, where these are known
    and the results few."""
    found: dict[fx.Node, Any] = {}
    if refusal.kind != "data-dependent-op" or "out" in kwargs:
        return None
    if in_place(target) or draws(Operation.of(target)):
        return None

    def know(node: fx.Node) -> None:
        found[node] = values(graph, node)

    map_nodes((args, kwargs), know)
    unknown = any(value is None for value in found.values())
    result = None if unknown else run(target, args, kwargs, found)
    parts: list[Any] = list(result) if type(result) is tuple else [result]
    if not all(isinstance(t, torch.Tensor) and 0 < t.numel() <= _LONGEST_LITERAL for t in parts):
        return None
    made = [
        graph.call_function(torch.tensor, (t.tolist(),), {"dtype": t.dtype, "device": t.device})
        for t in parts
    ]
    return graph.tx.interp.tuple(made) if type(result) is tuple else made[0]


def _collect(graph: OutputGraph, node: fx.Node, nodes: dict[fx.Node, None]) -> bool:
    """Gather the nodes that lead to ``node``; False where one is not as it was made, or depends on
    more than constants."""
    if node in nodes:
        return True
    nodes[node] = None
    if node.op not in ("call_function", "call_method") or len(nodes) > _MOST_NODES:
        return False
    fakes: Any = node.meta.get("example_value")
    for fake in fakes if isinstance(fakes, list | tuple) else (fakes,):
        if not isinstance(fake, FakeTensor) or has_symbols(fake) or fake.numel() > _LARGEST:
            return False
        if storage_id(fake) in graph.written or fake.device.type not in ("cpu", "cuda"):
            return False
    inputs, operation = node.all_input_nodes, Operation.of(node.target)
    if not inputs and (operation.name not in _MAKING or not operation.own):
        return False
    if "out" in node.kwargs or in_place(node.target) or "empty" in operation.name:
        return False
    if draws(operation) or any(user.target is setattr for user in node.users):
        return False
    if node.target is torch.tensor and fakes.numel() == 1 and fakes.constant is None:
        return False  # torch has seen a write to it, maybe through a fake storage of its own
    return all(_collect(graph, given, nodes) for given in inputs)
