"""The partitioner: which values the forward graph hands to the backward graph.

A value is saved or computed again. What is saved is a minimum cut by bytes between what only the
forward pass has (its inputs, matrix products, reductions, random draws) and what the backward pass
reads; pointwise operators and views between the cut and the backward pass run again there.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torchsmith_guards as guards
from torch import fx

from torchsmith_fx_backend._src import keyed
from torchsmith_fx_backend._src.aot.joint import BACKWARD
from torchsmith_fx_backend._src.capture.ops import op_info
from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, copy_node
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import OpOverload
from torchsmith_fx_backend._src.captured import GIVEN, numbers_of
from torchsmith_fx_backend._src.loops.registry import Pointwise, View, rule_for
from torchsmith_fx_backend._src.passes.base import (
    COPY,
    RESULTS,
    TRACED,
    ancestors,
    dependants,
    source,
)
from torchsmith_fx_backend._src.passes.casts import is_rounding
from torchsmith_fx_backend._src.schedule.facts import SUPPORTED
from torchsmith_fx_backend.errors import UnsupportedError

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Saved:
    """A value that goes from the forward to the backward graph.

    Attributes:
        name: of its node in the joint graph.
        copied: a copy is saved, because the caller may write into the original, and eager would
            not notice.
    """

    name: str
    copied: bool


def choose_saved(
    graph: fx.Graph,
    inputs: Collection[fx.Node],
    tangents: Collection[fx.Node],
    outputs: int,
    kept: Collection[fx.Node],
    written: Collection[fx.Node],
    free: Collection[fx.Node],
    budget: float,
    private: Collection[int] = (),
) -> tuple[Saved, ...]:
    """The values to save.

    Args:
        graph: a joint graph.
        inputs: its placeholders less the tangents.
        tangents: placeholders of tangents.
        outputs: how many outputs belong to the forward pass; the others are gradients.
        kept: inputs and outputs that are held for the backward pass in any case.
        written: inputs that the forward pass writes.
        free: inputs that live on whether they are saved or not.
        budget: 0 saves as little as possible; 1 computes nothing but
            views again.
        private: positions of outputs that the caller does not get to see.
    """
    returned: Any = graph.output_node().args[0]
    backward = dependants(tangents)
    grads = [n for n in returned[outputs:] if isinstance(n, fx.Node)]
    needed = ancestors(grads)
    reads = [arg for node in needed & backward for arg in node.all_input_nodes]
    read = {node for node in (*grads, *reads) if node not in backward}
    given = [n for i, n in enumerate(returned[:outputs]) if i not in private]
    seen = [n for n in given if isinstance(n, fx.Node)]
    costs = _Costs(kept, written, free, {*map(source, seen), *inputs})
    position = {node: i for i, node in enumerate(graph.nodes)}
    far: set[fx.Node] = set()
    again = lambda n: is_rounding(n) or (n not in far and is_recomputable(n, budget))
    while True:
        found = _cut(read, position, costs, again)
        more = _far(read, found, position, _READS / budget if budget else math.inf)
        if not more:
            break
        far |= more
    found += [n for n in seen if _is_number(n) and n not in found]
    found += _untold([*found, *tangents], [n for n in graph.nodes if n not in backward])
    return tuple(
        Saved(n.name, isinstance(n.meta["val"], torch.Tensor) and costs.copied(n)) for n in found
    )


@dataclass(frozen=True, slots=True)
class _Costs:
    """What it costs to save values; see ``choose_saved``.

    Attributes:
        kept, written, free: its arguments.
        visible: values whose memory the caller sees.
    """

    kept: Collection[fx.Node]
    written: Collection[fx.Node]
    free: Collection[fx.Node]
    visible: Collection[fx.Node]

    def copied(self, node: fx.Node) -> bool:
        """Whether it is a copy that would be saved."""
        owner = source(node)
        return owner in self.visible and (owner not in self.kept or owner in self.written)

    def of(self, node: fx.Node) -> int:
        """Bytes that saving ``node`` keeps alive, and a little to prefer what is simpler."""
        owner = source(node)
        if BACKWARD in node.meta:
            return _INFINITE  # another backward pass does not have it
        if isinstance(node.meta.get("val"), (list, tuple)):
            return _INFINITE  # its items are saved
        if is_rounding(node):
            return _INFINITE  # for other tangents there may be none: what it rounds is saved
        if owner in self.kept and not self.copied(node):
            return 1 if owner is node else 2
        if owner in self.free and not self.copied(node):
            return 3 if owner is node else 4
        return _weight(node)


def _cut(
    read: Collection[fx.Node],
    position: Mapping[fx.Node, int],
    costs: _Costs,
    again: Callable[[fx.Node], bool],
) -> list[fx.Node]:
    """What to save when the backward pass needs ``read`` and may compute what ``again`` says."""
    network = _Network()
    relevant = ancestors(read, lambda node: not again(node))
    for node in relevant:
        number = position[node]
        several = isinstance(node.meta.get("val"), (list, tuple))
        if several and BACKWARD not in node.meta and not again(node):
            continue
        network.edge(2 * number, 2 * number + 1, costs.of(node))
        if again(node):
            for arg in node.all_input_nodes:
                network.edge(2 * position[arg] + 1, 2 * number, _INFINITE)
        else:
            network.edge(_SOURCE, 2 * number, _INFINITE)
        if node in read:
            network.edge(2 * number + 1, _SINK, _INFINITE)
    late = network.minimum_cut()
    found = [n for n in relevant if 2 * position[n] + 1 in late and 2 * position[n] not in late]
    return sorted(found, key=position.__getitem__)


_READS = 1.5  # divided by the budget: elements read for an element that is computed again


def _far(
    read: Collection[fx.Node],
    saved: Collection[fx.Node],
    position: Mapping[fx.Node, int],
    limit: float,
) -> set[fx.Node]:
    """Values that are computed again from more than ``limit`` times as many saved elements.

    A residual stream is a sum of all that was added to it: without its own values each layer would
    read what all layers below have added.
    """
    held = frozenset(saved)
    reads: dict[fx.Node, dict[fx.Node, int]] = {}  # for a value: how much of which saved values
    found: set[fx.Node] = set()
    for node in sorted(ancestors(read, held.__contains__), key=position.__getitem__):
        own = _elements(node)
        reads[node] = {node: own}
        if node in held or node.op != "call_function":
            continue
        parts: dict[fx.Node, int] = {}
        for arg in node.all_input_nodes:
            for origin, count in reads[arg].items():
                parts[origin] = max(count, parts.get(origin, 0))
        if source(node) is not node:
            reads[node] = {origin: min(count, own) for origin, count in parts.items()}
        elif own and BACKWARD not in node.meta and sum(parts.values()) > limit * own:
            found.add(node)
        else:
            reads[node] = parts
    return found


def _elements(node: fx.Node) -> int:
    value = node.meta.get("val")
    return number_of_bytes(value) // value.element_size() if isinstance(value, torch.Tensor) else 0


def forward_graph(
    joint: fx.GraphModule, inputs: Sequence[fx.Node], outputs: int, saved: Sequence[Saved]
) -> fx.GraphModule:
    """The part of ``joint`` that computes its first ``outputs`` outputs and ``saved``."""
    by_name = {node.name: node for node in joint.graph.nodes}
    returned: Any = joint.graph.output_node().args[0]
    wanted = [*returned[:outputs], *(by_name[s.name] for s in saved)]
    writes = [n for n in joint.graph.nodes if n.op == "call_function" and n.target is COPY]
    given = frozenset(inputs)
    tangents = [n for n in joint.graph.find_nodes(op="placeholder") if n not in given]
    later = dependants(tangents)
    effects = [
        node
        for node in joint.graph.nodes
        if isinstance(node.target, OpOverload) and op_info(node.target).impure
        if node.target is not COPY and node not in later and BACKWARD not in node.meta
    ]
    needed = ancestors(n for n in [*wanted, *writes, *effects] if isinstance(n, fx.Node))
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {n: copy_node(graph, n) for n in inputs}
    for node in joint.graph.nodes:
        if node in needed and node not in env and node.target is not COPY:
            env[node] = copy_node(graph, node, env.__getitem__)
    results: list[Any] = [env[n] if isinstance(n, fx.Node) else n for n in wanted]
    for number, each in enumerate(saved):
        if each.copied:
            original = results[outputs + number]
            copy = graph.call_function(aten.clone.default, (original,))
            copy.meta = dict(original.meta)
            value = original.meta["val"]
            copy.kwargs = {"memory_format": torch.preserve_format}
            with value.fake_mode, torch.no_grad():
                copy.meta["val"] = value.detach().clone()
            results[outputs + number] = copy
    for node in writes:
        env[node] = copy_node(graph, node, env.__getitem__)
    graph.output(tuple(results)).meta[RESULTS] = outputs
    return LazyGraphModule(joint, graph)


def backward_graph(
    joint: fx.GraphModule,
    tangents: Sequence[fx.Node],
    outputs: int,
    saved: Sequence[Saved],
    given: Mapping[str, object],
    budget: float,
) -> tuple[fx.GraphModule, tuple[int, ...]]:
    """The part of ``joint`` that computes the gradients from ``saved`` and the tangents.

    Args:
        joint: a joint graph.
        tangents: placeholders of tangents.
        outputs: how many outputs belong to the forward pass.
        saved: what the forward graph hands over.
        given: the metadata of each saved value as the forward graph returns it, by name.
        budget: as for ``choose_saved``.

    Returns:
        The graph, whose inputs are given away, and the positions in ``saved`` of those that it
        takes before the tangents.

    Raises:
        UnsupportedError: a gradient needs a value that was not saved.
    """
    by_name = {node.name: node for node in joint.graph.nodes}
    returned: Any = joint.graph.output_node().args[0]
    held = {by_name[s.name]: i for i, s in enumerate(saved) if s.name in by_name}
    backward = dependants(tangents)
    grads = returned[outputs:]
    needed = ancestors((n for n in grads if isinstance(n, fx.Node)), lambda node: node in held)
    taken = [node for node in held if node in needed]
    used = sorted(held[node] for node in [*taken, *_untold([*taken, *tangents], held)])
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    names = {i: node for node, i in held.items()}
    shared = {*joint.graph.find_nodes(op="placeholder"), *returned[:outputs]}
    for i in used:
        node = names[i]
        env[node] = graph.placeholder(node.name)
        alone = saved[i].copied or (source(node) is node and node not in shared)
        traced = node.meta["val"]
        env[node].meta = {**node.meta, "val": given[saved[i].name], TRACED: traced, GIVEN: alone}
    for node in tangents:
        env[node] = copy_node(graph, node)
        env[node].meta[GIVEN] = False  # autograd holds it

    def emit(node: fx.Node) -> None:
        """Copy ``node`` behind what it needs; values computed again come right before use."""
        stack = [node]
        while stack:
            current = stack.pop()
            missing = [arg for arg in current.all_input_nodes if arg not in env]
            if current in env:
                continue
            if missing:
                stack += (current, *missing)
                continue
            if current not in backward and current.op != "get_attr":
                if not is_recomputable(current, budget):
                    raise UnsupportedError(what=f"a backward pass that needs {current.name} again")
            env[current] = copy_node(graph, current, env.__getitem__)

    for node in joint.graph.nodes:
        if node in needed and node in backward:
            emit(node)
    for node in grads:
        if isinstance(node, fx.Node):
            emit(node)
    graph.output(tuple(env[n] if isinstance(n, fx.Node) else n for n in grads))
    return LazyGraphModule(joint, graph), tuple(used)


def needed_by(
    joint: fx.GraphModule, tangents: Mapping[int, fx.Node], outputs: int, saved: Sequence[Saved]
) -> list[frozenset[int]]:
    """For each of ``saved``, which of ``tangents`` have gradients that are computed from it."""
    by_name = {node.name: node for node in joint.graph.nodes}
    held = {by_name[each.name] for each in saved}
    returned: Any = joint.graph.output_node().args[0]
    grads = [n for n in returned[outputs:] if isinstance(n, fx.Node)]
    needed = ancestors(grads, held.__contains__)
    backward = dependants(tangents.values())
    users: dict[fx.Node, set[int]] = {node: set() for node in held}
    for position, tangent in tangents.items():
        own = dependants([tangent]) & needed
        reads = {arg for node in own for arg in node.all_input_nodes if arg not in backward}
        for node in ancestors(reads, held.__contains__) & held:
            users[node].add(position)
    constant = [n for n in grads if n not in backward]
    for node in ancestors(constant, held.__contains__) & held:
        users[node].update(tangents)
    return [frozenset(users[by_name[each.name]]) for each in saved]


def _untold(values: Iterable[fx.Node], others: Iterable[fx.Node]) -> list[fx.Node]:
    """Those of ``others`` that are symbols which no size or stride of ``values`` tells: sizes of
    what is computed from ``values`` may need them."""
    told = {name for node in values for name in _symbols(node)}
    found = []
    for node in others:
        if _is_number(node) and not told.issuperset(_symbols(node)):
            told.update(_symbols(node))
            found.append(node)
    return found


def _symbols(node: fx.Node) -> list[str]:
    """The symbols that a number is, or a tensor has as a size or a stride."""
    numbers = numbers_of(node.meta.get("val"))
    known = [guards.expr_of(n) for n in numbers if isinstance(n, torch.SymInt)]
    return [each.name for each in known if isinstance(each, guards.Symbol)]


_DEAREST = 32  # simple operations per element of the dearest that runs again, a mask by key


def is_recomputable(node: fx.Node, budget: float) -> bool:
    """Whether the backward pass may run ``node`` again."""
    if node.op == "get_attr":
        return True
    if node.op != "call_function":
        return False
    if _is_number(node):
        return node.target not in (
            aten.sym_size.int,
            aten.sym_stride.int,
            aten.sym_storage_offset.default,
        )
    if source(node) is not node:
        return True
    if BACKWARD in node.meta:
        return True  # eager runs it there, too
    if isinstance(node.target, OpOverload):
        info = op_info(node.target)
        if info.impure or info.seeded:
            return False
    elif node.target not in keyed.PURE:
        return False
    rule = rule_for(node)
    if isinstance(rule, View):
        return True  # a copy of a constant, which its readers read
    if not isinstance(rule, Pointwise):
        return False
    values = (n.meta.get("val") for n in (node, *node.all_input_nodes))
    dtypes = {v.dtype for v in values if isinstance(v, torch.Tensor)}
    in_kernel = not budget or dtypes <= SUPPORTED  # aten takes as long as it did
    return rule.creation or (in_kernel and rule.cost <= _DEAREST * (1.0 - budget))


def _is_number(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, (*SYMBOLIC_TYPES, int, float, bool))


def _weight(node: fx.Node) -> int:
    """Bytes of memory that saving ``node`` keeps alive; a view a little more than its base."""
    if _is_number(node):
        return 1
    owner = source(node)
    size = max(number_of_bytes(node.meta["val"]), number_of_bytes(owner.meta["val"]))
    return size + (size >> 6) + 8 if owner is not node else max(size, 4)


def number_of_bytes(value: Any) -> int:
    """Size of a tensor; symbolic sizes count with their hints."""
    if not isinstance(value, torch.Tensor):
        return 0
    size = value.element_size()
    for n in value.shape:
        size *= n if type(n) is int else int(guards.hint_of(n) or 1)
    return size


# --------------------------------------------------------------------------------- minimum cut

_SOURCE, _SINK = -1, -2
_INFINITE = 1 << 60


@dataclass(slots=True, eq=False)
class _Edge:
    end: int
    capacity: int  # what can still flow
    reverse: _Edge | None = None


class _Network:
    """A flow network; Dinic's algorithm."""

    def __init__(self) -> None:
        self.edges: dict[int, list[_Edge]] = {_SOURCE: [], _SINK: []}

    def edge(self, start: int, end: int, capacity: int) -> None:
        forth, back = _Edge(end, capacity), _Edge(start, 0)
        forth.reverse, back.reverse = back, forth
        self.edges.setdefault(start, []).append(forth)
        self.edges.setdefault(end, []).append(back)

    def minimum_cut(self) -> set[int]:
        """The vertices on the sink's side of the minimum cut that is nearest to the sink."""
        while True:
            levels = self._levels()
            if _SINK not in levels:
                return self._before_sink()
            rest = dict.fromkeys(self.edges, 0)
            while self._augment(levels, rest):
                pass

    def _levels(self) -> dict[int, int]:
        levels = {_SOURCE: 0}
        waiting = deque([_SOURCE])
        while waiting:
            vertex = waiting.popleft()
            for edge in self.edges[vertex]:
                if edge.capacity > 0 and edge.end not in levels:
                    levels[edge.end] = levels[vertex] + 1
                    waiting.append(edge.end)
        return levels

    def _before_sink(self) -> set[int]:
        found = {_SINK}
        waiting = [_SINK]
        while waiting:
            for edge in self.edges[waiting.pop()]:
                assert edge.reverse is not None
                if edge.reverse.capacity > 0 and edge.end not in found:
                    found.add(edge.end)
                    waiting.append(edge.end)
        return found

    def _augment(self, levels: Mapping[int, int], rest: dict[int, int]) -> bool:
        """Send flow along one path; ``rest`` counts the edges of a vertex that lead nowhere."""
        path: list[_Edge] = []
        vertex = _SOURCE
        while vertex != _SINK:
            edges = self.edges[vertex]
            while rest[vertex] < len(edges):
                edge = edges[rest[vertex]]
                if edge.capacity > 0 and levels.get(edge.end, -1) == levels[vertex] + 1:
                    path.append(edge)
                    vertex = edge.end
                    break
                rest[vertex] += 1
            else:
                if not path:
                    return False
                edge = path.pop()
                assert edge.reverse is not None
                vertex = edge.reverse.end
                rest[vertex] += 1
        amount = min(edge.capacity for edge in path)
        for edge in path:
            assert edge.reverse is not None
            edge.capacity -= amount
            edge.reverse.capacity += amount
        return True
