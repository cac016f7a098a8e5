"""Graphs whose parameters and buffers are constants: ``options={"freezing": True}``.

What a module holds leaves the inputs of the graph and becomes attributes, of which the passes of
``passes/frozen.py`` compute what they can once. Each call asks whether these are the tensors, in
the versions, that were frozen; if not, the graph is frozen again, a bounded number of times.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.torch_private import FakeTensor
from torchsmith_fx_backend._src.captured import named_tensors
from torchsmith_fx_backend._src.nested import Around, Compile

log = logging.getLogger("torchsmith.backend")

MAX_VARIANTS = 32  # modules of one class may share a graph, and each has weights of its own
MAX_REFROZEN = 8


class Frozen(Around):
    """A graph with constants, as a callable of all of the graph's inputs; it tells what the first
    variant tells."""

    def __init__(self, gm: fx.GraphModule, inputs: Sequence[object], build: Compile) -> None:
        """Compile the first variant.

        Args:
            gm: the captured graph.
            inputs: one per placeholder; real tensors among them may become constants.
            build: compiles a graph for the inputs that are left.
        """
        self._gm = gm
        self._build = build
        places = gm.graph.find_nodes(op="placeholder")
        self._held = [i for i, (p, x) in enumerate(zip(places, inputs)) if _is_held(p, x)]
        held = set(self._held)
        self._rest = [i for i in range(len(inputs)) if i not in held]
        self._variants: list[_Variant] = []
        self._thawed: Callable[..., Any] | None = None
        self._refrozen = 0
        self.compiled = self._freeze(inputs)

    def __call__(self, *inputs: Any) -> Any:
        """Run the variant of these constants."""
        held = [inputs[i] for i in self._held]
        for variant in self._variants:
            if all(map(is_, held, variant.held)):
                if variant.is_fresh():
                    return variant.compiled(*[inputs[i] for i in self._rest])
                self._variants.remove(variant)
                self._refrozen += 1
                break
        if len(self._variants) < MAX_VARIANTS and self._refrozen < MAX_REFROZEN:
            return self._freeze(inputs)(*[inputs[i] for i in self._rest])
        if self._thawed is None:
            log.warning(
                "what was frozen keeps changing: this graph runs with its weights as inputs"
            )
            self._thawed = self._build(self._gm, inputs)
        return self._thawed(*inputs)

    def _freeze(self, inputs: Sequence[Any]) -> Any:
        held = [inputs[i] for i in self._held]
        frozen = _with_attributes(self._gm, dict(zip(self._held, held)))
        tracked = [t for t in (*held, *named_tensors(self._gm).values()) if not t.is_inference()]
        versions = [tensor._version for tensor in tracked]
        compiled = self._build(frozen, [inputs[i] for i in self._rest])
        written = {t.untyped_storage().data_ptr() for t in compiled.written}
        kept = {
            tensor: version
            for tensor, version in zip(tracked, versions)
            if tensor.untyped_storage().data_ptr() not in written
        }
        self._variants.append(_Variant(held, list(kept), list(kept.values()), compiled))
        return compiled


@dataclass(slots=True)
class _Variant:
    """The graph compiled for ``held``; ``tracked`` had ``versions`` then."""

    held: list[Any]
    tracked: list[torch.Tensor]
    versions: list[int]
    compiled: Callable[..., Any]

    def is_fresh(self) -> bool:
        """Whether nobody wrote what was frozen; writes through ``.data`` leave no trace."""
        return [tensor._version for tensor in self.tracked] == self.versions


def _is_held(place: fx.Node, value: object) -> bool:
    """Whether an input is a parameter or buffer: by its class, or since its tracer says so."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return False
    if value.layout is not torch.strided or type(value) not in (torch.Tensor, torch.nn.Parameter):
        return False
    marks = place.meta.get("tensor_dict") or {}
    held = place.meta.get("held_by_module") or "_dynamo_static_input_type" in marks
    return bool(held) or isinstance(value, torch.nn.Parameter)


def _with_attributes(gm: fx.GraphModule, held: dict[int, torch.Tensor]) -> fx.GraphModule:
    """A copy of ``gm`` that has some inputs as attributes."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    result = fx.GraphModule(gm, graph, type(gm).__name__)
    first: dict[int, str] = {}  # tensors that come twice stay one
    for number, node in enumerate(graph.find_nodes(op="placeholder")):
        if number not in held:
            continue
        value = held[number]
        name = first.setdefault(id(value), f"held_{number}")
        if isinstance(value, torch.nn.Parameter):
            result.register_parameter(name, value)
        else:
            result.register_buffer(name, value, persistent=False)
        with graph.inserting_before(node):
            constant = graph.get_attr(name)
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
    result.recompile()
    return result
