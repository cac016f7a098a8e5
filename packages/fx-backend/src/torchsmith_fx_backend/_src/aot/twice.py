"""Derivatives of derivatives: a backward pass that is to be differentiated itself.

A compiled backward half has no derivative. Where ``create_graph`` asks for one, the captured graph
runs again, operator by operator, from what the compiled call was given; autograd differentiates
that run, and so the caller gets what eager gives.

That is work done twice. Where most calls are differentiated again, as a network's is whose equation
has derivatives in it, the graph runs as captured in the first place.
"""

from __future__ import annotations

import contextlib
import operator
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from torchsmith_fx_backend._src.aot.held import items, save
from torchsmith_fx_backend._src.aot.joint import Joint
from torchsmith_fx_backend._src.capture.torch_private import check_version, delayed_error, pytree

aten = torch.ops.aten
_detach = torch.Tensor.detach


@dataclass(eq=False, slots=True)
class Given:
    """What one call was given.

    Attributes:
        plain: inputs, or aliases of them, in the order of ``Again.order``; None for tensors that
            have a history.
        places: where those are.
        saved: the result whose node has them.
        seen: what ``looks`` says of all tensors.
        again: whether it was differentiated again.
    """

    plain: Sequence[Any]
    places: Sequence[int]
    saved: Any
    seen: bytes
    again: bool = False


@dataclass(eq=False, slots=True)
class Again:
    """Runs a graph again for gradients that have a history.

    Attributes:
        joint: the recorded graph.
        program: the captured one.
        obstacle: why a second run would not repeat the first one; empty when it does.
        autocast: what it was captured under.
        grad: whether gradients were switched on then.
        written: positions of inputs that the graph writes.
        varied: positions of the tensors that require a gradient.
        unchecked: tensors that autograd does not check when a backward pass begins.
        constant: those of the other tensors.
        left: those of all that autograd saves itself, with their places there.
        checked: whether what autograd saves is checked for writes in any case.
        order: positions of the others.
        calls: how many there were.
        uses: how many of them were differentiated again.
        habit: why calls run as captured; empty while they do not.
    """

    joint: Joint
    program: Callable[..., Any]
    obstacle: str
    autocast: tuple[tuple[str, bool, torch.dtype], ...]
    grad: bool
    written: frozenset[int]
    varied: tuple[int, ...]
    unchecked: tuple[int, ...]
    constant: tuple[int, ...]
    left: dict[int, int] = field(default_factory=dict)
    checked: bool = False
    order: tuple[int, ...] = ()
    calls: int = 0
    uses: int = 0
    habit: str = ""

    @staticmethod
    def of(joint: Joint, program: Callable[..., Any]) -> Again:
        """For a graph that was captured as things stand now."""
        kinds = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICES]
        written = frozenset(joint.mutated)
        values = [(i, n.meta["val"]) for i, n in enumerate(joint.nodes)]
        tensors = {i: x.requires_grad for i, x in values if isinstance(x, torch.Tensor)}
        varied, constant = (tuple(i for i in tensors if tensors[i] is w) for w in (True, False))
        read = [i for i in sorted((*varied, *constant)) if i not in written]
        unchecked = tuple(i for i in read if joint.nodes[i] not in joint.kept)
        why = _obstacle(joint)
        grad = torch.is_grad_enabled()
        return Again(joint, program, why, tuple(kinds), grad, written, varied, unchecked, constant)

    @property
    def why(self) -> str:
        """Why a call cannot be run again that keeps nothing for it."""
        return self.obstacle or "hooks have what was saved"

    @property
    def tensors(self) -> tuple[int, ...]:
        """Positions of all tensors."""
        return tuple(sorted((*self.varied, *self.constant)))

    def holder(self) -> Callable[[Sequence[Any], bytes], Given | None]:
        """A function that keeps what a call is given, where a second run is possible, but for what
        autograd keeps at any rate. It is told what ``looks`` says of all tensors."""
        every = [i for i in range(len(self.joint.nodes)) if i not in self.left]
        given = [i for i in every if i < len(self.joint.nodes) - len(self.joint.attributes)]
        aliased = tuple(i for i in given if i in self.constant)
        varied = tuple(i for i in every if i in self.varied)
        others = tuple(i for i in every if i not in aliased)
        self.order, written = (*aliased, *others), self.written
        order = {position: number for number, position in enumerate(self.order)}
        of_aliased, of_others, tensors = items(aliased), items(others), self.tensors
        last: tuple[bytes, tuple[int, ...]] = (b"", ())  # flags of a call, and what has a history

        def hold(inputs: Sequence[Any], seen: bytes) -> Given | None:
            nonlocal last
            self.calls += 1
            usual, places = last
            flags = seen[-len(tensors) :]
            if flags != usual:
                if any(flags[n] & 8 for n, i in enumerate(tensors) if i in aliased):
                    return None  # an inference tensor counts no versions
                found = (i for n, i in enumerate(tensors) if i in varied and not flags[n] & 4)
                places = tuple(found)
                last = flags, places
            if self.obstacle:
                return None
            # Aliases of constants: the tensors themselves may get a history later.
            plain = [*map(_detach, of_aliased(inputs)), *of_others(inputs)]
            for place in written:
                plain[order[place]] = inputs[place].data
            saved = save(plain[order[i]] for i in places) if places else None
            for place in places:
                plain[order[place]] = None
            return Given(plain, places, saved, seen)

        return hold

    def gradients(
        self,
        given: Given,
        kept: Mapping[int, Any],
        tangents: Sequence[torch.Tensor | None],
        twice: bool,
        without: frozenset[int],
    ) -> Sequence[torch.Tensor | None]:
        """Gradients of the wanted inputs but for those at the places ``without``, if ``twice`` as
        functions of these and ``tangents``."""
        joint, known = self.joint, {**dict(zip(self.order, given.plain)), **kept}
        values = [known[place] for place in range(len(known))]
        for number, place in enumerate(given.places):
            values[place] = given.saved.grad_fn.saved_tensors[number]
        versions = array("q", given.seen[8 * len(self.tensors) : 16 * len(self.tensors)])
        for place, version in zip(self.tensors, versions, strict=True):
            if place in self.unchecked:
                check_version(values[place], version)
        first: dict[int, Any] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            for device, enabled, dtype in self.autocast:
                on = torch.autocast(device, dtype, enabled, cache_enabled=False)
                stack.enter_context(on)
            count = len(values) - len(joint.attributes)
            for path, value in zip(joint.attributes, values[count:]):
                if operator.attrgetter(path)(self.program) is not value:
                    raise RuntimeError(f"{path} was replaced after the forward pass")
            self._count(given, twice)
            for place in (*self.varied, *self.constant):
                if place < count:
                    made = self._alias(place, values[place])
                    values[place] = first.setdefault(id(joint.nodes[place].meta["val"]), made)
            with torch.set_grad_enabled(self.grad):
                run = getattr(self.program, "forward", self.program)  # past hooks on all modules
                flat = pytree.tree_leaves(run(*values[:count]))
            roots: dict[int, torch.Tensor] = {}
            for leaf, result in zip(flat, joint.results, strict=True):
                root = leaf._base if result.kind == "fresh" and result.steps else leaf
                if result.kind == "fresh" and root is not None:
                    roots.setdefault(result.index, root)
            pairs = [(roots[i], t) for i, t in zip(joint.differentiable, tangents) if t is not None]
            asked = [n for n in range(len(joint.wanted)) if n not in without]
            found = torch.autograd.grad(
                [root for root, _ in pairs],
                [values[joint.wanted[n]] for n in asked],
                [tangent for _, tangent in pairs],
                create_graph=twice,
                allow_unused=True,
            )
            given_for = dict(zip(asked, found))
            return [given_for.get(n) for n in range(len(joint.wanted))]

    def _count(self, given: Given, twice: bool) -> None:
        """Note a call that is differentiated again."""
        self.uses += twice and not given.again
        given.again |= twice
        if self.uses > 1 and 2 * self.uses > self.calls:
            self.habit = "most of its gradients are differentiated again"
            self.calls = self.uses = 0

    def captured(self) -> str:
        """Why the next call runs as captured; empty if it does not. A habit is tried anew in the
        end: a program may be done with warming up."""
        if self.habit:
            self.calls += 1
            if self.calls > _FORGOTTEN:
                self.habit, self.calls = "", 0
        return self.habit

    def _alias(self, place: int, value: Any) -> Any:
        """What the second run sees of an input: what it writes is its own, and gradients stop
        where the inputs are, though one may be computed from another."""
        if place in self.written:
            return value.clone()
        if place not in self.joint.wanted:
            return value
        return value.view_as(value) if value.requires_grad else value.detach().requires_grad_()


