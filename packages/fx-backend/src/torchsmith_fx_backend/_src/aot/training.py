"""Runs a differentiated graph: one ``torch.autograd.Function`` around its compiled halves.

The forward half is compiled at once, a backward half when a backward pass first asks for it: one
for each set of tangents that are defined, with their strides (at symbolic sizes, their order in
memory). The usual one is compiled while the forward half's kernels are, where other processes do
that. Results that are inputs or views are made outside of the function, by the very operators that
eager runs, so autograd knows them as it does eager's.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torchsmith_guards import collector, deferred

from torchsmith_fx_backend._src.aot import partition
from torchsmith_fx_backend._src.aot.frame import Unusual
from torchsmith_fx_backend._src.aot.held import (
    SPENT,
    Division,
    Held,
    Part,
    independent,
    items,
    saved_by,
)
from torchsmith_fx_backend._src.aot.joint import Joint, Result, Slot, Snapshot
from torchsmith_fx_backend._src.aot.lone import LEAST, alone, holders, taken
from torchsmith_fx_backend._src.aot.tangents import Asking, Key, order_at_hand, ordered, strides_in
from torchsmith_fx_backend._src.aot.turns import in_turn
from torchsmith_fx_backend._src.aot.twice import Again, Given, leaves_behind, never
from torchsmith_fx_backend._src.capture.torch_private import (
    apply_of,
    below_autocast,
    below_autograd,
    check_version,
    fake_like,
    has_autocast,
    has_saving_hooks,
    in_storage,
    keeps_graph,
    number,
    pytree,
    settled,
    without_autocast,
)
from torchsmith_fx_backend._src.runtime.addresses import in_memory, looks
from torchsmith_fx_backend._src.runtime.halves import RecordedBackward, RecordedForward
from torchsmith_fx_backend._src.runtime.launchers import meanwhile
from torchsmith_fx_backend.errors import UnsupportedError

aten = torch.ops.aten
log = logging.getLogger("torchsmith.backend")
_NOTHING = contextlib.nullcontext()

MOST_HALVES = 8  # past which gradients that nobody asks for are computed, too
MOST_SETS = 64  # of gradients that are noticed
_SMALL = 1 << 16  # elements of all gradients together that are soon computed

# graph -> callable of the graph's inputs that returns its outputs; the graph is optimized in place
Compile = Callable[[fx.GraphModule], Any]

TWICE = (
    "a compiled graph was differentiated {}, but cannot run again as it ran before: {}; "
    'compile with options={{"training": "eager"}} for that'
)
INNER = (
    "a result of a compiled graph has a hook, or retains its gradient, and another result that was "
    "computed from it is differentiated, whose gradient does not come by the first. Compile the "
    "two apart, or with options={'training': 'eager'}"
)


_Watched = tuple[Mapping[int, Any], weakref.ref[torch.Tensor]]


@dataclass(eq=False)
class Training:
    """A graph that is compiled for training.

    Attributes:
        joint: the recorded graph.
        compile: builds a half.
        budget: see ``choose_saved``.
        again: how a backward pass is differentiated.
    """

    joint: Joint
    compile: Compile
    budget: float
    again: Again
    forward: Any = None
    kept_inputs: tuple[int, ...] = ()
    kept_rewritten: tuple[int, ...] = ()
    kept_outputs: tuple[int, ...] = ()
    tensors: tuple[int, ...] = ()  # outputs that are no numbers
    numbers: tuple[int, ...] = ()  # those of ``saved`` that are no tensors
    aliased: tuple[int, ...] = ()  # tensors of ``saved`` of which eager saves views
    through: Mapping[int, int] = field(default_factory=dict)  # inputs that are tensors of ``saved``
    saved: tuple[partition.Saved, ...] = ()
    parts: tuple[Part, ...] = ()  # results that are independent of each other's
    saving: frozenset[int] = frozenset()  # results for which eager saves something
    before: tuple[int, ...] = ()  # inputs that a part needs as they were, too, after their writes
    any_sizes: bool = False  # whether sizes of results are symbols
    large: bool = False  # whether a tangent may be worth its memory
    direct: bool = False  # whether backward passes mostly do no more than call a half
    backwards: dict[tuple[Key, frozenset[int]], tuple[Any, tuple[int, ...]]] = field(
        default_factory=dict
    )
    asking: Asking = field(init=False)
    _partial: set[tuple[Key, frozenset[int]]] = field(default_factory=set)
    _given: dict[str, object] = field(default_factory=dict)
    _snapshot: tuple[Key, Snapshot] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(self) -> None:
        """Choose what is saved and compile the forward half.

        Raises:
            UnsupportedError: the backward pass does something that is not compiled.
        """
        joint = self.joint
        alone()  # now, since it differentiates
        later = {place for place, _, _ in joint.rewritten}
        kept = [i for i, node in enumerate(joint.nodes) if node in joint.kept]
        self.kept_inputs = tuple(i for i in kept if i not in later)
        self.kept_rewritten = tuple(i for i in kept if i in later)
        self.kept_outputs = tuple(
            i for i, n in enumerate(joint.outputs) if isinstance(n, fx.Node) and n in joint.kept
        )
        self.tensors = tuple(i for i, out in enumerate(joint.outputs) if _is_tensor(out))
        self.saving = frozenset(i for i, nodes in joint.saves.items() if nodes)
        if not joint.differentiable:
            self.forward = self.compile(joint.graph(None).module)
            return
        roots = [joint.outputs[i].meta["val"] for i in joint.differentiable]
        sizes = [n for root in roots for n in (*root.shape, *root.stride())]
        self.any_sizes = any(type(n) is not int for n in sizes)
        self.large = self.any_sizes or max(root.nbytes for root in roots) >= LEAST
        wanted = [joint.nodes[i].meta["val"].numel() for i in joint.wanted]
        small = all(type(n) is int for n in wanted) and sum(wanted) < _SMALL
        self.asking = Asking(small=small)
        key: Any = tuple(order_at_hand(root) if self.any_sizes else root.stride() for root in roots)
        usual = None not in key
        strides = self._strides(key) if usual else [root.stride() for root in roots]
        snapshot = joint.graph(joint.backward(strides))
        outputs = len(joint.outputs)
        written = {snapshot.inputs[i] for i in joint.mutated}
        self.saved = partition.choose_saved(
            snapshot.module.graph,
            snapshot.inputs,
            snapshot.tangents,
            outputs,
            snapshot.kept,
            written,
            {snapshot.inputs[i] for i in joint.wanted},
            self.budget,
            [position for _, position, _ in joint.rewritten],
        )
        graph = partition.forward_graph(snapshot.module, snapshot.inputs, outputs, self.saved)
        if usual:
            self._snapshot = (key, snapshot)
        expected = _expected(key, roots) if usual and not self.any_sizes else None

        def ahead(tangents: Key) -> None:
            self._describe_saved(graph, snapshot)
            with contextlib.suppress(Exception):  # it is told when a backward pass asks again
                for part in self.parts:
                    own = zip(joint.differentiable, tangents)
                    wanted = tuple(t if i in part.results else None for i, t in own)
                    if any(t is not None for t in wanted):
                        self.backward_of(wanted)

        with _NOTHING if expected is None else meanwhile(functools.partial(ahead, expected)):
            self.forward = self.compile(graph)
        if not self._given:  # not ahead, or nothing is saved
            self._describe_saved(graph, snapshot)

    def _describe_saved(self, graph: fx.GraphModule, snapshot: Snapshot) -> None:
        """Note what the forward half ``graph``, which is in its last form, saves."""
        joint, outputs = self.joint, len(self.joint.outputs)
        returned: Any = graph.graph.output_node().args[0]
        for each, node in zip(self.saved, returned[outputs:], strict=True):
            self._given[each.name] = _as_input(node.meta["val"])
        self.numbers = tuple(i for i, n in enumerate(returned[outputs:]) if not _is_tensor(n))
        viewed = {snapshot.inputs[i].name for i, n in enumerate(joint.nodes) if n in joint.viewed}
        tensors = [each for i, each in enumerate(self.saved) if i not in self.numbers]
        self.aliased = tuple(i for i, each in enumerate(tensors) if each.name in viewed)
        inputs = {n: i for i, n in enumerate(graph.graph.find_nodes(op="placeholder"))}
        held = (n for i, n in enumerate(returned[outputs:]) if i not in self.numbers)
        self.through = {inputs[n]: i for i, n in enumerate(held) if n in inputs}
        wanted = {position: i for i, position in enumerate(joint.sources)}
        leaves = {i for i in joint.wanted if joint.nodes[i].meta["val"].is_leaf}
        order = (*joint.turns, *joint.sources[len(joint.wanted) :])

        def part(results: Sequence[int], inputs: Collection[int], own: Division | None) -> Part:
            turns = in_turn([i for i in order if i in inputs], leaves)
            places = {position: i for i, position in enumerate(results)}
            tangents = tuple(places.get(i) for i in joint.differentiable)
            gradients, picks = tuple(wanted[i] for i in turns), tuple(results)
            taken = items(picks), items(turns), items(gradients)
            return Part(picks, turns, tangents, gradients, own, *taken)

        tangents = dict(zip(joint.differentiable, snapshot.tangents, strict=True))
        reached = {i: joint.reached(i) for i in tangents}
        every = frozenset[int]().union(*reached.values())
        self.parts = (part(joint.differentiable, every, None),)
        if len(joint.differentiable) < 2:
            return  # it needs all
        needed = partition.needed_by(snapshot.module, tangents, outputs, self.saved)
        # A gradient of zeros is a constant here; computed for its result alone it reads what
        # eager's nodes do. Of values made inside that is not known: it may be any.
        seen = {n.name for n in (*joint.nodes, *joint.outputs) if isinstance(n, fx.Node)}
        zeros = joint.saves.keys() - frozenset[int]().union(*needed)
        for place, each in enumerate(self.saved):
            nodes = frozenset[int]().union(*(joint.saves[i] for i in needed[place]))
            for i, own in joint.saves.items():
                more = bool(own) and (i in zeros or not own.isdisjoint(nodes))
                if each.name in seen:
                    more = any(each.name == node.name for node in joint.reads[i])
                needed[place] |= {i} if more else set()
        users = [each for i, each in enumerate(needed) if i not in self.numbers]
        guarded = [joint.nodes[i] for i in self.kept_inputs]
        guarded += [joint.outputs[i] for i in self.kept_outputs]
        users += [frozenset(i for i, r in joint.reads.items() if node in r) for node in guarded]
        division = Division.of(joint.saves, users)
        self.parts = (part(joint.differentiable, every, division),)
        if joint.spent and not joint.cuts:
            return
        levels: dict[int, dict[int, frozenset[int]]] = {}
        for i, nodes in joint.saves.items():
            levels.setdefault(joint.level(i), {})[i] = nodes
        sets: list[Collection[int]] = []
        for level in sorted(levels):
            found = independent(levels[level], reached)
            sets += sorted(found, key=functools.partial(_first, joint))
        if len(sets) > 1:
            self.parts = tuple(
                part(
                    sorted(results),
                    frozenset().union(*(reached[i] for i in results)),
                    None if division is None else division.among(results),
                )
                for results in sets
            )
        later = {i for each in self.parts[1:] for i in each.inputs} if joint.cuts else ()
        self.before = tuple(place for place, _ in joint.cuts if place in later)

    def besides(self) -> tuple[int, ...]:
        """Inputs that autograd saves for eager's checks besides what the forward half gives: but
        for such as that gives, or aliases of leaves that have their versions."""
        if any(part.division is not None for part in self.parts):
            return self.kept_inputs
        through = {} if isinstance(self.forward, RecordedForward) else self.through  # else copies
        shown = {
            i: p for i, p in through.items() if i in self.kept_inputs and p not in self.aliased
        }
        alike = {i for i in through.keys() - shown if self.joint.nodes[i].meta["val"].is_leaf}
        besides = tuple(i for i in self.kept_inputs if i not in shown and i not in alike)
        places = {i: p for p, i in enumerate(besides, len(self.saved) - len(self.numbers))}
        again, found = self.again, shown | places
        again.left = {i: p for i, p in found.items() if i not in again.written}
        again.checked = not again.written.issuperset(self.kept_inputs)
        special = self.large, self.any_sizes, self.numbers, self.kept_rewritten, self.joint.inner
        recorded = isinstance(self.forward, RecordedForward)
        self.direct = bool(self.saving) and len(self.parts) == 1 and not (recorded or any(special))
        return besides

    def _strides(self, key: Key) -> Sequence[tuple[Any, ...] | None]:
        """The strides of tangents that ``key`` describes."""
        if not self.any_sizes:
            return key
        roots = [self.joint.outputs[i].meta["val"] for i in self.joint.differentiable]
        return [None if k is None else strides_in(k, root.shape) for root, k in zip(roots, key)]

    def backward_of(
        self, key: Key, without: frozenset[int] = frozenset()
    ) -> tuple[Any, tuple[int, ...]]:
        """The backward half for tangents that ``key`` describes, ``without`` some gradients, and
        what it takes of the saved; that for all gradients the first time. Its inputs are in one
        list, which it empties, to free what it has read for the last time."""
        known = self.backwards.get((key, without))
        if known is None and without:
            # One half for all serves every set; a set that comes again gets its own, if few do.
            again = (key, without) in self._partial and len(self.backwards) < MOST_HALVES
            if len(self._partial) < MOST_SETS:
                self._partial.add((key, without))
            if not again:
                return self.backward_of(key)
        if known is None:
            with (
                deferred(), self._lock, collector.compiling(), torch.inference_mode(False),
                without_autocast(),
            ):  # fmt: skip
                known = self.backwards.get((key, without)) or self._backward_for(key, without)
                self.backwards[key, without] = known
        return known

    def _backward_for(self, key: Key, without: frozenset[int]) -> tuple[Any, tuple[int, ...]]:
        """The half for these tangents; for such as lie as results do where it takes what is for
        others or needs more than is saved; for all results where that does, too: right gradients,
        though perhaps in another layout, or zero where eager has none."""
        roots = [self.joint.outputs[i].meta["val"] for i in self.joint.differentiable]
        rows = [tuple(range(root.dim())) for root in roots]
        every: Key = tuple(rows if self.any_sizes else [root.stride() for root in roots])
        alone: Key = tuple(None if k is None else stride for k, stride in zip(key, every))
        turns = (key, alone) if self.any_sizes else (key, alone, every)
        for usual in turns:
            try:
                half, used = self._compile_backward(usual, without)
            except UnsupportedError:
                if usual != turns[-1]:
                    continue
                if not without:
                    raise
                return self._backward_for(key, frozenset())
            if usual is not key:
                break
            if self.any_sizes or key == alone or not self._takes_others(key, used):
                return half, used

        def relaid(arguments: list[Any]) -> Any:
            given = iter(arguments[len(used) :])
            tangents = []
            for root, stride, wanted in zip(roots, key, usual):
                if wanted is not None:
                    tangent = None if stride is None else next(given)
                    shape = root.shape if tangent is None else tangent.shape
                    strides = strides_in(wanted, shape) if self.any_sizes else wanted
                    kind = {"dtype": root.dtype, "device": root.device}
                    fresh = torch.empty_strided(shape, strides, **kind)
                    tangents.append(fresh.zero_() if tangent is None else fresh.copy_(tangent))
            tangent = None
            arguments[len(used) :] = tangents
            del given, tangents
            return half(arguments)

        return relaid, used

    def _takes_others(self, key: Key, used: Sequence[int]) -> bool:
        """Whether a half takes what is held for none of its results."""
        results = {i for i, k in zip(self.joint.differentiable, key) if k is not None}
        part = next(part for part in self.parts if not results.isdisjoint(part.results))
        if part.division is None:
            return False
        tensors = [i for i in range(len(self.saved)) if i not in self.numbers]
        held = [places for users, places in part.division.parts if not users.isdisjoint(results)]
        own = {tensors[i] for i in itertools.chain(*held) if i < len(tensors)}
        return not own.union(self.numbers).issuperset(used)

    def _compile_backward(self, key: Key, without: frozenset[int]) -> tuple[Any, tuple[int, ...]]:
        if known := self.backwards.get((key, without)):
            return known
        if self._snapshot is not None and self._snapshot[0] == key and not without:
            snapshot = self._snapshot[1]
        else:  # it may be that a program is differentiated once only
            whole = self.joint.backward(self._strides(key))
            asked = (None if i in without else grad for i, grad in enumerate(whole.grads))
            snapshot = self.joint.graph(replace(whole, grads=tuple(asked)))
        self._snapshot = None
        graph, used = partition.backward_graph(
            snapshot.module,
            snapshot.tangents,
            len(self.joint.outputs),
            self.saved,
            self._given,
            self.budget,
        )
        known = self.backwards[key, without] = self.compile(graph), used
        return known


def _expected(key: Key, roots: Sequence[torch.Tensor]) -> Key | None:
    """Which tangents a backward pass most likely has: only that of the loss, if there is one, else
    all, row by row; None where results are laid out otherwise: tangents often are not then."""
    losses = [i for i, root in enumerate(roots) if not root.dim()]
    if len(losses) == 1:
        return tuple(stride if i in losses else None for i, stride in enumerate(key))
    return key if all(root.is_contiguous() for root in roots) else None


def _first(joint: Joint, results: Collection[int]) -> int:
    """The number of eager's first node of those that compute these results."""
    return min(joint.first[i] for i in results)


