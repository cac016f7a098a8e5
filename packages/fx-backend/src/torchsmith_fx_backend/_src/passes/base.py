"""What all passes share: their protocol, the verifier, what escapes, and equal arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torchsmith_guards import TorchMode, deliver, is_interruption, same_sizes

from torchsmith_fx_backend._src.capture.ops import Effect, op_info
from torchsmith_fx_backend._src.capture.recorder import values_of
from torchsmith_fx_backend._src.capture.symbols import SymbolNodes
from torchsmith_fx_backend._src.capture.torch_private import (
    OpOverload,
    below_autocast,
    below_autograd,
    fake_mode_of,
)
from torchsmith_fx_backend.errors import StageError

aten = torch.ops.aten
COPY = aten.copy_.default
CONTIGUOUS = {"memory_format": torch.contiguous_format}
# Operators that replace some elements of their first argument -> their forms that write it.
IN_PLACE: dict[Any, OpOverload] = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
    aten.index_add.default: aten.index_add_.default,
    aten.index_fill.int_Scalar: aten.index_fill_.int_Scalar,
    aten.index_fill.int_Tensor: aten.index_fill_.int_Tensor,
    aten.scatter.src: aten.scatter_.src,
    aten.scatter.value: aten.scatter_.value,
    aten.scatter_add.default: aten.scatter_add_.default,
    aten.scatter_reduce.two: aten.scatter_reduce_.two,
    aten.masked_scatter.default: aten.masked_scatter_.default,
}
# Those that write a part alone, with the memory that they write as ``out``.
PARTS: dict[Any, OpOverload] = {
    aten.select_scatter.default: aten.select_scatter.out,
    aten.slice_scatter.default: aten.slice_scatter.out,
}
WRITERS = frozenset((*IN_PLACE.values(), *PARTS.values()))
# Metadata of the output of a forward half: how many results are the caller's, the first ones; and
# of an input of a backward half: the value that it was differentiated with, which the forward half
# may have laid out otherwise.
RESULTS, TRACED = "results", "traced"


class Pass:
    """A rewrite of a functional graph."""

    @property
    def name(self) -> str:
        """Identifier for logs and errors: ``dead-code`` is a ``DeadCode``."""
        return re.sub("(?<!^)(?=[A-Z])", "-", type(self).__name__).lower()

    def run(self, graph: fx.Graph) -> None:
        """Rewrite ``graph`` in place."""
        raise NotImplementedError(self.name)


def run_passes(graph: fx.Graph, passes: Iterable[Pass], *, check: bool = False) -> None:
    """Run ``passes`` in order.

    Args:
        graph: a functional graph, changed in place.
        passes: what to run.
        check: verify the graph after each pass.

    Raises:
        StageError: a pass failed, or with ``check`` left a graph that is not functional.
    """
    for each in passes:
        deliver()
        try:
            each.run(graph)
        except Exception as error:
            if is_interruption(error):
                raise
            problem = f"{type(error).__name__}: {error}"
            raise StageError(stage=f"pass {each.name}", error=problem) from error
        if check:
            try:
                verify(graph)
            except (RuntimeError, ValueError) as error:
                raise StageError(stage=f"pass {each.name}", error=error) from error


def verify(graph: fx.Graph) -> None:
    """Check that ``graph`` is functional and that every value has metadata.

    Raises:
        ValueError: it is not; the message names the node.
    """
    graph.lint()
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr", "call_function") and "val" not in node.meta:
            raise ValueError(f"no metadata: {node.format_node()}")
        if node.op != "call_function" or not isinstance(node.target, OpOverload):
            continue
        if node.target is COPY:
            if node.args[0].op not in ("placeholder", "get_attr"):
                raise ValueError(f"copies into an intermediate: {node.format_node()}")
        elif node.target in WRITERS and (node.args[0].op == "placeholder" or "out" in node.kwargs):
            continue  # as WritesInPlace leaves it
        elif op_info(node.target).effect not in (Effect.NONE, Effect.VIEW):
            raise ValueError(f"writes: {node.format_node()}")


def inferred(mode: Any, call: Callable[[], object]) -> object:
    """What ``call`` gives on fake tensors of ``mode``: graphs have autocast's casts in them, though
    it is often on while they are compiled."""
    with mode, below_autograd(), torch.no_grad(), below_autocast():
        return call()


def insert(graph: fx.Graph, target: OpOverload, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call at the insertion point of ``graph``, with its metadata."""
    node = graph.call_function(target, args, kwargs)
    node.meta["val"] = infer(node)
    return node


