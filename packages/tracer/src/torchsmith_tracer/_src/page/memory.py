"""What eager execution of a graph holds in memory: from the sizes and last uses of its values, or,
where autograd keeps some of them, from running it and its backward on tensors without data."""

from __future__ import annotations

import itertools
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torchsmith_guards import FakeMode, ShapeEnv, hint_of

from torchsmith_tracer._src.torch_private import DispatchMode

MOST_NODES = 2_500  # of graphs that are run without data, in 0.7 s


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
    sizes = [size if type(size) is int else hint_of(size) for size in tensor.shape]
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
    sizes: dict[int, int] = {}  # storage -> bytes, of those that the calls made
    spans: dict[int, list[int]] = {}  # storage -> where it is met first and last
    outside: set[int] = set()
    kept: list[torch.Tensor] = []  # so that addresses stay theirs
    used: dict[fx.Node, list[int]] = {}
    floor = False
    for position, node in enumerate(nodes):
        used[node] = []
        for tensor in tensors(node.meta.get("example_value")):
            if tensor.layout is not torch.strided:
                return None
            kept.append(tensor)
            key = tensor.untyped_storage()._cdata
            used[node].append(key)
            if node.op in ("placeholder", "get_attr"):
                outside.add(key)
            elif key not in sizes and key not in outside:
                try:
                    sizes[key] = size_in_bytes(tensor)
                except ValueError:
                    return None
            floor = floor or (tensor.requires_grad and node.op.startswith("call"))
        for each in (node, *node.all_input_nodes):
            for key in used[each]:
                spans.setdefault(key, [position, position])[1] = position
    change = [0] * (len(nodes) + 1)
    for key, size in sizes.items():
        first, last = spans[key]
        change[first] += size
        change[last + 1] -= size
    held = list(itertools.accumulate(change[:-1]))
    live = [[node.name, now] for node, now in zip(nodes, held) if node.op.startswith("call")]
    return {"live": live, "peak": max(held, default=0), "floor": floor}


def training_memory(gm: fx.GraphModule) -> dict[str, Any] | None:
    """The same for a graph that autograd goes through: ``forward`` and ``backward``, each with
    ``live`` and ``peak``: the bytes held of what was made since it began, after each operator.

    Returns:
        None where the graph does not run without data, or is too large for a page made in a moment.
    """
    if len(gm.graph.nodes) > MOST_NODES:
        return None
    halves: dict[str, Any] = {}
    seen: set[int] = set()
    try:
        # Fakes by rule: tensors of the device "meta" would import torch._dynamo.
        with torch.inference_mode(False), torch.enable_grad(), FakeMode(ShapeEnv()).mode:
            given = [
                _without_data(n.meta["example_value"])
                for n in gm.graph.find_nodes(op="placeholder")
            ]
            seen.update(t.untyped_storage()._cdata for t in tensors(given))
            with _Held(seen) as held:
                results = fx.Interpreter(gm).run(*given)
            halves["forward"] = {"live": held.live, "peak": held.peak}
            ends = [t for t in tensors(results) if t.requires_grad]
            tangents = [torch.empty_like(t) for t in ends]
            seen.update(t.untyped_storage()._cdata for t in tangents)
            with _Held(seen) as held:
                torch.autograd.backward(ends, tangents)
            halves["backward"] = {"live": held.live, "peak": held.peak}
    except Exception:  # noqa: BLE001 - it reads values, or has no form without data
        return None
    return halves


def _without_data(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return hint_of(value) if isinstance(value, torch.SymInt | torch.SymFloat) else value
    size, stride = ([int(hint_of(n) or 0) for n in part] for part in (value.shape, value.stride()))
    made = torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
    return made.requires_grad_(value.requires_grad)


class _Held(DispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of the storages that are made under it and are still there."""

    def __init__(self, seen: set[int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: list[int] = []
        self.now = self.peak = 0
        self.seen = seen

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        found = list(tensors(result))
        for tensor in found:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.now += storage.nbytes()
                weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        if found:
            self.peak = max(self.peak, self.now)
            self.live.append(self.now)
        return result

    def _gone(self, key: int, size: int) -> None:
        self.now -= size
        self.seen.discard(key)