def _is_tensor(value: Any) -> bool:
    """Whether an output of a graph is a tensor."""
    return isinstance(value, fx.Node) and isinstance(value.meta["val"], torch.Tensor)


def _as_input(value: Any) -> Any:
    """The description of a value that a graph takes from outside."""
    if not isinstance(value, torch.Tensor):
        return value
    return fake_like(value.fake_mode, value)  # type: ignore[attr-defined]


@dataclass(slots=True)
class _Call:
    """What a node of autograd's knows of the call that it was made in, besides what is saved."""

    training: Training
    part: Part  # whose results the node gives
    numbers: Sequence[Any]  # that the forward half saves
    given: Given | None  # to the call, if a second run is possible
    loan: Any  # of the memory of a recording, if what is saved lies there
    inner: Sequence[tuple[_Watched, frozenset[int]]] = ()  # results that others are computed from
    guarded: Sequence[tuple[Any, int, frozenset[int]]] = ()  # written inputs, with their versions
    held: Held | None = None  # what is saved, where it is divided
    laid: Sequence[tuple[Any, ...]] | None = None  # how it lies, where hooks have it

    @property
    def done(self) -> bool:
        """Whether no later backward pass may need anything of it."""
        return not keeps_graph() and (self.held is None or self.held.empty)


class CompiledFunction(torch.autograd.Function):
    """Autograd's view of a compiled graph: its fresh outputs, as a function of its inputs."""

    @staticmethod
    def forward(
        ctx: Any, made: tuple[_Call, Sequence[Any], Sequence[Any], bool], *inputs: Any
    ) -> tuple[Any, ...]:
        """Give autograd the outputs of a call, which depend on ``inputs``; save what is kept, which
        begins with what the forward half saves, and may be taken by hooks."""
        call, outputs, kept, hooked = made
        ctx.call = call
        if hooked:  # they may give back what lies otherwise
            call.laid = [(t.size(), t.stride(), t.dtype, t.device) for t in kept]
        division = call.part.division
        if division is not None:
            call.held = division.hold(kept, hooked)
        elif kept:
            ctx.save_for_backward(*kept)
        elif call.training.saving:
            # A second pass is an error, as eager's; hooks are given what eager's are.
            given = not call.training.joint.packed.isdisjoint(call.part.results)
            ctx.save_for_backward(torch.empty(0) if given else number())
        ctx.set_materialize_grads(False)
        return tuple(call.part.own(outputs))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Run the backward half for the tangents that are defined."""
        call: _Call = ctx.call
        training, part, lie = call.training, call.part, in_memory(grads)
        if lie and training.direct and call.laid is None and not torch.is_grad_enabled():
            without = training.asking.unasked(ctx, part.gradients)
            known = training.backwards.get((tuple([t.stride() for t in grads]), without))
            if known is not None and not has_autocast():  # what follows would do the same
                arguments = [*items(known[1])(ctx.saved_tensors), *grads]
                _release(ctx)
                return (None, *part.found(known[0](arguments)))
        counts = holders(grads) if training.large else None
        tangents, results = [*(grads if lie else map(settled, grads))], part.results
        if len(grads) != len(part.tangents) or type(None) in map(type, grads):
            tangents = [None if i is None else tangents[i] for i in part.tangents]
            order = training.joint.differentiable
            results = tuple(i for i, t in zip(order, tangents) if t is not None)
            if not results:
                return (None,) * (1 + len(part.inputs))
        for (hooks, result), users in call.inner:
            if not users.isdisjoint(results):
                tensor = result()
                if hooks or (tensor is not None and tensor.retains_grad):
                    raise RuntimeError(INNER)
        saves = not training.saving.isdisjoint(results)
        for tensor, version, users in call.guarded:
            if not users.isdisjoint(results):
                check_version(tensor, version)
        given, twice = call.given, torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        # By vmap, which gives tangents no memory, or a class of tensors.
        batched = not lie and not all(in_storage(t) for t in tangents if t is not None)
        without = frozenset() if batched else training.asking.unasked(ctx, part.gradients)
        if batched and given is None:
            raise RuntimeError(
                TWICE.format("for tangents in a batch or of a class", training.again.why)
            )
        if given is not None and (twice or batched):
            kept: dict[int, Any] = {}
            if saves or training.again.checked:  # an error where they are gone or were written
                left = training.again.left
                kept = dict(zip(left, map(saved_by(ctx, results).__getitem__, left.values())))
            _release(ctx)
            found = training.again.gradients(given, kept, tangents, twice, without)
        else:
            if counts is not None:
                held = [None if i is None else counts[i] for i in part.tangents]
                tangents = [t if t is None else taken(t, n) for t, n in zip(tangents, held)]
            if twice or has_autocast():  # perhaps not when the graph was captured
                with torch.no_grad(), below_autocast():
                    found = _compiled_backward(ctx, tangents, saves, results, without)
            else:
                found = _compiled_backward(ctx, tangents, saves, results, without)
        if call.loan is not None and call.done:
            call.loan = None  # the last one gives the memory back
        if twice and given is None:
            reached = [*leaves_behind(ctx), *(t for t in grads if t is not None)]
            said = TWICE.format("twice", training.again.why)
            found = [None if g is None else never(g, said, reached) for g in found]
        return (None, *part.found(found))


def _watch(result: torch.Tensor) -> _Watched:
    """The hooks that a result will have, which may outlive it, and the result."""
    if result._backward_hooks is None:
        result._backward_hooks = OrderedDict()
        result.grad_fn._register_hook_dict(result)  # type: ignore[union-attr]
    return result._backward_hooks, weakref.ref(result)


_apply = apply_of(CompiledFunction)


def _release(ctx: Any) -> None:
    """Let go of what the call saved and was given, unless other backward passes may need it."""
    ctx.maybe_clear_saved_tensors()
    call: _Call = ctx.call
    if call.given is not None and call.done:
        call.given = None


def _compiled_backward(
    ctx: Any,
    tangents: list[torch.Tensor | None],
    saves: bool,
    results: Sequence[int],
    without: frozenset[int],
) -> Sequence[Any]:
    """Run the backward half ``without`` these gradients; ``saves`` says whether eager's would need
    what it saved for ``results``, whose tangents are defined."""
    call: _Call = ctx.call
    training, numbers = call.training, call.numbers
    strides = [t if t is None else t.stride() for t in tangents]
    key = ordered(tangents) if training.any_sizes else tuple(strides)
    half, used = training.backwards.get((key, without)) or training.backward_of(key, without)
    arguments: list[Any] = []
    if saves or used:
        count = len(training.saved) - len(numbers)
        # Sizes alone are not let go of: eager saves nothing there.
        held = saves or not set(training.numbers).issuperset(used)
        values: Any = saved_by(ctx, results) if held else [None] * count
        if numbers:
            values = list(values[:count])
            for place, number in zip(training.numbers, reversed(numbers), strict=True):
                values.insert(place, number)
        arguments += items(used)(values)
        if call.held is not None and any(value is None for value in arguments):
            raise RuntimeError(SPENT)
        del values
    arguments += [t for t in tangents if t is not None]
    tangents.clear()
    _release(ctx)
    if call.loan is not None and isinstance(half, RecordedBackward):
        return half.borrow(call.loan, arguments)
    return half(arguments)  # type: ignore[no-any-return]


def _write(
    training: Training, inputs: Sequence[Any], outputs: Sequence[Any], results: Collection[int]
) -> None:
    """Give inputs their new values that are among ``results``, in the sight of autograd."""
    for place, position, times in training.joint.rewritten:
        if position in results:
            target = inputs[place]
            torch.autograd.graph.increment_version([target] * (times - 1))
            if not (target._is_view() or target.retains_grad or target.is_leaf):
                target.detach_()  # nor do zeros go where its gradient before the write goes
            target.copy_(outputs[position])


def _guard_written(training: Training, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Let backward passes check the written inputs that they read as they are now."""
    joint = training.joint
    for part in training.parts if training.kept_rewritten else ():
        guarded = outputs[part.results[0]].grad_fn.call.guarded = []
        for place in training.kept_rewritten:
            users = frozenset(i for i in part.results if joint.nodes[place] in joint.reads[i])
            # An alias without a history: the tensor itself holds the function by its own.
            guarded.append((inputs[place].detach(), inputs[place]._version, users))


