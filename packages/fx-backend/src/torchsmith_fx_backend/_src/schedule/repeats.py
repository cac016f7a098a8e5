"""Equal parts of a graph that have nothing to do with each other are planned once.

An optimizer does the same to each of hundreds of parameters. Each is a part of its own: no value of
one is read in another. One part of a kind is planned, and the plan is repeated with the names of
the others: equal launches follow each other then, which makes one launch of them on a GPU. What
many parts read (the norm of all gradients) comes before all of them, with all that it is made of.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, copy_node
from torchsmith_fx_backend._src.captured import WRITES, is_boxed
from torchsmith_fx_backend._src.loops.index import product
from torchsmith_fx_backend._src.loops.sizes import estimate
from torchsmith_fx_backend._src.passes.base import is_view, stand_in
from torchsmith_fx_backend._src.schedule.facts import COPY, has_effect
from torchsmith_fx_backend._src.schedule.plan import (
    Allocate,
    BindSymbol,
    Bump,
    Free,
    Launch,
    Name,
    Plan,
    Step,
)

LEAST = 4  # parts of a kind that are worth it
MANY = 8  # readers of what comes before all parts
HELD = 1 << 25  # bytes of what is computed on the way that parts hold side by side


@dataclass(frozen=True, slots=True)
class Kind:
    """Parts that are equal but for their inputs.

    Attributes:
        module: the first of them as a graph of its own.
        nodes: the nodes of each part, those that correspond in one place.
        inputs: likewise the placeholders, and what comes before, that each reads.
        results: likewise the nodes that the graph returns.
    """

    module: fx.GraphModule
    nodes: list[list[fx.Node]]
    inputs: list[list[fx.Node]]
    results: list[list[fx.Node]]


@dataclass(frozen=True, slots=True)
class Repeats:
    """A graph as kinds of equal parts and a rest.

    Attributes:
        graph: the whole.
        rest: what is of no kind; takes all inputs, and returns what parts read after its results.
        kinds: the others.
        read: what of the rest they read.
    """

    graph: fx.Graph
    rest: fx.GraphModule
    kinds: list[Kind]
    read: list[fx.Node]

    def join(self, rest: Plan, plans: Sequence[Plan]) -> Plan | None:
        """The plan of the whole from that of the rest and of the first part of each kind; None
        where a part may raise: what comes before it in eager may have been written by then."""
        if any(not _never_raises(plan) for plan in plans):
            return None
        inputs = dict(zip(self.graph.find_nodes(op="placeholder"), rest.inputs))
        own = len(rest.outputs) - len(self.read)
        for node, value in zip(self.read, rest.outputs[own:]):
            assert isinstance(value, Name)
            inputs[node] = value.name
        outputs: dict[fx.Node, Any] = {}
        taken = {*rest.inputs, *(n.name for n in self.graph.nodes)}
        taken.update(s.name for s in rest.steps if isinstance(s, Allocate))
        taken.update(s.symbol for s in rest.steps if isinstance(s, BindSymbol))
        steps = list(rest.steps)
        for kind, plan in zip(self.kinds, plans):
            parts = []
            for nodes, reads, results in zip(kind.nodes, kind.inputs, kind.results):
                given = {n: inputs[r] for n, r in zip(plan.inputs, reads)}
                parts.append(_Names(given, kind.nodes[0], nodes, taken))
                outputs |= {n: parts[-1].argument(o) for n, o in zip(results, plan.outputs)}
            steps += _side_by_side(plan, parts)
        others = iter(rest.outputs)
        (values,) = self.graph.output_node().args
        whole = tuple(outputs[v] if v in outputs else next(others) for v in _items(values))
        return Plan(rest.inputs, rest.constants, tuple(steps), whole)


def find_repeats(gm: fx.GraphModule) -> Repeats | None:
    """The equal parts of a graph, if there are enough of a kind."""
    graph = gm.graph
    if is_boxed(graph) or not all(map(_is_plain, graph.nodes)):
        return None
    returned = set(graph.output_node().all_input_nodes)
    hubs, before = _before(graph)
    parts = _parts(graph, before)
    if len(parts) < LEAST:
        return None
    known = {*hubs, *graph.find_nodes(op="placeholder")}
    kinds: dict[Hashable, list[list[fx.Node]]] = defaultdict(list)
    for part in parts:
        if known.issuperset(_inputs(part)):
            kinds[_key(part, returned)].append(part)
    found = [parts for parts in kinds.values() if len(parts) >= LEAST]
    if not found:
        return None
    inside = {node for parts in found for part in parts for node in part}
    repeated = {id(part) for parts in found for part in parts}
    alone = before | {node for part in parts if id(part) not in repeated for node in part}
    others = [node for node in graph.nodes if node in alone]
    values = [v for v in _items(graph.output_node().args[0]) if v not in inside]
    read = [n for n in hubs if any(user in inside for user in n.users)]
    rest = _module(gm, graph.find_nodes(op="placeholder"), others, [*values, *read])
    made = []
    for parts in found:
        reads = [list(_inputs(part)) for part in parts]
        results = [[n for n in part if n in returned] for part in parts]
        made.append(Kind(_module(gm, reads[0], parts[0], results[0]), parts, reads, results))
    return Repeats(graph, rest, made, read)


def _is_plain(node: fx.Node) -> bool:
    """Whether a node has tensors of known sizes, and no effect but a write back into an input."""
    if node.op == "output":
        return True
    value = node.meta.get("val")
    values = value if isinstance(value, (tuple, list)) else (value,)
    sized = all(isinstance(v, torch.Tensor) and not v._has_symbolic_sizes_strides for v in values)
    if not sized or node.op == "placeholder":
        return sized
    return node.op == "call_function" and (node.target is COPY or not has_effect(node))


def _before(graph: fx.Graph) -> tuple[list[fx.Node], set[fx.Node]]:
    """Fresh values that many calls read, and all calls that these are made of."""
    hubs = [
        n
        for n in graph.nodes
        if n.op == "call_function" and len(n.users) >= MANY and n.all_input_nodes
        if isinstance(n.meta["val"], torch.Tensor) and not is_view(n)
    ]
    found: set[fx.Node] = set()
    waiting = list(hubs)
    while waiting:
        node = waiting.pop()
        if node.op == "call_function" and node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    return hubs, found


def _parts(graph: fx.Graph, before: set[fx.Node]) -> list[list[fx.Node]]:
    """The calls that are not ``before`` in groups of which none reads another's, nor what another
    writes."""
    above: dict[fx.Node, fx.Node] = {}

    def top(node: fx.Node) -> fx.Node:
        while (parent := above.get(node, node)) is not node:
            above[node] = node = above.get(parent, parent)
        return node

    written = {n.args[0] for n in graph.find_nodes(op="call_function", target=COPY)}
    returned = set(graph.output_node().all_input_nodes)
    calls = [n for n in graph.nodes if n.op == "call_function" and n not in before]
    # What is made of nothing is made again in each part.
    made = {n for n in calls if not n.all_input_nodes and n not in returned}
    elsewhere = made | before
    for node in calls:
        for arg in node.all_input_nodes:
            if arg in written or (arg.op == "call_function" and arg not in elsewhere):
                above[top(arg)] = top(node)
    groups: dict[fx.Node, dict[fx.Node, None]] = defaultdict(dict)
    for node in calls:
        if node not in made:
            own = groups[top(node)]
            own.update((arg, None) for arg in node.all_input_nodes if arg in made)
            own[node] = None
    return list(map(list, groups.values()))


def _inputs(part: Sequence[fx.Node]) -> dict[fx.Node, None]:
    own = set(part)
    return {a: None for node in part for a in node.all_input_nodes if a not in own}


def _key(part: Sequence[fx.Node], returned: set[fx.Node]) -> Hashable:
    """What parts of a kind have in common."""
    places: dict[fx.Node, object] = {a: -1 - i for i, a in enumerate(_inputs(part))}
    found: list[object] = [_layout(a.meta["val"]) for a in places]
    for i, node in enumerate(part):
        places[node] = i
        given = stand_in((node.args, node.kwargs), places)
        told = _layout(node.meta["val"]), node.meta.get(WRITES), node in returned
        found.append((node.target, given, *told))
    return tuple(found)


def _layout(value: Any) -> Hashable:
    if isinstance(value, (tuple, list)):
        return tuple(map(_layout, value))
    layout = value.shape, value.stride(), value.storage_offset()
    return (*layout, value.dtype, value.device, value.requires_grad)


def _module(
    gm: fx.GraphModule, inputs: Sequence[fx.Node], calls: Sequence[fx.Node], results: Sequence[Any]
) -> fx.GraphModule:
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in calls:
        copies[node] = copy_node(graph, node, copies.__getitem__)
    graph.output(tuple(copies[v] if isinstance(v, fx.Node) else v for v in results))
    return LazyGraphModule(gm, graph)


def _items(values: Any) -> Sequence[Any]:
    return values if isinstance(values, (tuple, list)) else (values,)


def _never_raises(plan: Plan) -> bool:
    kinds = (Allocate, BindSymbol, Bump, Free)
    return not plan.constants and all(
        isinstance(s, kinds) or (isinstance(s, Launch) and not s.kernel.faults) for s in plan.steps
    )


class _Names:
    """The names of one part for those in the plan of its kind."""

    def __init__(
        self,
        inputs: dict[str, str],
        planned: Sequence[fx.Node],
        nodes: Sequence[fx.Node],
        taken: set[str],
    ) -> None:
        self._nodes = {a.name: b.name for a, b in zip(planned, nodes)}
        # What is made in each part has a name in each.
        own = {a.name: b.name for a, b in zip(planned, nodes) if a is not b or planned is nodes}
        self._names, self._taken = {**own, **inputs}, taken

    def __call__(self, planned: str) -> str:
        """The local of the wrapper that stands for ``planned`` here."""
        found = self._names.get(planned)
        if found is None:
            stem = planned.removesuffix("_item")  # of what a node holds
            found, number = planned if stem == planned else f"{self(stem)}_item", 0
            wanted = found
            while found in self._taken:
                number += 1
                found = f"{wanted}_{number}"
            self._taken.add(found)
            self._names[planned] = found
        return found

    def argument(self, value: object) -> object:
        """A result of the plan."""
        return Name(self(value.name)) if isinstance(value, Name) else value

    def step(self, step: Step) -> Step:
        """A step of the plan."""
        match step:
            case Launch():
                return replace(
                    step,
                    args=tuple(map(self, step.args)),
                    numbers=tuple(map(self, step.numbers)),
                    nodes=tuple(self._nodes[n] for n in step.nodes),
                )
            case Allocate(name, reuse=reuse):
                return replace(step, name=self(name), reuse=None if reuse is None else self(reuse))
            case BindSymbol(symbol, tensor):
                return replace(step, symbol=self(symbol), tensor=self(tensor))
            case Free(name) | Bump(name):
                return replace(step, name=self(name))
        raise TypeError(f"{type(step).__name__} is not repeated")


def _side_by_side(plan: Plan, parts: Sequence[_Names]) -> Iterator[Step]:
    """Each step for all parts before the next, for as many parts as hold little at once."""
    held = sum(
        estimate(product(s.layout.size)) * s.layout.dtype.itemsize
        for s in plan.steps
        if isinstance(s, Allocate)
    )
    most = max(1, HELD // max(held, 1))
    for start in range(0, len(parts), most):
        for step in plan.steps:
            for names in parts[start : start + most]:
                yield names.step(step)
