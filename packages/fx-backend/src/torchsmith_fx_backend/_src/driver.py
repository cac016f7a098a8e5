"""The compile driver: from a captured graph to a callable, through every stage."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import fx
from torchsmith_guards import collector, is_interruption
from torchsmith_guards.records import new_graph, note_compiled, recorder

from torchsmith_fx_backend._src import cached, graph_key, modes, settings, switches
from torchsmith_fx_backend._src.aot.frame import Frame, unlike
from torchsmith_fx_backend._src.aot.functionalize import FunctionalGraph, functionalize
from torchsmith_fx_backend._src.aot.joint import BACKWARD, Joint, trace_joint
from torchsmith_fx_backend._src.aot.training import Training, callable_of
from torchsmith_fx_backend._src.aot.twice import Again
from torchsmith_fx_backend._src.capture.rules import JOINT_RULES, RULES
from torchsmith_fx_backend._src.capture.torch_private import pytree
from torchsmith_fx_backend._src.captured import attributes_read, is_boxed, named_tensors
from torchsmith_fx_backend._src.page.parts import notes, schedules
from torchsmith_fx_backend._src.page.summary import note_schedule
from torchsmith_fx_backend._src.passes.base import run_passes
from torchsmith_fx_backend._src.passes.casts import ComparedValues
from torchsmith_fx_backend._src.passes.common import DeadCode
from torchsmith_fx_backend._src.passes.once import ONCE, ComputedOnce
from torchsmith_fx_backend._src.passes.positions import PoolPositions
from torchsmith_fx_backend._src.passes.random import KeyedRandom
from torchsmith_fx_backend._src.passes.written import WrittenParts
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.graphs import tell_eager, tell_functional, tell_restart
from torchsmith_fx_backend._src.records.plans import tell_lowered, tell_plan
from torchsmith_fx_backend._src.repro import report_failure
from torchsmith_fx_backend._src.runtime.build import build
from torchsmith_fx_backend._src.runtime.cuda_recorder import CudaRecorder, ordinal
from torchsmith_fx_backend._src.runtime.graphs import CompiledGraph
from torchsmith_fx_backend._src.runtime.halves import RecordedHalves
from torchsmith_fx_backend._src.runtime.launchers import KernelFailedError, expect
from torchsmith_fx_backend._src.runtime.recordings import obstacle
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.hints import hints
from torchsmith_fx_backend._src.schedule.plan import Launch
from torchsmith_fx_backend._src.settings import Settings
from torchsmith_fx_backend._src.tuning.tuner import Tuner
from torchsmith_fx_backend.errors import StageError, UnsupportedError

aten = torch.ops.aten
log = logging.getLogger("torchsmith.backend")

_Result = TypeVar("_Result")

_LEAST_BODY = 12  # scalar operations of kernels that are worth being made instead of larger ones


def compile_inference(
    gm: fx.GraphModule, inputs: Sequence[object], chosen: Settings, key: str | None
) -> tuple[CompiledGraph, Frame]:
    """Compile an inference graph, and keep it under ``key``.

    Raises:
        UnsupportedError: the graph has a part that has no functional form here.
        StageError: a stage failed.
    """
    sizes = None if key is None else graph_key.Sizes.of(gm, inputs)
    graph = functional_graph(gm, inputs, chosen)
    built: Any = _build(graph.module, gm, chosen)
    known = named_tensors(gm)
    attributes = tuple(
        (node.name, str(node.target))
        for node in graph.module.graph.nodes
        if node.op == "get_attr" and node.target in known
    )
    written = tuple(
        str(node.args[0])
        for node in graph.module.graph.find_nodes(op="call_function", target=aten.copy_.default)
        if node.args[0].op == "get_attr"
    )
    held = [n for n in graph.module.graph.find_nodes(op="get_attr") if ONCE in n.meta]
    once = tuple((node.name, node.meta[ONCE][1]) for node in held)
    stop, spec = obstacle(graph.module.graph), graph.out_spec
    frame = Frame(spec, graph.mutated, graph.frozen, attributes, written, once, graph.static, stop)
    if key is not None and sizes is not None:
        computed = _through_aten(held[0].meta[ONCE][0]) if held else None
        cached.save(key, sizes, frame, built, gm, computed)
    return built, frame


def _through_aten(module: fx.GraphModule) -> CompiledGraph:
    """``module`` as a graph that calls an operator for each node."""
    return build(schedule_graph(module, refused=frozenset(n.name for n in module.graph.nodes)))


def tell_stages(gm: fx.GraphModule, inputs: Sequence[object]) -> None:
    """Run the stages for the texts that are kept of them."""
    chosen = settings.current()
    graph = functional_graph(gm, inputs, chosen).module
    for each in switches.last_passes(chosen.disable, chosen.rng):
        each.run(graph.graph)
    tell_lowered(schedule_graph(graph))


@collector.paused()
def compile_training(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    chosen: Settings | None = None,
    *,
    recorded: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph for calls in which the inputs that require a gradient in ``example_inputs``
    require one; the arguments are those of ``compile_graph``.

    Raises:
        UnsupportedError: the graph has a part that is not differentiated here.
        StageError: a stage failed.
    """
    chosen = settings.current() if chosen is None else chosen
    off = chosen.disable
    rules = {} if "decompositions" in off else JOINT_RULES
    exact = chosen.rng == "eager"
    joint = _stage("joint", trace_joint, gm, example_inputs, rules, exact_draws=exact)
    keyed = (DeadCode(), KeyedRandom(unless=BACKWARD)) if chosen.rng == "keyed" else ()
    wanted = (*keyed, PoolPositions(BACKWARD), ComparedValues(), WrittenParts(), ComputedOnce())
    before_division = [p for p in wanted if p.name not in off]

    def finish(graph: fx.Graph) -> None:
        with _reported(gm):
            for each in before_division:
                _stage(f"pass {each.name}", each.run, graph)

    joint.finish = finish

    halves: list[tuple[str, Any]] = []

    def compile_half(module: fx.GraphModule) -> object:
        with _reported(gm):
            wanted = switches.passes(chosen, training=True)
            _stage("passes", run_passes, module.graph, wanted, check=chosen.verify)
        module.recompile()
        logs.logger("aot").debug("%s", module.graph)
        tell_functional(module)
        try:
            built: Any = _half(module, chosen, gm)
        except StageError as error:
            report_failure(gm, error)
            if chosen.strict:
                raise
            tell_eager(error)
            log.warning("%s This pass runs operator by operator instead.", error)
            built = _Uncompiled(module)
        forward = not is_boxed(module.graph)
        if forward:  # a backward half may have been compiled ahead
            halves.insert(0, ("forward", built))
        else:
            halves.append(("backward", built))
        return _recorded_half(recordings, module, built, joint, forward=forward)

    recordings = None
    if recorded is not None:
        device = ordinal((*example_inputs, *attributes_read(gm)))
        say = functools.partial(modes.skip, recorded)
        recordings = RecordedHalves(CudaRecorder(device, private=True), say)
    owner = recorder.current_graph()
    if owner is not None:
        owner.kind = "forward"

    def compile_recorded(module: fx.GraphModule) -> object:
        if not is_boxed(module.graph):
            return compile_half(module)
        of = "" if owner is None else owner.compile_id  # the frame of the forward half
        backward = new_graph(module, "smith", kind="backward", compile_id=of)
        with recorder.graph(backward) as told:
            built = compile_half(module)
            note_compiled(told, built)
        return built

    budget = 1.0 if "partition" in off else chosen.memory_budget
    training = Training(joint, compile_recorded, budget, Again.of(joint, gm))
    _stage("partition", training.prepare)
    compiled: Any = callable_of(training, unlike(joint, example_inputs), gm)
    compiled.training = training
    compiled.source, compiled.kernels = halves[0][1].source, halves[0][1].kernels
    compiled.schedules = functools.partial(schedules, halves)
    compiled.notes = functools.partial(notes, halves)
    return compiled  # type: ignore[no-any-return]