_FORGOTTEN = 50  # calls after which a habit is
_DEVICES = ("cpu", "cuda")


def never(tensor: torch.Tensor, message: str, others: Sequence[torch.Tensor] = ()) -> torch.Tensor:
    """``tensor`` as the result of a function, of ``others``, too, whose backward pass raises
    ``message``."""
    return delayed_error(message, 1 + len(others))(tensor.detach().requires_grad_(), *others)[0]


def leaves_behind(function: Any) -> list[torch.Tensor]:
    """The leaves that a backward pass through this node of autograd's comes to."""
    seen = waiting = {function: None}
    while waiting:
        nodes = (each for node in waiting for each, _ in node.next_functions)
        waiting = dict.fromkeys(node for node in nodes if node is not None and node not in seen)
        seen = seen | waiting
    return [node.variable for node in seen if type(node).__name__ == "AccumulateGrad"]


_NORM = aten._native_batch_norm_legit_functional.default
_NEW_STATISTICS = 3  # the first of its results that are new values of its arguments 3 and 4


def _reads(node: fx.Node) -> set[fx.Node]:
    """The nodes that a value depends on. In training, batch norm's running statistics are read
    for their new values alone."""
    source = node.args[0] if node.target is operator.getitem else None
    if isinstance(source, fx.Node) and source.target is _NORM and node.args[1] >= _NEW_STATISTICS:  # type: ignore[operator]
        return set(source.all_input_nodes)
    unread = node.args[3:5] if node.target is _NORM and node.args[5] else ()
    return set(node.all_input_nodes).difference(unread)


def _obstacle(joint: Joint) -> str:
    """Why the graph cannot run again for the same results; empty when it can."""
    nodes = joint.trace.recorder.graph.nodes
    if any(torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ()) for n in nodes):
        return "it draws random numbers"
    if joint.rewritten or joint.spent:
        return "it writes into what it differentiates"
    reached = {joint.nodes[place] for place in joint.mutated}
    if not reached.isdisjoint(joint.nodes[len(joint.nodes) - len(joint.attributes) :]):
        return "it writes into a tensor of its own"
    for node in nodes:
        if not reached.isdisjoint(_reads(node)):
            reached.add(node)
    if any(joint.outputs[i] in reached for i in joint.differentiable):
        return "its result depends on what it overwrites"
    shown = {
        result.index
        for result in joint.results
        if result.kind == "fresh"
        and not any(step.target is aten.detach.default for step in result.steps)
    }
    return "" if shown.issuperset(joint.differentiable) else "a result has lost its history"
