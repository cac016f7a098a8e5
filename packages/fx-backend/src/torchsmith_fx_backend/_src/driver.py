"""The compile driver: from a captured graph to a callable, through every stage.

``smith`` is the backend that tracers call. What cannot be compiled runs as it was captured, and is
logged; what should have compiled and did not is a ``StageError``.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import operator
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import fx
from torchsmith_guards import collector
from torchsmith_guards.records import GraphRecord, new_graph, note_compiled, recorder

from torchsmith_fx_backend._src import graph_key, inference_mode, modes, settings, switches
from torchsmith_fx_backend._src.any_sizes import AnySizes, has_foreign_symbols
from torchsmith_fx_backend._src.aot.frame import Frame
from torchsmith_fx_backend._src.aot.functionalize import (
    FunctionalGraph,
    functionalize,
    named_tensors,
)
from torchsmith_fx_backend._src.aot.joint import BACKWARD, Joint, trace_joint
from torchsmith_fx_backend._src.aot.training import Training, callable_of, unlike
from torchsmith_fx_backend._src.aot.twice import Again
from torchsmith_fx_backend._src.capture.rules import JOINT_RULES, RULES
from torchsmith_fx_backend._src.capture.torch_private import pytree
from torchsmith_fx_backend._src.freezing import Frozen
from torchsmith_fx_backend._src.native_nodes import alike, cut, failing_node, has_native_nodes
from torchsmith_fx_backend._src.page.parts import (
    dump_schedule,
    load_schedule,
    note_schedule,
    notes,
    schedules,
)
from torchsmith_fx_backend._src.passes import KeyedRandom, PoolPositions, run_passes
from torchsmith_fx_backend._src.passes.casts import ComparedValues
from torchsmith_fx_backend._src.passes.common import DeadCode
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.graphs import (
    dump,
    restore,
    tell_cache,
    tell_eager,
    tell_functional,
    tell_lowered,
    tell_plan,
    tell_restart,
)
from torchsmith_fx_backend._src.repro import report_failure
from torchsmith_fx_backend._src.runtime import (
    CudaRecorder,
    KernelFailedError,
    RecordedHalves,
    Recordings,
    build,
    default_cache,
    expect,
    load_graph,
    obstacle,
    save_graph,
    written_before,
)
from torchsmith_fx_backend._src.runtime.support import set_grad_enabled
from torchsmith_fx_backend._src.schedule import schedule_graph
from torchsmith_fx_backend._src.schedule.hints import hints
from torchsmith_fx_backend._src.schedule.plan import Launch, is_boxed
from torchsmith_fx_backend._src.settings import Settings
from torchsmith_fx_backend._src.tuning.tuner import Tuner
from torchsmith_fx_backend.errors import FreezingError, StageError, UnsupportedError

aten = torch.ops.aten
log = logging.getLogger("torchsmith.backend")
logs.switch_on()

_Result = TypeVar("_Result")

_LEAST_BODY = 12  # scalar operations of kernels that are worth being made instead of larger ones
_CUTS = 8  # how often a graph is cut, one after the other, where a node cannot be compiled
_NO_KEY = "the graph has no key: sizes from data, or functions without a stable name"


class Compiled(Protocol):
    """A compiled graph: called with the graph's inputs, it returns what the graph returns.

    Attributes:
        source: text of the wrapper that runs.
        kernels: name and source text of each distinct kernel.
        written: tensors of the graph itself that it writes.
    """

    source: str
    kernels: tuple[tuple[str, str], ...]
    written: tuple[torch.Tensor, ...]

    def __call__(self, *inputs: Any) -> Any:
        """Run the graph."""
        ...


def smith(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
    **settings_by_name: object,
) -> Callable[..., Any]:
    """Compile ``gm`` for inputs like ``example_inputs``. The backend named ``smith``.

    Args:
        gm: a captured graph: torch functions, methods, aten operators; writes are fine.
        example_inputs: one per placeholder: real or fake tensors, symbolic ints.
        mode: one of ``torch.compile``'s. ``reduce-overhead`` records CUDA graphs; a
            ``ModeWarning`` says why a graph is not recorded. ``max-autotune`` does the same, and
            measures several forms of each GPU kernel; ``max-autotune-no-cudagraphs`` only measures.
        options: settings by name, see ``Settings``; ``mode`` may be among them.
        settings_by_name: the same.

    Returns:
        A callable of the same inputs; ``gm`` itself where nothing of it is compiled.

    Raises:
        StageError: a stage failed, and the setting ``strict`` is on; else that is a warning, and
            the result is ``gm`` itself.
        SettingError: an unknown option.
        ModeError: an unknown mode.
        FreezingError: the option ``freezing``, and an input that requires a gradient.
    """
    with recorder.graph(new_graph(gm, "smith", example_inputs)) as told:
        compiled = _smith(gm, example_inputs, mode, {**(options or {}), **settings_by_name})
        note_compiled(told, compiled)
    return compiled


def _smith(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    mode: str | None,
    named: dict[str, object],
    cuts: int = _CUTS,
    blamed: frozenset[object] = frozenset(),
) -> Callable[..., Any]:
    """``smith``; ``cuts`` is how often parts of the graph may be cut at what is not compiled, and
    ``blamed`` what it was cut at: a call of one of these is likely to be one of many."""
    mode_too = named.pop("mode", None)
    chosen = settings.current().with_options(**named)
    switches.check(chosen.disable)
    wanted = [modes.check(asked) for asked in (mode, mode_too)]
    recorded = next((name for name in wanted if modes.records(name)), None)
    if chosen.tuning_seconds is None and any(map(modes.measures, wanted)):
        chosen = chosen.with_options(tuning_seconds=modes.TUNING_SECONDS)
    switched = inference_mode.switches(gm)
    whole = inference_mode.inside(gm) if switched else None
    if whole is not None:
        on, body = whole
        with torch.inference_mode(on):
            return inference_mode.InMode(on, _smith(body, example_inputs, mode, dict(named)))
    gradients = torch.is_grad_enabled() or any(
        node.target is set_grad_enabled and node.args[0] for node in gm.graph.nodes
    )
    training = gradients and any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for x in (*example_inputs, *_attributes_read(gm), *_results(gm.graph.nodes))
    )
    if training and chosen.freezing:
        raise FreezingError
    if training and chosen.training == "eager":
        if recorded is not None:
            modes.not_recorded(recorded, "it runs operator by operator")
        return _eagerly(
            gm,
            "graphs whose inputs require gradients run operator by operator, as "
            'options={"training": "eager"} asks for',
        )

    def compile_part(part: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        both = {**named, "mode": mode_too}
        targets = blamed.union([] if apart is None else [apart.target])
        return _smith(part, inputs, mode, both, cuts - (apart is not None), targets)

    apart = None
    if switched or has_native_nodes(gm):
        around = cut(gm, example_inputs, compile_part)
        if not around.parts:
            return _eagerly(gm, f"graphs of {around.around} alone run operator by operator")
        return around
    try:
        if training and _is_lone(gm, example_inputs):
            return _eagerly(
                gm, "one operator, run by eager's kernel, with eager's gradient"
            ).forward
        if training:
            return compile_training(gm, example_inputs, chosen, recorded=recorded)
        make = functools.partial(compile_graph, chosen=chosen, recorded=recorded)

        def compiled(gm: fx.GraphModule, inputs: Sequence[object]) -> Any:
            return (
                AnySizes(gm, inputs, make) if has_foreign_symbols(gm, inputs) else make(gm, inputs)
            )

        if chosen.freezing:
            return Frozen(gm, example_inputs, compiled)
        return compiled(gm, example_inputs)  # type: ignore[no-any-return]
    except UnsupportedError as error:
        apart = failing_node(error)
        if apart is not None and cuts:
            nodes = alike(gm, apart) if apart.target in blamed else [apart]
            around = cut(gm, example_inputs, compile_part, nodes)
            if around.parts:
                tell_restart(str(error).splitlines()[0], 0.0)
                return around
        tell_eager(error)
        _say_once(logging.WARNING, str(error))
        return gm
    except StageError as error:
        report_failure(gm, error)
        if chosen.strict:
            raise
        tell_eager(error)
        _say_once(logging.WARNING, f"{error} The graph runs operator by operator instead.")
        return gm


# Operators that compiled graphs call on a CPU as eager does, if all is of single precision.
_OF_LIBRARIES = {torch.nn.functional.linear, torch.lstm, torch.conv1d, torch.conv2d, torch.conv3d}


def _is_lone(gm: fx.GraphModule, inputs: Sequence[object]) -> bool:
    """Whether a graph is one such operator: there is nothing to fuse, and autograd's node for it
    costs a small model less than one around compiled halves."""
    made = (torch.zeros, aten.sym_size.int, operator.getitem)  # around the operator of an LSTM
    calls = [n.target for n in gm.graph.nodes if "call" in n.op and n.target not in made]
    tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
    single = all(x.dtype is torch.float32 and x.device.type == "cpu" for x in tensors)
    return len(calls) == 1 and calls[0] in _OF_LIBRARIES and single


def _eagerly(gm: fx.GraphModule, reason: str) -> fx.GraphModule:
    tell_eager(reason)
    _say_once(logging.INFO, reason)
    return gm


# What a tracer accepts by these names before there is a graph.
smith.modes = modes.MODES  # type: ignore[attr-defined]
smith.native_nodes = True  # type: ignore[attr-defined]
smith.written_before = written_before  # type: ignore[attr-defined]
smith.option_names = (*(f.name for f in fields(Settings)), "mode")  # type: ignore[attr-defined]


@collector.paused()
def compile_graph(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    chosen: Settings | None = None,
    *,
    recorded: str | None = None,
) -> Compiled:
    """Compile an inference graph.

    Args:
        gm: as for ``smith``.
        example_inputs: as for ``smith``.
        chosen: settings; those in force by default.
        recorded: the mode for which calls are recorded and replayed, if one does that.

    Raises:
        UnsupportedError: the graph has a part that has no functional form here.
        StageError: a stage failed.
    """
    chosen = settings.current() if chosen is None else chosen
    # What is printed comes from the stages, so they run when somebody wants to see it.
    bypass = _bypass(chosen)
    key = None if bypass else graph_key.of(gm, example_inputs, _variant(chosen))
    if key is not None:
        with recorder.phase("cache"):
            warm = _load(key, gm, example_inputs, recorded)
        if warm is not None:
            return warm
    elif not bypass:
        bypass = _NO_KEY
    if bypass:
        tell_cache("bypass", bypass)
    expect(example_inputs)
    sizes = None if key is None else graph_key.Sizes.of(gm, example_inputs)
    graph = functional_graph(gm, example_inputs, chosen)
    ambient = _ambient_guard()
    built: Any = _build(graph.module, gm, chosen)
    if not built.built:
        ambient = None  # the graph as captured has no casts in it
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
    stop, spec = obstacle(graph.module.graph), graph.out_spec
    frame = Frame(spec, graph.mutated, graph.frozen, attributes, written, graph.static, stop)
    if key is not None and sizes is not None:
        _save(key, sizes, frame, built, gm)
    return _framed(built, frame, gm, example_inputs, ambient, recorded)


def _framed(
    built: Any,
    frame: Frame,
    gm: fx.GraphModule,
    inputs: Sequence[object],
    ambient: Callable[[], AbstractContextManager[object]] | None,
    recorded: str | None,
) -> Compiled:
    """``built`` as it is called, and told of."""
    named = named_tensors(gm)
    recording = _recording(built, frame, inputs, named, recorded)
    compiled: Any = frame.wrap(recording, gm, inputs, ambient, named)
    compiled.schedules = functools.partial(schedules, [("inference", built)])
    compiled.notes = functools.partial(notes, [("inference", built)])
    compiled.written = tuple(named[p] for name, p in frame.attributes if name in frame.written)
    return compiled  # type: ignore[no-any-return]


def _recording(
    built: Any,
    frame: Frame,
    inputs: Sequence[object],
    known: Mapping[str, torch.Tensor],
    mode: str | None,
) -> Any:
    """``built``, recorded where ``mode`` asks for it and nothing is in the way."""
    if mode is None or not built.built:
        return built
    if frame.obstacle:
        modes.not_recorded(mode, frame.obstacle)
        return built
    attributes = [known[path] for _, path in frame.attributes]
    return Recordings(
        built,
        CudaRecorder(_ordinal((*inputs, *attributes))),
        written=frame.mutated,
        attributes=attributes,
        static=frame.static,
        say=functools.partial(modes.not_recorded, mode),
    )


def _ordinal(values: Iterable[object]) -> int:
    """The GPU that tensors are on."""
    devices = [x.device for x in values if isinstance(x, torch.Tensor)]
    return next((d.index for d in devices if d.index is not None), 0)


@collector.paused()
def compile_training(
    gm: fx.GraphModule,
    example_inputs: Sequence[object],
    chosen: Settings | None = None,
    *,
    recorded: str | None = None,
) -> Callable[..., Any]:
    """Compile a graph for calls in which the inputs that require a gradient in ``example_inputs``
    require one.

    Args:
        gm: as for ``smith``.
        example_inputs: as for ``smith``.
        chosen: settings; those in force by default.
        recorded: the mode for which calls are recorded and replayed, if one does that.

    Raises:
        UnsupportedError: the graph has a part that is not differentiated here.
        StageError: a stage failed.
    """
    chosen = settings.current() if chosen is None else chosen
    off = chosen.disable
    rules = {} if "decompositions" in off else JOINT_RULES
    exact = chosen.rng == "eager"
    expect(example_inputs)
    joint = _stage("joint", trace_joint, gm, example_inputs, rules, exact_draws=exact)
    keyed = (DeadCode(), KeyedRandom(unless=BACKWARD)) if chosen.rng == "keyed" else ()
    wanted = (*keyed, PoolPositions(BACKWARD), ComparedValues())
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
        device = _ordinal((*example_inputs, *_attributes_read(gm)))
        say = functools.partial(modes.not_recorded, recorded)
        recordings = RecordedHalves(CudaRecorder(device, private=True), say)
    owner = recorder.current_graph()
    if owner is not None:
        owner.kind = "forward"

    def compile_recorded(module: fx.GraphModule) -> object:
        if not is_boxed(module.graph):
            return compile_half(module)
        with recorder.graph(_new_backward(module, owner)) as told:
            built = compile_half(module)
            note_compiled(told, built)
        return built

    budget = 1.0 if "partition" in off else chosen.memory_budget
    training = Training(joint, compile_recorded, _ambient_guard(), budget, Again.of(joint, gm))
    _stage("partition", training.prepare)
    compiled: Any = callable_of(training, gm, unlike(joint, example_inputs), gm)
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
    bypass = _bypass(chosen)
    keyless = bypass or not isinstance(gm, fx.GraphModule)
    inputs = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
    key = None if keyless else graph_key.of(module, inputs, _variant(chosen))
    if key is None:
        tell_cache("bypass", bypass or _NO_KEY)
        return _build(module, module, chosen, gm)
    key = f"{'boxed ' if is_boxed(module.graph) else ''}half {key}"
    read = module.graph.find_nodes(op="get_attr")
    constants = {n.name: operator.attrgetter(str(n.target))(module) for n in read}
    with recorder.phase("cache"):
        files = default_cache().get(f"frame {key}")
        found: Any = None if files is None else load_graph(key, constants=constants)
    if files is not None and found is not None:
        restore(key, found, files.get("record.json"))
        found.schedule = load_schedule(files.get("schedule.json"), gm)
        return found
    tell_cache("miss", "absent, or its kernels are gone")
    expect(inputs)
    sizes = graph_key.Sizes.of(module, inputs)
    built: Any = _build(module, module, chosen, gm)
    # What is assumed of sizes from here on is not part of the key, nor of this frame's guards when
    # a backward half is found.
    if sizes.assumed() == [] and save_graph(key, built):
        told = dump(recorder.current_graph())
        files = {"record.json": told, "schedule.json": dump_schedule(built.schedule, gm)}
        default_cache().put(f"frame {key}", files)
    return built


def _new_backward(module: fx.GraphModule, owner: GraphRecord | None) -> GraphRecord:
    """The record of a backward half, which belongs to the frame of the forward half."""
    compile_id = "" if owner is None else owner.compile_id
    return new_graph(module, "smith", kind="backward", compile_id=compile_id)


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
    last = switches.last_passes(chosen.disable, chosen.rng)
    changed = [_stage(f"pass {each.name}", each.run, graph.graph) for each in last]
    if any(changed):
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


def _attributes_read(gm: fx.GraphModule) -> Iterator[object]:
    """Tensors of ``gm`` itself that its graph reads."""
    for node in gm.graph.nodes:
        if node.op == "get_attr":
            yield operator.attrgetter(str(node.target))(gm)
        elif node.op == "call_module":
            yield from gm.get_submodule(str(node.target)).parameters()


def _results(nodes: Iterable[fx.Node]) -> Iterator[object]:
    """What the tracer says that nodes give."""
    return (node.meta.get("example_value") for node in nodes)


def _bypass(chosen: Settings) -> str:
    """Why graphs on disk are neither looked for nor kept; empty if they are."""
    if not chosen.graph_cache:
        return "the setting graph_cache is off"
    if chosen.freezing:
        return "frozen graphs hold values of weights"
    if chosen.disable:
        return f"parts are left out: {chosen.disable}"
    stages = logs.wanted()
    return f"TORCHSMITH_LOGS wants the stages {', '.join(stages)}" if stages else ""


def _variant(chosen: Settings) -> str:
    """What of the settings is part of a graph that is kept."""
    return f"{chosen.rng}, {chosen.kernels}" + (", tuned" if chosen.tuning_seconds else "")


def _save(key: str, sizes: graph_key.Sizes, frame: Frame, built: Any, gm: fx.GraphModule) -> None:
    """Keep a graph for later processes, with what it assumes about sizes."""
    cache, assumed = default_cache(), sizes.assumed()
    free = (p for p in graph_key.places(key, sizes) if cache.get(f"frame {p}") is None)
    place = next(free, None)
    if assumed is None or place is None or not save_graph(place, built):
        return
    files = {
        "frame.json": frame.dump(),
        "sizes.json": json.dumps(assumed).encode(),
        "record.json": dump(recorder.current_graph()),
        "schedule.json": dump_schedule(built.schedule, gm),
    }
    cache.put(f"frame {place}", files)


def _load(
    key: str, gm: fx.GraphModule, inputs: Sequence[object], recorded: str | None
) -> Compiled | None:
    """The graph that an earlier run stored under ``key``."""
    cache, sizes = default_cache(), graph_key.Sizes.of(gm, inputs)
    for place in graph_key.places(key, sizes):
        files = cache.get(f"frame {place}")
        if files is not None and sizes.take(json.loads(files["sizes.json"])):
            break
    else:
        tell_cache("miss", cache.misses[-1].reason if cache.misses else "absent")
        return None
    frame = Frame.load(files["frame.json"])
    named = named_tensors(gm)
    built = load_graph(place, constants={name: named[path] for name, path in frame.attributes})
    if built is None:
        tell_cache("miss", "its kernels are gone, or belong to another machine")
        return None
    log.debug("graph from the cache: %s", key)
    restore(key, built, files.get("record.json"))
    if recorder.debugging:  # the stages that the cache has saved, for their texts alone
        with recorder.safely("the debug folder"):
            chosen = settings.current()
            graph = functional_graph(gm, inputs, chosen).module
            for each in switches.last_passes(chosen.disable, chosen.rng):
                each.run(graph.graph)
            tell_lowered(schedule_graph(graph))
    built_too: Any = built
    built_too.schedule = load_schedule(files.get("schedule.json"), gm)
    return _framed(built, frame, gm, inputs, _ambient_guard(), recorded)


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
        said, _, _ = str(error).partition("\nException raised from")  # and torch's frames in C++
        raise StageError(stage=stage, error=f"{type(error).__name__}: {said}") from error


@functools.cache
def _say_once(level: int, message: str) -> None:
    log.log(level, message)


def _name_of(gm: torch.nn.Module) -> str:
    name = type(gm).__name__
    return name if name.isidentifier() and name not in _DULL_NAMES else "graph"


_DULL_NAMES = ("GraphModule", "LazyGraphModule", "GraphModuleImpl")


def _ambient_guard() -> Callable[[], AbstractContextManager[object]] | None:
    """A context for running: the graph has autocast's casts in it, so autocast is off then."""
    devices = [d for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]
    if not devices:
        return None
    return functools.partial(_without_autocast, tuple(devices))


def _without_autocast(devices: tuple[str, ...]) -> AbstractContextManager[object]:
    contexts = ExitStack()
    for device in devices:
        contexts.enter_context(torch.autocast(device, enabled=False))
    return contexts