def held(graph: fx.Graph, value: torch.Tensor, meta: dict[str, Any]) -> fx.Node:
    """A new constant at the insertion point of ``graph``."""
    module: Any = graph.owning_module
    number = 0
    while hasattr(module, f"held_{number}"):
        number += 1
    module.register_buffer(f"held_{number}", value, persistent=False)
    node = graph.get_attr(f"held_{number}")
    node.meta = dict(meta)
    return node


def infer(node: fx.Node) -> Any:
    """What the call of ``node`` gives for what the metadata of its operands tells."""
    target: Any = node.target
    args, kwargs = values_of((node.args, node.kwargs))
    found = (n.meta.get("val") for n in node.graph.nodes)
    modes = (fake_mode_of(value) for value in found if isinstance(value, torch.Tensor))
    mode: Any = next(mode for mode in modes if mode is not None)
    if isinstance(mode, TorchMode):
        known = mode.by_rule(target, args, kwargs)
        if known is not NotImplemented:
            return known
    return inferred(mode, lambda: target(*args, **kwargs))


def is_static(tensor: torch.Tensor) -> bool:
    """Whether all sizes and strides are numbers."""
    return all(type(n) is int for n in (*tensor.shape, *tensor.stride()))


def is_pure(node: fx.Node) -> bool:
    """Whether the node may be dropped when unused, merged with an equal one, or moved."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    if isinstance(node.target, OpOverload):
        return not op_info(node.target).impure
    return getattr(node.target, "__module__", None) in ("_operator", "torch")


def is_view(node: fx.Node) -> bool:
    """Whether the node shares memory with its first argument."""
    return (
        node.op == "call_function"
        and isinstance(node.target, OpOverload)
        # The schema of ``_unsafe_view`` does not say that it is a view.
        and (node.target is aten._unsafe_view.default or op_info(node.target).effect is Effect.VIEW)
    )


def source(node: fx.Node) -> fx.Node:
    """The node whose memory ``node`` shares: itself unless it is a view."""
    while True:
        if is_view(node) or _is_item_of_view(node):
            node = node.args[0]  # type: ignore[assignment]
        else:
            return node


def _is_item(node: fx.Node) -> bool:
    """Whether the node is one of several results; the call then stands for all of them."""
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def _is_item_of_view(node: fx.Node) -> bool:
    parent = node.args[0] if _is_item(node) else None
    return isinstance(parent, fx.Node) and is_view(parent)


def returned(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that the graph returns as they are."""
    return set(graph.output_node().all_input_nodes)


