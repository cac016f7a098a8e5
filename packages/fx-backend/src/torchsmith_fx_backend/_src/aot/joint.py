"""The joint graph: a program and its backward pass, recorded into one functional graph.

The program runs on stand-ins that require gradients under real autograd, with the recording mode
below it. So what eager autograd does about views, writes, ``detach`` and ``no_grad`` happens here,
too, once and for all; the graph holds the operators that it comes to. A backward pass is recorded
when it is first asked for: for the tangents that are defined, and with their strides.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torchsmith_guards import same_sizes, without_saving_hooks

from torchsmith_fx_backend._src.aot.draws import untouched_generators
from torchsmith_fx_backend._src.aot.functional import FunctionalMode, Hidden, Rule
from torchsmith_fx_backend._src.aot.functionalize import Trace, begin, execute
from torchsmith_fx_backend._src.aot.masks import MASK_RULES
from torchsmith_fx_backend._src.aot.overlap import overlaps_itself
from torchsmith_fx_backend._src.aot.products import hook_product
from torchsmith_fx_backend._src.aot.values import Base
from torchsmith_fx_backend._src.aot.views import LAZY, Step
from torchsmith_fx_backend._src.capture.recorder import LazyGraphModule, copy_node
from torchsmith_fx_backend._src.capture.symbols import SYMBOLIC_TYPES
from torchsmith_fx_backend._src.capture.torch_private import (
    FakeTensor,
    below_autograd,
    ended,
    fake_like,
    hook,
    is_number,
    make_fake,
    no_autocast_cache,
    pytree,
    run_backward,
    saving_hooks,
    without_autocast,
)
from torchsmith_fx_backend._src.captured import WRITES
from torchsmith_fx_backend.errors import OwnLeafError, UnsupportedError

aten = torch.ops.aten

BACKWARD = "torchsmith_backward"  # in the meta of nodes that a backward pass recorded


@dataclass(frozen=True, slots=True)
class Result:
    """How one result of the program is made after the forward graph has run.

    Attributes:
        kind: ``input`` (that very object), ``fresh`` (an output of the forward graph), ``same``
            (an earlier result) or ``constant``.
        index: which input, output or result; the value itself for a constant.
        steps: views to take of it, as eager did.
        hidden: the steps are taken without gradients.
        turn: the number of autograd's first node of a view of an input that is not written.
    """

    kind: str
    index: Any
    steps: tuple[Step, ...] = ()
    hidden: bool = False
    turn: int | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """A size in a step's arguments: the number that the forward graph returns at ``index``."""

    index: int


