"""Makes a failing case small: fewer operators, then plainer and smaller inputs.

A candidate is a choice of the graph's nodes. What a chosen node reads of one that is not chosen
becomes an input with the value that it had when the whole graph ran, so every choice is a graph
that runs alone. Cuts from the end and from the beginning come first, by halving: they take a graph
of any size to the neighbourhood of the fault in a few steps. Delta debugging does the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import fx
from torchsmith_guards.records import printing

from torchsmith._src.repro.cases import Case, entered, evaluated
from torchsmith._src.repro.judge import SEED, Failure, changed
from torchsmith._src.testing.clones import Copier, preserve_rng_state

_Item = TypeVar("_Item")
Judge = Callable[[Case], Failure | None]
Values = Mapping[fx.Node, Any]
BUDGET = 600.0  # seconds
_IN_PLACE = "iadd iand ifloordiv ilshift imod imul ior ipow irshift isub itruediv ixor setitem"
_ENDS: tuple[Callable[[list[fx.Node], int], list[fx.Node]], ...] = (
    lambda nodes, cut: nodes[: len(nodes) - cut],
    lambda nodes, cut: nodes[cut:],
)
_PLAIN = (torch.Tensor, int, float, bool, type(None))


@dataclass
class Reducer:
    """Reduces cases as long as they fail in the same way.

    Attributes:
        judge: how a case fails.
        wanted: the failure to keep.
        budget: seconds after which the smallest case so far is the result.
        say: told of progress.
    """

    judge: Judge
    wanted: Failure
    budget: float = BUDGET
    say: Callable[[str], object] = lambda text: None
    _end: float = 0.0
    _known: dict[str, bool] = field(default_factory=dict)

    def run(self, case: Case) -> Case:
        """The smallest case that was found."""
        self._end = time.monotonic() + self.budget
        while True:
            case = self._fewer_nodes(case)
            count = len(case.ops)
            case = self._bypassed(case)
            if len(case.ops) == count:
                break
        return self._plain_inputs(self._smaller(case))

    def cut(self, case: Case) -> tuple[fx.Node, Case]:
        """The first node whose presence brings the failure, and the case cut at both ends."""
        self._end = time.monotonic() + self.budget
        values = node_values(case)
        chosen = self._cut(case, values, case.ops)
        return chosen[-1], chosen_nodes(case, values, chosen) or case

    def fails(self, case: Case | None) -> bool:
        """Whether ``case`` fails as wanted."""
        if case is None or self._late():
            return False
        tensors = (x for x in case.inputs if isinstance(x, torch.Tensor))
        key = f"{case.gm.code}{case.texts}{[(x.shape, x.stride()) for x in tensors]}"
        if key not in self._known:
            found = self.judge(case)
            self._known[key] = found is not None and found.key == self.wanted.key
        return self._known[key]

    def _late(self) -> bool:
        return time.monotonic() > self._end

    # -------------------------------------------------------------------------------- nodes

    def _fewer_nodes(self, case: Case) -> Case:
        values = node_values(case)
        nodes = [n for n in case.ops if n in values]

        def of(chosen: Sequence[fx.Node]) -> Case | None:
            return chosen_nodes(case, values, chosen) if chosen else None

        chosen = self._cut(case, values, nodes)
        chosen = shrink(
            chosen,
            lambda rest: self.fails(of(rest)),
            lambda count: self.say(f"{count} of {len(nodes)} operators"),
        )
        if len(chosen) == len(nodes):
            return case
        found = of(chosen)
        return case if found is None else found

    def _cut(self, case: Case, values: Values, nodes: list[fx.Node]) -> list[fx.Node]:
        """As few nodes as cutting from the end, then from the beginning, leaves."""
        chosen = nodes
        for ends in _ENDS:
            low, high = 0, len(chosen)  # the longest cut that fails is between these
            while high - low > 1:
                middle = (low + high) // 2
                if self.fails(chosen_nodes(case, values, ends(chosen, middle))):
                    low = middle
                else:
                    high = middle
            chosen = ends(chosen, low)
            self.say(f"{len(chosen)} of {len(nodes)} operators")
        return chosen

    def _bypassed(self, case: Case) -> Case:
        """Without operators whose result may be replaced by one of their operands."""
        values = node_values(case)
        away: dict[fx.Node, fx.Node] = {}
        for node in case.ops:
            for arg in node.all_input_nodes:
                if not _alike(values.get(node), values.get(arg)):
                    continue
                chosen = [n for n in case.ops if n not in away and n is not node]
                found = chosen_nodes(case, values, chosen, {**away, node: arg}) if chosen else None
                if self.fails(found):
                    away[node] = arg
                    break
        if not away:
            return case
        return chosen_nodes(case, values, [n for n in case.ops if n not in away], away) or case

    # ------------------------------------------------------------------------------- inputs

    def _smaller(self, case: Case) -> Case:
        """With smaller sizes: one number at a time, wherever it is a size or an argument."""
        sizes = {n for x in case.inputs if isinstance(x, torch.Tensor) for n in x.shape if n > 2}
        for size in sorted(sizes, reverse=True):
            for less in (2, 3, 4, 8, size // 4, size // 2):
                if less < size and self.fails(found := _resized(case, {size: less})):
                    assert found is not None
                    case = found
                    break
        return case

    def _plain_inputs(self, case: Case) -> Case:
        """With random numbers for values, where these do not matter: all at once, or one by one."""
        texts = [
            printing.generated(x) if isinstance(x, torch.Tensor) and x.numel() > 4 else None
            for x in case.inputs
        ]
        everything = case.with_inputs(texts, evaluated(texts, case.inputs))
        if self.fails(everything):
            return everything
        kept: list[str | None] = [None] * len(texts)
        for number, text in enumerate(texts):
            trial = [*kept[:number], text, *kept[number + 1 :]]
            found = case.with_inputs(trial, evaluated(trial, case.inputs))
            if text is not None and self.fails(found):
                kept, case = trial, found
        return case


def shrink(
    items: list[_Item], fails: Callable[[list[_Item]], bool], say: Callable[[int], object]
) -> list[_Item]:
    """As few of ``items`` as still fail: delta debugging, by ever smaller parts that are left out.

    Args:
        items: all together they fail.
        fails: whether some of them do.
        say: told how many are left.
    """
    size = max(len(items) // 2, 1)
    while len(items) > 1:
        start, before = 0, len(items)
        while start < len(items) and len(items) > 1:
            rest = [*items[:start], *items[start + size :]]
            if rest and fails(rest):
                items = rest
                say(len(items))
            else:
                start += size
        if size == 1 and len(items) == before:
            break
        size = max(size // 2, 1)
    return items


class _Recorder(fx.Interpreter):
    """Keeps a copy of what each node gives, as it is before anything writes to it."""

    def __init__(self, gm: fx.GraphModule) -> None:
        super().__init__(gm)
        self.values: dict[fx.Node, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if isinstance(result, torch.Tensor):
            with torch.no_grad():
                copy = Copier().one(result.detach())
            self.values[n] = copy.requires_grad_() if result.requires_grad else copy
        else:
            self.values[n] = result
        return result


def node_values(case: Case) -> dict[fx.Node, Any]:
    """What each node of ``case`` gives."""
    recorder = _Recorder(case.gm)
    copies = Copier().all(case.inputs)
    with preserve_rng_state(), entered(", ".join(case.contexts)):
        torch.manual_seed(SEED)
        recorder.run(*copies)
    for node, value in zip(case.gm.graph.find_nodes(op="placeholder"), case.inputs):
        recorder.values[node] = value
    return recorder.values


def chosen_nodes(
    case: Case,
    values: Values,
    chosen: Sequence[fx.Node],
    instead: Mapping[fx.Node, fx.Node] | None = None,
) -> Case | None:
    """The case that computes ``chosen`` alone; None where one of them reads what is no input.

    Args:
        case: whose nodes they are.
        values: of all nodes.
        chosen: in the order of the graph.
        instead: nodes that others take the place of.
    """
    instead = instead or {}
    wanted = set(chosen)
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    inputs: list[Any] = []

    def read(node: fx.Node) -> None:
        if node not in env and node not in wanted:
            if node not in values or not isinstance(values[node], _PLAIN):
                raise LookupError(node)
            env[node] = graph.placeholder(node.name)
            inputs.append(values[node])

    def target(node: fx.Node) -> fx.Node:
        while node in instead:
            node = instead[node]
        return node

    try:
        # in the order in which the placeholders were, so that a case keeps its look
        reads = {target(a) for n in chosen for a in n.all_input_nodes}
        for node in case.gm.graph.nodes:
            if node in reads:
                read(node)
        for node in chosen:
            env[node] = graph.node_copy(node, lambda n: env[target(n)])
    except (LookupError, KeyError):
        return None
    returned = {target(n) for n in case.gm.graph.output_node().all_input_nodes}
    ends = [n for n in chosen if n in returned or not (env[n].users or _writes(n))]
    results = [env[n] for n in ends if isinstance(values.get(n), _PLAIN)]
    if not results and not any(map(_writes, chosen)):
        return None
    graph.output(tuple(results))
    texts = case.texts if len(case.texts or ()) == len(inputs) else None
    module = fx.GraphModule(case.gm, graph, "Case")
    return replace(case, gm=module, inputs=tuple(inputs), texts=texts)


def _writes(node: fx.Node) -> bool:
    """Whether the node writes to an operand, so that it matters although nobody reads it."""
    name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
    if getattr(node.target, "__module__", "") == "_operator":
        return name in _IN_PLACE.split()
    return name.endswith("_") and not name.endswith("__")


def _alike(one: Any, other: Any) -> bool:
    return (
        isinstance(one, torch.Tensor)
        and isinstance(other, torch.Tensor)
        and one.shape == other.shape
        and one.dtype == other.dtype
    )


def _resized(case: Case, sizes: Mapping[int, int]) -> Case | None:
    """The case with other sizes, in its inputs and where its graph names them."""
    inputs: list[Any] = []
    for x in case.inputs:
        if isinstance(x, torch.Tensor) and any(n in sizes for n in x.shape):
            index = tuple(slice(sizes.get(n, n)) for n in x.shape)
            part = x.detach()[index]
            strides = [int(n) for n in x.stride()]
            order = sorted(range(x.dim()), key=lambda d: (-strides[d], d))
            laid = part.permute(order).clone(memory_format=torch.contiguous_format)
            inputs.append(laid.permute(sorted(range(x.dim()), key=order.__getitem__)))
            if x.requires_grad:
                inputs[-1].requires_grad_()
        else:
            inputs.append(x)
    module = changed(case.gm, lambda v: sizes.get(v, v) if type(v) is int else v)
    return replace(case, gm=module, inputs=tuple(inputs), texts=None)
