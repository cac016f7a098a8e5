"""The values of tensors that are computed from nothing but numbers of the program.

``torch.linspace(999, 0, 51).long().tolist()`` is the same list at each call, and the mask that
``generate_square_subsequent_mask(8)`` makes is causal. Where Python asks for such values, the nodes
that lead to them are run once, on real tensors; the graph keeps them for whatever else uses them.

A branch or a size may depend on buffers of one number, too: a flag that says whether a codebook is
initialized, a stride that is kept as a tensor. These are guarded, which reads them at each call as
eager does, until one has had more than two numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torchsmith_guards import AttrSource, GuardKind, ItemSource, ResultSource, Source

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
    from torchsmith_tracer._src.graph.output import GraphInput, OutputGraph
    from torchsmith_tracer._src.values.base import Value

_MOST_NODES = 200
_LARGEST = 2**16  # elements
_LONGEST_LITERAL = 64
_MAKING = frozenset(
    "arange linspace logspace zeros ones full eye tensor scalar_tensor tril_indices "
    "triu_indices".split()
)


def values(graph: OutputGraph, node: fx.Node, *, held: bool = False) -> torch.Tensor | None:
    """The tensor ``node`` at each call, if nothing but constants is in it; not to be changed.

    Args:
        graph: the graph so far.
        node: one of its tensors.
        held: whether numbers in buffers may be among the constants; what is used is guarded.
    """
    nodes: dict[fx.Node, None] = {}
    buffers: dict[fx.Node, GraphInput] = {}
    if graph.transforms or not _collect(graph, node, nodes, buffers if held else None):
        return None
    found: dict[fx.Node, Any] = {n: entry.example for n, entry in buffers.items()}
    for made in sorted(nodes):
        if (result := run(made.target, made.args, made.kwargs, found)) is None:
            return None
        found[made] = result
    exact, fake = found[node], node.meta["example_value"]
    if not isinstance(exact, torch.Tensor) or exact.dtype is not fake.dtype:
        return None
    if (exact.shape, exact.device) != (fake.shape, fake.device):
        return None
    why = "a branch or a size depends on it"
    for entry in buffers.values():
        source, number = ResultSource(entry.source, _number_in), _number_in(entry.example)
        graph.tx.builder.guard(source, GuardKind.CONSTANT, number, why)
    return exact


def _number_in(tensor: Any) -> int | float | None:
    with disable_torch_function[0]():
        return tensor.item() if tensor.numel() == 1 else None


def _buffer(graph: OutputGraph, node: fx.Node) -> GraphInput | None:
    """The buffer of a module that a placeholder stands for, if its number can be relied on."""
    entry = next((entry for entry in graph.inputs if entry.node is node), None)
    if entry is None or table_of(entry.source) != "_buffers":
        return None
    real: Any = entry.example
    plain = type(real) is torch.Tensor and real.numel() == 1 and not real.requires_grad
    if not plain or real.is_complex() or real.device.type not in ("cpu", "cuda"):
        return None
    for other in graph.inputs if graph.written else ():  # in the same memory, perhaps
        if isinstance(other.fake, torch.Tensor) and storage_id(other.fake) in graph.written:
            written: Any = other.example
            if type(written) not in (torch.Tensor, torch.nn.Parameter):
                return None
            memory = written.untyped_storage()
            if 0 <= real.data_ptr() - memory.data_ptr() < memory.nbytes():
                return None
    state = graph.tx.builder.frame_state
    return entry if state.holds(entry.source, real, _number_in(real)) else None


def table_of(source: Source) -> str | None:
    """The attribute of which ``source`` is an item: ``_buffers`` of a module, say."""
    attribute = source.base if isinstance(source, ItemSource) else None
    return attribute.attr if isinstance(attribute, AttrSource) else None


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


def _collect(
    graph: OutputGraph,
    node: fx.Node,
    nodes: dict[fx.Node, None],
    buffers: dict[fx.Node, GraphInput] | None,
) -> bool:
    """Gather the nodes that lead to ``node``, and those of ``buffers``; False where one is not as
    it was made, or depends on more than constants."""
    if node in nodes:
        return True
    if node.op == "placeholder":
        if buffers is None or (entry := _buffer(graph, node)) is None:
            return False
        buffers[node] = entry
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
    return all(_collect(graph, given, nodes, buffers) for given in inputs)