@dataclass(slots=True, eq=False)
class Joint:
    """A recorded program that backward passes can be added to.

    Attributes:
        trace: the recording.
        attributes: paths of tensors of the program itself, which are inputs after the given ones.
        nodes: the placeholders, given inputs first.
        wanted: positions of the inputs that require gradients.
        results: one per flat result of the program.
        out_spec: structure of the result.
        outputs: what the forward graph returns: nodes or numbers.
        differentiable: positions in ``outputs`` of what autograd sees as computed from inputs.
        mutated: positions of written inputs.
        kept: placeholders and outputs that eager autograd saves, with the version checks that
            come with that.
        viewed: those of ``kept`` of which it saves views alone, which keep the memory that there
            was then, whatever is assigned to the tensor's ``data``.
        saves: for each of ``differentiable``, the numbers of eager's autograd nodes that save
            anything for it: a second backward pass through one of them is an error.
        packed: those for which some of that is a tensor, which hooks on what is saved are given.
        reads: which of ``kept`` it saves for each of ``differentiable``.
        turns: ``wanted`` in the order in which eager's first backward pass is done with them.
        first: for each of ``differentiable``, the number of eager's first node that computes it.
        rewritten: inputs that get values with a history: position of the input, position in
            ``outputs`` of its new value, and how often eager writes it. Autograd itself has to see
            that write, so it comes after the compiled function.
        passed: for each of ``differentiable`` that is computed from new values of ``rewritten``,
            the positions in ``outputs`` of those. Gradients end there: such results are functions
            of the inputs as they are after the writes, too.
        inner: for each result that others are computed from, their positions in ``outputs``.
        finish: what is done to each graph before it is divided.
        spent: positions in ``outputs`` of what the program itself has differentiated already, and
            let go of what was saved for that.
    """

    trace: Trace
    attributes: tuple[str, ...]
    nodes: tuple[fx.Node, ...]
    wanted: tuple[int, ...]
    results: tuple[Result, ...] = ()
    out_spec: Any = None
    outputs: list[Any] = field(default_factory=list)
    differentiable: tuple[int, ...] = ()
    mutated: tuple[int, ...] = ()
    kept: frozenset[fx.Node] = frozenset()
    viewed: frozenset[fx.Node] = frozenset()
    saves: dict[int, frozenset[int]] = field(default_factory=dict)
    packed: frozenset[int] = frozenset()
    reads: dict[int, frozenset[fx.Node]] = field(default_factory=dict)
    turns: tuple[int, ...] = ()
    first: dict[int, int] = field(default_factory=dict)
    rewritten: tuple[tuple[int, int, int], ...] = ()
    passed: dict[int, frozenset[int]] = field(default_factory=dict)
    spent: tuple[int, ...] = ()
    inner: dict[int, frozenset[int]] = field(default_factory=dict)
    finish: Callable[[fx.Graph], object] = lambda graph: None
    _leaves: tuple[FakeTensor, ...] = ()
    _roots: dict[int, torch.Tensor] = field(default_factory=dict)  # output position -> stand-in
    _reached: dict[int, frozenset[int]] = field(default_factory=dict)  # of ``wanted``, likewise
    _reentrant: bool = False  # nodes run backward passes of their own
    _visible: dict[int, fx.Node] = field(default_factory=dict)  # base -> what the caller gets
    _writes: list[tuple[fx.Node, fx.Node, int]] = field(default_factory=list)

    @property
    def cuts(self) -> tuple[tuple[int, int], ...]:
        """Those of ``rewritten`` that results are computed from: position of the input and in
        ``outputs``. The inputs have positions after all others as they are after the writes."""
        ends = frozenset[int]().union(*self.passed.values())
        return tuple((place, position) for place, position, _ in self.rewritten if position in ends)

    @property
    def sources(self) -> tuple[int, ...]:
        """What gradients are for: ``wanted``, then ``cuts`` as inputs after the writes."""
        return (*self.wanted, *(len(self.nodes) + i for i, _ in enumerate(self.cuts)))

    def reached(self, position: int) -> frozenset[int]:
        """Those of ``sources`` that eager's backward pass comes to from a result."""
        if self._reentrant:
            return frozenset(self.sources)
        cuts, ends = enumerate(self.cuts, len(self.nodes)), self.passed.get(position, ())
        return self._reached[position].union(i for i, (_, at) in cuts if at in ends)

    def level(self, position: int) -> int:
        """After how many of ``rewritten``, one after the other, a result can be a result."""
        return max((self.level(i) + 1 for i in self.passed.get(position, ())), default=0)

    def backward(self, strides: Sequence[tuple[Any, ...] | None]) -> Backward:
        """Record the backward pass for tangents of these strides, None for an undefined one.

        Raises:
            UnsupportedError: eager's backward pass raises, or writes into what it was given, or
                nothing that is given wants a gradient.
        """
        if not self.sources:
            raise UnsupportedError(what="results that need gradients of which no input is given")
        mode, recorder, fake_mode = self.trace.mode, self.trace.recorder, self.trace.fake_mode
        levels: dict[int, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        nodes = []
        last = next(iter(reversed(recorder.graph.nodes)))
        before = {id(b): b.generation for b in mode.bases}
        for position, stride in zip(self.differentiable, strides, strict=True):
            if stride is None:
                continue
            root = self._roots[position]
            fake = make_fake(fake_mode, root.shape, stride, root.dtype, root.device)
            node = self._placeholder(f"tangent_{position}", fake)
            mode.add_root(fake, node)
            outputs, tangents = levels.setdefault(self.level(position), ([], []))
            outputs.append(root)
            tangents.append(fake)
            nodes.append(node)
        grads: list[torch.Tensor | None] = [None] * len(self.sources)
        turns: dict[int, None] = {}
        hooked = () if self.turns else self._leaves
        for i, leaf in zip(self.wanted, hooked):
            hook(leaf, functools.partial(_note, turns, i))
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(untouched_generators())
                stack.enter_context(no_autocast_cache())
                stack.enter_context(without_saving_hooks())
                stack.enter_context(torch.autograd.set_detect_anomaly(False))
                stack.enter_context(without_autocast())
                stack.enter_context(fake_mode)
                stack.enter_context(mode)
                for level, pairs in levels.items():
                    for i, grad in self._gradients(*pairs, level):
                        if grad is not None:
                            known = grads[i]
                            grads[i] = grad if known is None else known + grad
        except (RuntimeError, NotImplementedError) as error:
            raise UnsupportedError(what=f"a backward pass that raises ({_line(error)})") from error
        finally:
            for leaf in hooked:
                hook(leaf, None)
        self.turns = self.turns or tuple(dict.fromkeys((*turns, *self.wanted)))
        if any(before.get(id(b), 0) != b.generation and b.origin is not None for b in mode.bases):
            raise UnsupportedError(what="a backward pass that writes into its inputs")
        with fake_mode, below_autograd(), torch.no_grad():
            mode.share([g for g in grads if g is not None])
            found = [None if g is None else mode.output(g) for g in grads]
        for node in reversed(recorder.graph.nodes):
            if node is last:
                break
            node.meta[BACKWARD] = True
        return Backward(tuple(nodes), tuple(found))

    def _gradients(
        self, outputs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor], level: int
    ) -> Iterator[tuple[int, torch.Tensor | None]]:
        """Gradients of results of one level, with their places among those of ``sources``."""
        leaves = self._leaves
        cuts = enumerate(self.cuts, len(leaves))
        ends = {i: self._roots[at] for i, (_, at) in cuts if self.level(at) < level}
        try:
            with ended([root.grad_fn for root in ends.values()]):
                found = run_backward(outputs, (*leaves, *ends.values()), tangents)
            return zip((*range(len(leaves)), *ends), found, strict=True)
        except RuntimeError as error:
            if "use_reentrant" not in str(error) or ends:
                raise
        # Reentrant checkpointing gives gradients to leaves only, as it comes by them.
        self._reentrant = True
        before = [leaf.grad for leaf in leaves]
        try:
            for leaf in leaves:
                leaf.grad = None
            torch.autograd.backward(outputs, tangents, retain_graph=True)
            return iter([(i, leaf.grad) for i, leaf in enumerate(leaves)])
        finally:
            for leaf, grad in zip(leaves, before, strict=True):
                leaf.grad = grad

    def _placeholder(self, name: str, fake: FakeTensor) -> fx.Node:
        graph = self.trace.recorder.graph
        first = next(n for n in graph.nodes if n.op != "placeholder")
        with graph.inserting_before(first):
            return self.trace.recorder.placeholder(name, fake)

    def graph(self, backward: Backward | None) -> Snapshot:
        """What is recorded: forward outputs first, then gradients, writes last. A copy, unless
        there are no gradients: nothing more is recorded then."""
        graph = recorded = self.trace.recorder.graph
        env = {node: node for node in recorded.nodes}
        if backward is not None:
            graph = fx.Graph()
            for node in recorded.nodes:
                env[node] = copy_node(graph, node, env.__getitem__)
        for origin, value, times in self._writes:
            copy = graph.call_function(aten.copy_.default, (env[origin], env[value]))
            copy.meta = {"val": origin.meta["val"], WRITES: times}
        grads = () if backward is None else backward.grads
        returned: list[Any] = [*self.outputs, *grads]
        graph.output(tuple(env[r] if isinstance(r, fx.Node) else r for r in returned))
        module = LazyGraphModule(self.trace.recorder.root(), graph)
        self.finish(graph)
        given: Any = graph.output_node().args[0]
        kept = {given[i] for i, n in enumerate(self.outputs) if n in self.kept}
        return Snapshot(
            module,
            tuple(env[n] for n in self.nodes),
            () if backward is None else tuple(env[n] for n in backward.tangents),
            frozenset(kept | {env[n] for n in self.nodes if n in self.kept}),
        )