class _Before(torch.autograd.Function):
    """A tensor that is about to be written, with the history that it has before."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        return tensor.data

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


_as_before = apply_of(_Before)


_is_view = torch.Tensor._is_view


def callable_of(
    training: Training, unusual: Unusual, program: fx.GraphModule
) -> Callable[..., Any]:
    """The compiled graph, called like the captured one.

    Args:
        training: its halves.
        unusual: says in which way a call differs from the example; None when it does not.
        program: the captured graph, which runs when a call is unlike the example, and where its
            attributes are read at each call.
    """
    joint, parts, cuts = training.joint, training.parts, training.joint.cuts
    forward, lends = training.forward, isinstance(training.forward, RecordedForward)
    saved_besides, again = training.besides(), training.again
    besides, hold = items(saved_besides), again.holder()
    paths = [path.split(".") for path in joint.attributes]
    count, results, spec, spent = len(joint.outputs), joint.results, joint.out_spec, joint.spent
    written = {position for _, position, _ in joint.rewritten}
    flat_result = spec.type is tuple and all(child.is_leaf() for child in spec.children())
    fresh = all(result.kind == "fresh" and not result.steps for result in results)
    returned = tuple(result.index for result in results)
    made_of = items(returned) if fresh else None
    inner = tuple(joint.inner.items())
    # A backward pass takes what was made last first: by part, the views that come before it.
    early: list[list[int]] = [[] for _ in (*parts, None)]
    for turn, i in sorted((r.turn, i) for i, r in enumerate(results) if r.turn is not None):
        later = (views for part, views in zip(parts, early) if turn < _first(joint, part.results))
        next(later, early[-1]).append(i)
    simple = fresh and flat_result and [returned] == [part.results for part in parts]
    simple = simple and not (cuts or spent or joint.mutated)  # the node's results are the call's
    kept_outputs, guards = (
        items(training.kept_outputs),
        bool(saved_besides or training.kept_outputs),
    )
    numbered, aliased = training.numbers[::-1], training.aliased
    altered, results_in = bool(numbered or aliased), items(training.tensors)
    differentiable = bool(parts)
    all_tensors = items(again.tensors)
    tensors = items(tuple(i for i in again.tensors if i < len(joint.nodes) - len(paths)))

    def run(*inputs: Any) -> Any:
        seen = looks(tensors(inputs))
        reason = (again.habit and again.captured()) or unusual(inputs, seen)
        if reason:
            log.info("%s: running as captured", reason)
            return getattr(program, "forward", program)(*inputs)  # now its code is written
        if paths:
            inputs = (*inputs, *(functools.reduce(getattr, path, program) for path in paths))
            seen = looks(all_tensors(inputs))
        if torch.is_grad_enabled():
            return differentiated(inputs, seen)
        with torch.enable_grad():  # as the graph may itself; some operators compute more then
            return differentiated(inputs, seen)

    def halved(inputs: Sequence[Any], hooked: bool) -> tuple[Sequence[Any], Any]:
        return forward.lend(inputs) if lends and not hooked else (forward(*inputs), None)

    def differentiated(inputs: Sequence[Any], seen: bytes) -> Any:
        hooked = has_saving_hooks()
        given = hold(inputs, seen) if differentiable and not hooked else None
        with below_autograd():
            if has_autocast():
                with below_autocast():
                    flat, loan = halved(inputs, hooked)
            else:
                flat, loan = halved(inputs, hooked)
        if any(map(_is_view, results_in(flat))):  # no views to autograd
            plain = {id(out): out.data for out in results_in(flat) if out._is_view()}
            flat = [plain.get(id(value), value) for value in flat]
        outputs: Any = flat[:count]
        kept: Any = flat[count:]
        numbers: Sequence[Any] = ()
        if altered:
            kept = [*kept]
            numbers = tuple(kept.pop(i) for i in numbered)
            for i in aliased:
                kept[i] = kept[i].detach()
        if guards:
            guarded = (*besides(inputs), *kept_outputs(outputs))
            if kept and hooked:  # of what they took no version is checked
                guarded = (number(),) * len(guarded)
            kept = (*kept, *guarded)
        if simple:
            call = _Call(training, parts[0], numbers, given, loan)
            found = _apply((call, outputs, kept, hooked), *parts[0].given(inputs))
            if inner:
                call.inner = [(_watch(found[i]), users) for i, users in inner]
            return found
        outputs = [*outputs]
        made_in, sources = outputs[:], inputs
        if cuts:
            sources = [*inputs, *(inputs[place] for place, _ in cuts)]
            for place in training.before:
                sources[place] = _as_before(sources[place])
        views: dict[int, Any] = {}
        calls = []
        try:
            for part, places in zip((*parts, None), early):
                lists: dict[str, dict[int, Any]] = {}
                for i in places:
                    views[i] = _make(results[i], inputs, outputs, (), lists)
                if part is None:
                    break
                call = _Call(training, part, numbers, given, loan)
                calls.append(call)
                own = _apply((call, made_in, kept, hooked), *part.given(sources))
                for position, result in zip(part.results, own):
                    outputs[position] = result
                if cuts:
                    _write(training, inputs, outputs, part.results)
            for place in spent:
                outputs = [*outputs[:place], never(outputs[place], SPENT), *outputs[place + 1 :]]
            if written:
                if not cuts:
                    _write(training, inputs, outputs, written)
                if not hooked:  # which autograd does not check, either
                    _guard_written(training, inputs, outputs)
            if made_of is not None:
                made: Any = made_of(outputs)
            else:
                made, lists = [], {}
                for i, result in enumerate(results):
                    view = views[i] if i in views else _make(result, inputs, outputs, made, lists)
                    made.append(view)
            watched = [(_watch(made[i]), users) for i, users in inner]
            for call in calls:
                call.inner = watched
            return tuple(made) if flat_result else pytree.tree_unflatten(made, spec)
        except Exception as error:
            error.written = [inputs[i] for i in joint.mutated]  # type: ignore[attr-defined]
            raise

    return run


def _make(
    result: Result,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    made: Sequence[Any],
    lists: dict[str, dict[int, Any]],
) -> Any:
    """A result of the program; ``lists`` has views that one operator gave and no result has."""
    if result.kind == "constant":
        return result.index
    if result.kind == "same":
        return made[result.index]
    value = (inputs if result.kind == "input" else outputs)[result.index]
    if not result.steps:
        return value
    # The last list of those on the way that has an item of these to give: each has one owner.
    first = len(result.steps)
    while first > 0:
        step = result.steps[first - 1]
        known = lists.get(step.group, {}) if step.group else {}
        if step.index in known:
            value = known.pop(step.index)
            break
        first -= 1
    with torch.no_grad() if result.hidden else _NOTHING:
        for step in result.steps[first:]:
            arguments = _resolve(step.args, outputs)
            value = step.target(value, *arguments, **dict(step.kwargs))
            if step.index is not None:  # one of a list
                lists[step.group] = items_left = dict(enumerate(value))
                value = items_left.pop(step.index)
    return value


def _resolve(args: Any, outputs: Sequence[Any]) -> Any:
    if isinstance(args, Slot):
        return outputs[args.index]
    if isinstance(args, (list, tuple)):
        return [_resolve(arg, outputs) for arg in args]
    return args
