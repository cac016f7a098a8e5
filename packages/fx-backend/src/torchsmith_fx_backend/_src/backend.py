"""``smith``, the backend that tracers call: answers from the cache, or has the stages compile.

What cannot be compiled runs as it was captured, and is logged; what should have compiled and did
not is a ``StageError``. Nothing here needs a stage: what an earlier process has compiled is loaded
in less time than importing them takes, so ``stages`` does that when the first graph is not found.
"""

from __future__ import annotations

import functools
import importlib
import logging
import operator
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import fx
from torchsmith_guards import collector, deferred
from torchsmith_guards.records import new_graph, note_compiled, recorder

from torchsmith_fx_backend._src import cached, inference_mode, modes, settings
from torchsmith_fx_backend._src.any_sizes import AnySizes, has_foreign_symbols
from torchsmith_fx_backend._src.aot.frame import Frame, ambient_guard
from torchsmith_fx_backend._src.at_second_call import AtSecondCall, is_static
from torchsmith_fx_backend._src.captured import attributes_read, named_tensors
from torchsmith_fx_backend._src.freezing import Frozen
from torchsmith_fx_backend._src.native_nodes import cut, failing_nodes, has_native_nodes
from torchsmith_fx_backend._src.nested import Nested, is_nested
from torchsmith_fx_backend._src.page.parts import notes, schedules
from torchsmith_fx_backend._src.records import logs
from torchsmith_fx_backend._src.records.graphs import tell_eager, tell_restart
from torchsmith_fx_backend._src.repeated import Repeated, repeated
from torchsmith_fx_backend._src.repro import report_failure
from torchsmith_fx_backend._src.runtime.cuda_recorder import CudaRecorder, ordinal
from torchsmith_fx_backend._src.runtime.launchers import expect
from torchsmith_fx_backend._src.runtime.progress import written_before
from torchsmith_fx_backend._src.runtime.recordings import Recordings
from torchsmith_fx_backend._src.runtime.support import set_grad_enabled
from torchsmith_fx_backend._src.settings import Settings
from torchsmith_fx_backend.errors import FreezingError, StageError, UnsupportedError

aten = torch.ops.aten
log = logging.getLogger("torchsmith.backend")
logs.switch_on()

_CUTS = 8  # how often a graph is cut, one after the other, where a node cannot be compiled


@functools.cache
@collector.paused()
def stages() -> ModuleType:
    """The driver of all stages: capture, passes, loop IR, scheduling, code generation."""
    return importlib.import_module("torchsmith_fx_backend._src.driver")


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
        example_inputs: one per placeholder: real or fake tensors, symbolic ints. One tensor given
            twice is one; calls with two tensors in its places run operator by operator.
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
    named = {**(options or {}), **settings_by_name}
    undoes = gm.meta.pop("undoes", None)  # as the tracer says
    if undoes and is_static(gm):
        _eagerly(gm, f"its own effects change {undoes}: compiled when it is called again")
        return AtSecondCall(gm, lambda inputs: smith(gm, inputs, mode=mode, options=named))
    with deferred(), recorder.graph(new_graph(gm, "smith", example_inputs)) as told:
        compiled = _smith(gm, example_inputs, mode, named)
        note_compiled(told, compiled)
    places = repeated(example_inputs)
    return Repeated(compiled, gm.forward, places) if places else compiled


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
    if is_nested(gm, example_inputs):
        return Nested(
            gm, example_inputs, lambda gm, inputs: _smith(gm, inputs, mode, named, cuts, blamed)
        )
    mode_too = named.pop("mode", None)
    chosen = settings.current().with_options(**named)
    if chosen.disable:
        stages().switches.check(chosen.disable)
    wanted = [modes.check(asked) for asked in (mode, mode_too)]
    recorded = next((name for name in wanted if name in modes.RECORDING), None)
    if chosen.tuning_seconds is None and not set(wanted).isdisjoint(modes.MEASURING):
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
    results = (node.meta.get("example_value") for node in gm.graph.nodes)  # as the tracer says
    training = gradients and any(
        isinstance(x, torch.Tensor) and x.requires_grad
        for x in (*example_inputs, *attributes_read(gm), *results)
    )
    if training and chosen.freezing:
        raise FreezingError
    if training and chosen.training == "eager":
        if recorded is not None:
            modes.skip(recorded, "it runs operator by operator")
        return _eagerly(
            gm,
            "graphs whose inputs require gradients run operator by operator, as "
            'options={"training": "eager"} asks for',
        )

    def compile_part(part: fx.GraphModule, inputs: Sequence[object]) -> Callable[..., Any]:
        both = {**named, "mode": mode_too}
        targets = blamed.union(node.target for node in apart)
        return _smith(part, inputs, mode, both, cuts - bool(apart), targets)

    if not any(node.op.startswith("call") for node in gm.graph.nodes):
        return _eagerly(gm, "a graph without operators runs as it is").forward
    apart: list[fx.Node] = []
    if switched or has_native_nodes(gm):
        around = cut(gm, example_inputs, compile_part)
        if not around.parts:
            return _eagerly(gm, f"graphs of {around.around} alone run operator by operator")
        return around
    try:
        if training and _is_lone(gm, example_inputs):
            return _eagerly(gm, "one operator: eager's kernel with eager's gradient").forward
        if training:
            expect(example_inputs)  # before the stages are imported
            return stages().compile_training(  # type: ignore[no-any-return]
                gm, example_inputs, chosen, recorded=recorded
            )
        make = functools.partial(compile_graph, chosen=chosen, recorded=recorded)

        def compiled(gm: fx.GraphModule, inputs: Sequence[object]) -> Any:
            foreign = has_foreign_symbols(gm, inputs)
            return AnySizes(gm, inputs, make) if foreign else make(gm, inputs)

        if chosen.freezing:
            return Frozen(gm, example_inputs, compiled)
        return compiled(gm, example_inputs)  # type: ignore[no-any-return]
    except UnsupportedError as error:
        apart = failing_nodes(gm, error, blamed)
        if apart and cuts:
            around = cut(gm, example_inputs, compile_part, apart)
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
    if is_nested(gm, example_inputs):
        build = functools.partial(compile_graph, chosen=chosen, recorded=recorded)
        return Nested(gm, example_inputs, build)
    chosen = settings.current() if chosen is None else chosen
    # What is printed comes from the stages, so they run when somebody wants to see it.
    key = cached.key_of(gm, example_inputs, chosen)
    ambient = ambient_guard()
    with recorder.phase("cache"):
        found = None if key is None else cached.load(key, gm, example_inputs)
    if found is None:
        expect(example_inputs)  # before the stages are imported
        found = stages().compile_inference(gm, example_inputs, chosen, key)
        if not found[0].built:
            ambient = None  # the graph as captured has no casts in it
    elif recorder.debugging:  # what the cache has saved, for its texts alone
        with recorder.safely("the debug folder"):
            stages().tell_stages(gm, example_inputs)
    built, frame = found
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
        modes.skip(mode, frame.obstacle)
        return built
    attributes = [known[path] for _, path in frame.attributes]
    return Recordings(
        built,
        CudaRecorder(ordinal((*inputs, *attributes))),
        written=frame.mutated,
        attributes=attributes,
        static=frame.static,
        say=functools.partial(modes.skip, mode),
    )


@functools.cache
def _say_once(level: int, message: str) -> None:
    log.log(level, message)