def _note(turns: dict[int, None], position: int, grad: torch.Tensor | None) -> None:
    """A hook: the gradient of an input is complete."""
    turns[position] = None


class _Place(torch.autograd.Function):
    """What the program sees of a leaf: a tensor of the same layout."""

    @staticmethod
    def forward(ctx: Any, leaf: FakeTensor) -> FakeTensor:
        ctx.set_materialize_grads(False)
        return fake_like(leaf.fake_mode, leaf)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> torch.Tensor | None:
        return grad


_PLACE = "_PlaceBackward"


@dataclass(frozen=True, slots=True)
class Backward:
    """Nodes of one backward pass.

    Attributes:
        tangents: placeholders of the defined tangents.
        grads: gradients of the sources, None for undefined ones.
    """

    tangents: tuple[fx.Node, ...]
    grads: tuple[fx.Node | None, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A joint graph on its own.

    Attributes:
        module: the graph; its outputs are the forward graph's, then the gradients.
        inputs: placeholders of the program.
        tangents: those of the backward pass.
        kept: as in ``Joint``.
    """

    module: fx.GraphModule
    inputs: tuple[fx.Node, ...]
    tangents: tuple[fx.Node, ...]
    kept: frozenset[fx.Node]


def trace_joint(
    program: fx.GraphModule | Callable[..., object],
    inputs: Sequence[object],
    rules: Mapping[Any, Rule],
    *,
    exact_draws: bool = False,
) -> Joint:
    """Record the forward half of ``program``.

    Args:
        program: a captured graph, or a Python function.
        inputs: as for ``functionalize``.
        rules: decompositions.
        exact_draws: random numbers shall be those of eager.

    Raises:
        UnsupportedError: the program does something that is not differentiated here.
    """
    leaves: list[FakeTensor] = []
    places: list[FakeTensor] = []

    def stand_in(example: torch.Tensor, fake: FakeTensor) -> FakeTensor:
        if not example.requires_grad:
            return fake
        fake.requires_grad_()
        leaves.append(fake)
        place = fake
        if not example.is_leaf:
            with torch.enable_grad():
                place = _Place.apply(fake)  # type: ignore[no-untyped-call]
        places.append(place)
        return place

    trace = replace(
        begin(program, inputs, {**rules, **MASK_RULES}, stand_in), exact_draws=exact_draws
    )
    mode = trace.mode
    attributes, nodes = _lift_attributes(program, trace, stand_in)
    try:
        result = execute(program, trace)
    except RuntimeError as error:
        if "in-place operation" not in str(error):
            raise
        raise UnsupportedError(what=f"a program that raises ({error})") from error
    trace.recorder.follow(None)
    by_place = {id(place): leaf for place, leaf in zip(places, leaves)}
    owners: dict[int, int] = {}  # stand-in -> first position
    for position, node in enumerate(nodes):
        if isinstance(node.meta["val"], torch.Tensor):
            owners.setdefault(id(node.meta["val"]), position)
    wanted = tuple(sorted(owners[id(place)] for place in places))
    joint = Joint(trace, attributes, nodes, wanted)
    joint._leaves = tuple(by_place[id(nodes[i].meta["val"])] for i in wanted)
    flat, joint.out_spec = pytree.tree_flatten(result)
    # After a write, autograd makes a view's history when it is asked for, by running the view.
    with trace.fake_mode, mode, torch.enable_grad():
        for leaf in flat:
            try:
                _ = isinstance(leaf, torch.Tensor) and leaf.is_leaf
            except RuntimeError as error:
                raise UnsupportedError(what=f"a result without a history ({error})") from error
        _lay_out_as_bases(mode)
    _collect_writes(joint)
    with trace.fake_mode, below_autograd(), torch.no_grad():
        collector = _Collector(joint, mode)
        joint.results = tuple(collector.run(flat))
    with trace.fake_mode, mode:
        switched = owners.keys() - map(id, places)  # inputs, once the graph makes leaves of them
        _find_saved(joint, collector.made | switched, collector.shown)
    if joint.differentiable:
        # A later backward pass, for other tangents, may ask for sizes that the first does not.
        joint.outputs += [n for n in trace.recorder.symbols.known() if n not in joint.outputs]
    return joint


def _lift_attributes(
    program: fx.GraphModule | Callable[..., object], trace: Trace, stand_in: Any
) -> tuple[tuple[str, ...], tuple[fx.Node, ...]]:
    """Make inputs of the tensors that the graph reads as attributes."""
    paths: list[str] = []
    nodes = list(trace.nodes)
    seen: set[int] = set()
    if not isinstance(program, fx.GraphModule):
        return (), tuple(nodes)
    for node in program.graph.nodes:
        if node.op == "call_module":
            module = program.get_submodule(str(node.target))
            if any(True for _ in module.parameters()) or any(True for _ in module.buffers()):
                raise UnsupportedError(what=f"a call of the module {node.target} with weights")
        if node.op != "get_attr":
            continue
        path = str(node.target)
        value: Any = operator.attrgetter(path)(program)
        if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
            continue
        if id(value) in seen:
            continue
        seen.add(id(value))
        if value.layout is not torch.strided:
            raise UnsupportedError(what=f"a {value.layout} tensor in the graph")
        fake = stand_in(value, fake_like(trace.fake_mode, value))
        placeholder = trace.recorder.placeholder(path.replace(".", "_"), fake)
        trace.mode.lift(value, fake, placeholder)
        paths.append(path)
        nodes.append(placeholder)
    return tuple(paths), tuple(nodes)


def _lay_out_as_bases(mode: FunctionalMode) -> None:
    """Where a view outlives a write, its new history is ``as_strided`` in eager, whose gradient
    lies as the base does; that of stand-ins is the view's own."""
    for value in list(mode.values.values()):
        tensor, base = value.tensor, value.tensor._base
        if base is None or value.born == value.base.generation or not tensor.requires_grad:
            continue
        with contextlib.suppress(RuntimeError):  # eager has none either
            function: Any = tensor.grad_fn
            for _ in () if function is None or overlaps_itself(base) else value.steps:
                following = function.next_functions[0][0] if function.next_functions else None
                if following is None:
                    break
                if following is base.grad_fn:
                    function.register_hook(functools.partial(_laid_out, base))
                    break
                function = following


def _laid_out(base: torch.Tensor, grads: Sequence[Any], _: object) -> tuple[Any, ...] | None:
    """A hook: the gradient for ``base`` with its strides."""
    grad = grads[0]
    if grad is None or same_sizes(grad.stride(), base.stride()):
        return None
    return (grad.new_empty_strided(base.shape, base.stride()).copy_(grad),)


def _collect_writes(joint: Joint) -> None:
    mutated = []
    places = {node: i for i, node in reversed(list(enumerate(joint.nodes)))}
    for base in joint.trace.mode.bases:
        origin = base.origin
        if origin is None or base.generation == 0 or base.node is origin:
            continue
        if origin not in places:
            raise UnsupportedError(what=f"a write to {origin.name}")
        current = origin.meta["val"]
        place = places[origin]
        mutated.append(place)
        if not current.requires_grad or _is_untouched(current):
            joint._writes.append((origin, base.node, base.generation - base.unseen))
            continue
        position = len(joint.outputs)
        joint.outputs.append(base.node)
        joint.differentiable = (*joint.differentiable, position)
        joint._roots[position] = current
        joint.rewritten = (*joint.rewritten, (place, position, base.generation))
    joint.mutated = tuple(sorted(mutated))


def _is_untouched(place: torch.Tensor) -> bool:
    """Whether autograd knows the stand-in of an input as it did in the beginning."""
    return place.is_leaf or (place.grad_fn is not None and place.grad_fn.name() == _PLACE)


def _between(leaf: torch.Tensor, owner: torch.Tensor) -> list[Any]:
    """The nodes of autograd's from a tensor to the one that it views."""
    found: list[Any] = []
    fn: Any = leaf.grad_fn
    while fn is not None and fn is not owner.grad_fn:
        found.append(fn)
        fn = fn.next_functions[0][0] if fn.next_functions else None
    return found


class _Collector:
    """Settles how each result is made; one instance per joint graph."""

    def __init__(self, joint: Joint, mode: FunctionalMode) -> None:
        self.joint = joint
        self.mode = mode
        self.fresh: dict[int, int] = {}  # base -> position among the outputs
        self.slots: dict[fx.Node, Slot] = {}
        self.made: set[int] = set()  # results that are views taken without gradients, and leaves
        self.shown: dict[tuple[Any, int], int] = {}  # what gives a result in autograd -> its number
        tensors = (value.tensor for value in mode.values.values())
        self.hooked = {t.grad_fn for t in tensors if t._backward_hooks and not t.is_leaf}

    def run(self, flat: Sequence[object]) -> Iterator[Result]:
        first: dict[int, int] = {}
        for number, leaf in enumerate(flat):
            if first.setdefault(id(leaf), number) != number and isinstance(leaf, torch.Tensor):
                yield Result("same", first[id(leaf)])
            elif isinstance(leaf, torch.Tensor):
                result = self._tensor(leaf)
                yield result
                own = result.kind == "fresh" or result.steps  # gradients come by the inputs
                if own and leaf.requires_grad and leaf.grad_fn is not None:
                    self.shown[leaf.grad_fn, leaf.output_nr] = number
            elif isinstance(leaf, SYMBOLIC_TYPES):
                self.joint.outputs.append(self.joint.trace.recorder.symbols.lower(leaf))
                yield Result("fresh", len(self.joint.outputs) - 1)
            else:
                yield Result("constant", leaf)

    def _tensor(self, leaf: torch.Tensor) -> Result:
        value = self.mode.value_of(leaf)
        base = value.base
        if base.origin is not None:
            owner = base.origin.meta["val"]
            if base.origin not in self.joint.nodes:
                raise UnsupportedError(what=f"the constant {base.origin.name} as a result")
            kind, index = "input", self.joint.nodes.index(base.origin)
        else:
            root = base.root
            if root is None:
                raise UnsupportedError(what="a result whose layout was changed in place")
            kind, index, owner = "fresh", self._fresh(base, root, leaf.requires_grad), root
        if leaf.requires_grad and not owner.requires_grad:
            raise OwnLeafError(what="a view that requires a gradient where its base does not")
        detached = any(step.target is aten.detach.default for step in value.steps)
        if leaf.requires_grad and leaf.is_leaf and leaf is not owner:
            if detached:
                raise OwnLeafError(what="a leaf that the graph makes")
            self.made.add(id(leaf))
        nodes = _between(leaf, owner) if leaf.requires_grad else []
        own = torch.autograd.function.BackwardCFunction  # a derivative of the user's
        twin = leaf is not owner and leaf.grad_fn is not None and leaf.grad_fn is owner.grad_fn
        if twin or any(fn in self.hooked or isinstance(fn, own) for fn in nodes):
            raise UnsupportedError(what="a view with a hook, or that an autograd function gave")
        if any(step.target in LAZY for step in value.steps):
            raise UnsupportedError(what="a lazily conjugated result of a differentiated graph")
        hidden = owner.requires_grad and leaf.is_leaf and leaf is not owner and not detached
        steps: list[Step] = []
        for each in value.steps:
            step = replace(each, args=self._slots(each.args))
            if step.index is not None:
                group = repr((kind, index, hidden, steps, replace(step, index=None)))
                step = replace(step, group=group)
            steps.append(step)
        seen = kind == "input" and steps and not base.generation
        turn = min((fn._sequence_nr() for fn in nodes), default=None) if seen else None
        return Result(kind, index, tuple(steps), hidden, turn)

    def _slots(self, args: Any) -> Any:
        """``args`` with the number of an output for each graph node."""
        if isinstance(args, (list, tuple)):
            return type(args)(self._slots(arg) for arg in args)
        if not isinstance(args, fx.Node):
            return args
        if args not in self.slots:
            self.slots[args] = Slot(len(self.joint.outputs))
            self.joint.outputs.append(args)
        return self.slots[args]

    def _fresh(self, base: Base, root: torch.Tensor, wanted: bool) -> int:
        """The position of ``root``, which gradients come by if one of its views has a history."""
        joint = self.joint
        position = self.fresh.get(id(base))
        if position is None:
            position = self.fresh[id(base)] = len(joint.outputs)
            joint._visible[id(base)] = node = self.mode.output(root)
            joint.outputs.append(node)
        if wanted and root.requires_grad and position not in joint._roots:
            if root.is_leaf:
                raise OwnLeafError(what="a leaf that the graph makes")
            joint.differentiable = tuple(sorted((*joint.differentiable, position)))
            joint._roots[position] = root
        return position


def _line(error: Exception) -> str:
    """Its first line: traces of C++ may follow."""
    return str(error).partition("\n")[0]


def _find_saved(joint: Joint, made: Collection[int], shown: Mapping[tuple[Any, int], int]) -> None:
    """What eager autograd keeps for the backward pass, read from its nodes."""
    kept: dict[fx.Node, bool] = {}
    known: dict[Any, _Saving | None] = {}  # by autograd node
    new = {joint._roots[position].grad_fn: position for _, position, _ in joint.rewritten}
    leaves = {id(leaf): i for i, leaf in zip(joint.wanted, joint._leaves)}
    roots: list[tuple[int, Any]] = [*joint._roots.items()]  # first those that eager takes last
    for position, root in sorted(roots, key=lambda pair: pair[1].grad_fn._sequence_nr()):
        waiting: list[Any] = [root.grad_fn]
        seen = set(waiting)
        while waiting:
            function = waiting.pop()
            if function in new and function is not root.grad_fn:
                passed = joint.passed.get(position, frozenset())
                joint.passed[position] = passed | {new[function]}
                seen.remove(function)
                continue
            if function not in known:
                known[function] = _look_at_saved(joint, function, len(known))
            if known[function] is None:
                joint.spent = (*joint.spent, position)
                joint.differentiable = tuple(i for i in joint.differentiable if i != position)
                del joint._roots[position]
                break
            for following, number in function.next_functions:
                inner = shown.get((following, number))
                if inner is not None:
                    joint.inner[inner] = joint.inner.get(inner, frozenset()) | {position}
                if following is not None and following not in seen:
                    seen.add(following)
                    waiting.append(following)
        else:
            found = [each for function in seen if (each := known[function]) is not None]
            if any(each.moved for each in found):
                raise UnsupportedError(what="data of a tensor that a backward pass may read")
            joint.saves[position] = frozenset(each.number for each in found if each.some)
            joint.packed |= {position} if any(each.packed for each in found) else set()
            numbers = (f._sequence_nr() for f in seen if type(f).__name__ != _PLACE)
            joint.first[position] = min(numbers, default=0)
            joint.reads[position] = frozenset(node for each in found for node in each.kept)
            ends = {id(f.variable) for f in seen if type(f).__name__ == "AccumulateGrad"}
            if not ends.isdisjoint(made):
                raise OwnLeafError(what="a leaf that the graph makes")
            joint._reached[position] = frozenset(leaves[x] for x in ends if x in leaves)
    for each in known.values():
        for node, itself in {} if each is None else each.kept.items():
            kept[node] = kept.get(node, False) or itself
    if joint.passed and (joint.spent or any(joint._roots[i].output_nr for _, i in joint.cuts)):
        raise UnsupportedError(what="a result of what got into an input with a gradient")
    if joint.wanted and joint.differentiable and not any(map(joint.reached, joint.differentiable)):
        raise UnsupportedError(what="results whose gradients reach no input")
    joint.kept = frozenset(kept)
    joint.viewed = frozenset(node for node, itself in kept.items() if not itself)


@dataclass(slots=True)
class _Saving:
    """What one node of autograd's saves.

    Attributes:
        number: of the node.
        some: whether it saves anything.
        packed: whether that is more than numbers of the program.
        moved: whether it saves what was given other data since, or may do so.
        kept: tensors that the caller sees, with whether one is saved itself and not as a view.
    """

    number: int
    some: bool
    packed: bool = False
    moved: bool = False
    kept: dict[fx.Node, bool] = field(default_factory=dict)

    def keep(self, joint: Joint, tensor: torch.Tensor) -> None:
        """It saves ``tensor``."""
        value = joint.trace.mode.value_of(tensor)
        self.moved |= any(t is tensor or b is value.base for t, b in joint.trace.mode.moved)
        place = value.base.origin or joint._visible.get(id(value.base))
        if place is not None:
            self.kept[place] = self.kept.get(place, False) or not value.steps


def _look_at_saved(joint: Joint, function: Any, number: int) -> _Saving | None:
    """What the autograd node ``function`` saves; None when it has let go of it."""
    mode = joint.trace.mode
    kind = type(function).__name__
    result = _Saving(number, kind == "CopySlices")
    tensors: dict[str, Any] = {}
    if kind in ("CopySlices", "CppFunction"):
        call = mode.hidden.get(function._sequence_nr())
        for tensor in () if call is None else _saved_by(call):
            result.some = result.packed = True
            result.keep(joint, tensor)
    for name in _saved_names(type(function)):  # type: ignore[arg-type]
        try:
            raw = getattr(function, f"_raw_{name.removeprefix('_')}", None)
            if any(_hooked(each) for each in (raw if isinstance(raw, tuple) else (raw,))):
                # In the hands of hooks, which may compute it again when asked.
                result.some, result.packed, result.moved = True, True, bool(mode.moved)
                continue
            found = getattr(function, name)
        except RuntimeError as error:
            if "a second time" in str(error):
                return None
            raise UnsupportedError(what=f"a backward pass that raises ({_line(error)})") from error
        for tensor in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(tensor, torch.Tensor):
                result.some, result.packed = True, result.packed or not is_number(tensor)
            if isinstance(tensor, FakeTensor):
                result.keep(joint, tensor)
                tensors[name] = tensor
    if kind.startswith(("ProdBackward", "CumprodBackward")) and len(tensors) == 2:
        hook_product(function, _laid_out, **tensors)
    return result


def _saved_by(call: Hidden) -> Iterator[torch.Tensor]:
    """What autograd saves of a call, seen where it runs again on tensors of its own, of whose
    values nobody asks."""
    func, args, kwargs, wanted, results = call
    own: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    saved: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        copy = torch.empty_like(tensor, requires_grad=id(tensor) in wanted).clone()
        return own.setdefault(id(tensor), (tensor, copy))[1]

    with torch.enable_grad(), saving_hooks(saved.append, copied):
        args, kwargs = pytree.tree_map_only(torch.Tensor, copied, (args, kwargs))
        again = func(*args, **kwargs)
    originals = {
        id(copy): tensor
        for tensor, copy in (*own.values(), *zip(results, again if results else ()))
    }
    yield from (originals.get(id(tensor), tensor) for tensor in saved)


def _hooked(saved: Any) -> bool:
    return saved is not None and saved.unpack_hook is not None


@functools.cache
def _saved_names(kind: type) -> tuple[str, ...]:
    """The attributes by which autograd nodes of one kind show the tensors that they save. What
    they save besides has no raw form; to read a symbolic number there would need it itself."""
    names = (name for name in dir(kind) if name.startswith("_saved_"))
    several = issubclass(kind, torch.autograd.function.BackwardCFunction)
    found = tuple(name for name in names if hasattr(kind, f"_raw{name}"))
    return (*found, "saved_tensors") if several else found