@contextlib.contextmanager
def _reported(gm: fx.GraphModule) -> Iterator[None]:
    """Tell listeners of a stage that fails here."""
    try:
        yield
    except StageError as error:
        report_failure(gm, error)
        raise


def _recorded_half(
    recordings: RecordedHalves | None,
    module: fx.GraphModule,
    built: Any,
    joint: Joint,
    *,
    forward: bool,
) -> object:
    """``built``, recorded where that is wanted and nothing is in the way."""
    if recordings is None:
        return built
    reason = obstacle(module.graph) if built.built else "it runs operator by operator"
    if reason:
        recordings.refuse(reason)
        return built
    static = joint.trace.static
    if forward:
        return recordings.forward(built, joint.mutated, len(joint.outputs), static=static)
    return recordings.backward(built, static=static)


def _half(module: fx.GraphModule, chosen: Settings, gm: fx.GraphModule) -> object:
    """Build a half of the captured graph ``gm``, or find what an earlier process built of it."""
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    key = cached.half_key(module, inputs, chosen) if isinstance(gm, fx.GraphModule) else None
    if key is None:
        return _build(module, module, chosen, gm)
    with recorder.phase("cache"):
        found = cached.load_half(key, module, gm)
    if found is not None:
        return found
    expect(inputs)
    sizes = graph_key.Sizes.of(module, inputs)
    built = _build(module, module, chosen, gm)
    # What is assumed of sizes from here on is not part of the key, nor of this frame's guards when
    # a backward half is found.
    if sizes.assumed() == []:
        cached.save_half(key, built, module, gm)
    return built