def saved(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that a forward half hands to its backward half, the caller's results or not."""
    output = graph.output_node()
    values: Any = output.args[0] if RESULTS in output.meta else ()
    return {n for n in values[output.meta.get(RESULTS, 0) :] if isinstance(n, fx.Node)}


def escaping(graph: fx.Graph, *, saved: bool = True) -> set[fx.Node]:
    """The nodes whose memory the caller gets to see: returned ones and what those are views of.
    Without ``saved`` not what a forward half hands to its backward half alone."""
    seen, output = returned(graph), graph.output_node()
    if not saved and RESULTS in output.meta:
        results: Any = output.args[0]
        seen = {n for n in results[: output.meta[RESULTS]] if isinstance(n, fx.Node)}
    found: set[fx.Node] = set()
    for node in seen:
        current: Any = node
        while current not in found:
            found.add(current)
            if not (is_view(current) or _is_item(current)):
                break
            current = current.args[0]
    return found


def ancestors(
    nodes: Iterable[fx.Node], stop: Callable[[fx.Node], bool] = lambda node: False
) -> set[fx.Node]:
    """``nodes`` and everything that they are computed from, up to nodes where ``stop`` holds."""
    return _reached(nodes, lambda node: () if stop(node) else node.all_input_nodes)


def dependants(nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """``nodes`` and everything computed from them."""
    return _reached(nodes, lambda node: (user for user in node.users if user.op != "output"))


def _reached(
    nodes: Iterable[fx.Node], following: Callable[[fx.Node], Iterable[fx.Node]]
) -> set[fx.Node]:
    found: set[fx.Node] = set()
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += following(node)
    return found


@contextmanager
def as_traced(graph: fx.Graph) -> Iterator[None]:
    """What is inserted gets the layouts that it would have if it had been differentiated."""
    given = {n: n.meta["val"] for n in graph.find_nodes(op="placeholder") if TRACED in n.meta}
    for node in given:
        node.meta["val"] = node.meta[TRACED]
    try:
        yield
    finally:
        for node, value in given.items():
            node.meta["val"] = value


def copied_back(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that share memory with what is copied into inputs at the end."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and node.target is COPY:
            current: Any = node.args[1]
            found.add(current)
            while is_view(current) or _is_item_of_view(current):
                current = current.args[0]
                found.add(current)
    return found


def same_layout(a: Any, b: Any) -> bool:
    """Whether two tensors' metadata agree in everything but values."""
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype == b.dtype
        and a.device == b.device
        and same_sizes(a.shape, b.shape)
        and same_sizes(a.stride(), b.stride())
        and a.is_conj() == b.is_conj()
        and a.is_neg() == b.is_neg()
    )


def keep_layout(
    graph: fx.Graph, node: fx.Node, result: torch.Tensor, before: torch.Tensor | None = None
) -> None:
    """Give the users of ``node``, which gives ``result`` now, a copy with the strides of
    ``before``: those that its metadata tells."""
    before = node.meta["val"] if before is None else before
    with graph.inserting_before(node.next):
        empty = graph.call_function(
            aten.empty_strided.default,
            (_lowered(node, before.shape), _lowered(node, before.stride())),
            {"dtype": before.dtype, "device": before.device},
        )
        copy = graph.call_function(aten.copy.default, (empty, node))
    node.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)
    empty.meta = {**node.meta, "val": before}
    copy.meta = {**node.meta, "val": before}
    node.meta["val"] = result


def _lowered(node: fx.Node, numbers: Iterable[int | torch.SymInt]) -> list[int | fx.Node]:
    """Sizes as arguments of a call after ``node``, whose operands have the symbols in them."""
    symbols = SymbolNodes(node.graph)
    for each in node.all_input_nodes:
        if isinstance(each.meta["val"], torch.Tensor):
            symbols.bind_tensor(each.meta["val"], each)
    return [n if isinstance(n, int) else symbols.lower(n) for n in numbers]  # type: ignore[misc]


def replace_with(graph: fx.Graph, node: fx.Node, new: fx.Node) -> None:
    """Put ``new``, whose result may lie otherwise in memory, in the place of ``node``."""
    value, before = new.meta["val"], node.meta["val"]
    new.meta = {**node.meta, "val": value}
    node.replace_all_uses_with(new)
    if value.stride() != before.stride():
        keep_layout(graph, new, value, before)
    graph.erase_node(node)


def stand_in(value: Any, places: Mapping[fx.Node, object] | None = None) -> Any:
    """Hashable for arguments, with ``places`` for nodes if given.

    1, 1.0 and True differ in it, and so do 0.0 and -0.0.
    """
    if isinstance(value, fx.Node):
        return value if places is None else ("node", places[value])
    if isinstance(value, (list, tuple)):
        return tuple([stand_in(item, places) for item in value])
    if isinstance(value, dict):
        return tuple([(name, stand_in(item, places)) for name, item in value.items()])
    if isinstance(value, (bool, int, float, complex)):
        return type(value), repr(value)
    return value