class _Uncompiled:
    """A half that could not be compiled: its graph, run through aten."""

    source = "# runs through aten\n"
    kernels: tuple[tuple[str, str], ...] = ()
    built = False

    def __init__(self, module: fx.GraphModule) -> None:
        self._module, self._boxed = module, is_boxed(module.graph)

    def __call__(self, *inputs: Any) -> Any:
        return self._module.forward(*(inputs[0] if self._boxed else inputs))


def _build(
    graph: fx.GraphModule,
    gm: fx.GraphModule,
    chosen: Settings,
    captured: fx.GraphModule | None = None,
) -> object:
    """Schedule and build. Where a kernel cannot be built, kernels of half its size are made; one
    that is small already leaves its nodes to aten, and no others."""
    for each in switches.last_passes(chosen.disable, chosen.rng):
        _stage(f"pass {each.name}", each.run, graph.graph)
    graph.recompile()
    seconds = chosen.tuning_seconds
    refused = switches.refused(chosen.disable, graph.graph)
    policies = switches.policies(chosen.disable)

    def as_captured(*inputs: object) -> object:
        return tuple(pytree.tree_leaves(gm.forward(*inputs), is_leaf=lambda x: x is None))

    while True:
        plan = _stage(
            "schedule",
            schedule_graph,
            graph,
            check=chosen.verify,
            refused=refused,
            policies=policies,
        )
        tell_lowered(plan)
        make = functools.partial(
            build,
            fallback=as_captured,
            name=_name_of(gm),
            check=chosen.verify,
            grad_off=captured is None,  # halves run below autograd
            tuner=Tuner(seconds, hints(plan, graph.graph)) if seconds else None,
        )
        begin = time.perf_counter()
        try:
            built = _stage("build", make, plan)
            tell_plan(plan, built)
            return note_schedule(built, plan, graph.graph)
        except KernelFailedError as error:
            kernels = [request.kernel for request, _ in error.failed]
            launches = [s for s in plan.steps if isinstance(s, Launch) and s.kernel in kernels]
            found = {name for step in launches for name in step.nodes}
            if chosen.strict or found <= refused:
                raise StageError(stage="build", error=error) from error
            report_failure(captured or gm, error)
            tell_restart(str(error), time.perf_counter() - begin)
            half = min(len(kernel.body) for kernel in kernels) // 2
            if _LEAST_BODY <= half < policies[0].largest:
                policies = tuple(replace(policy, largest=half) for policy in policies)
                log.info("smaller kernels are made instead: %s", error)
                continue
            log.warning("these kernels run through aten instead: %s", error)
            refused |= found


def functional_graph(
    gm: fx.GraphModule | Callable[..., object],
    example_inputs: Sequence[object],
    chosen: Settings | None = None,
) -> FunctionalGraph:
    """The functional graph of ``gm`` after all passes: what is lowered.

    Raises:
        UnsupportedError: the graph has a part that has no functional form here.
        StageError: capture or a pass failed.
    """
    chosen = settings.current() if chosen is None else chosen
    rules = {} if "decompositions" in chosen.disable else RULES
    graph = _stage("capture", functionalize, gm, example_inputs, rules)
    wanted = switches.passes(chosen, freezing=chosen.freezing)
    _stage("passes", run_passes, graph.module.graph, wanted, check=chosen.verify)
    graph.module.recompile()
    logs.logger("aot").debug("%s", graph.module.graph)
    tell_functional(graph.module)
    return graph


def _stage(stage: str, function: Callable[..., _Result], *args: Any, **kwargs: Any) -> _Result:
    try:
        with recorder.phase(stage):
            return function(*args, **kwargs)
    except (UnsupportedError, StageError, KernelFailedError):
        raise
    except Exception as error:
        if is_interruption(error):
            raise
        said, _, _ = str(error).partition("\nException raised from")  # and torch's frames in C++
        raise StageError(stage=stage, error=f"{type(error).__name__}: {said}") from error


def _name_of(gm: torch.nn.Module) -> str:
    name = type(gm).__name__
    return name if name.isidentifier() and name not in _DULL_NAMES else "graph"


_DULL_NAMES = ("GraphModule", "LazyGraphModule", "GraphModuleImpl")
