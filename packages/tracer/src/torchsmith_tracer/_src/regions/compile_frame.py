"""One compile of one code object: trace, generate the body, compile the guards, report.

What cannot be compiled runs natively under the guards found so far, and the report says so:
a path that raises (running it gives the user's own exception and traceback), a break that cannot be
resumed, and our own bugs.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial

import torch
import torchsmith_guards as guards
from torchsmith_guards.records import recorder

from torchsmith_tracer._src.breaks import signals
from torchsmith_tracer._src.breaks.kinds import KINDS
from torchsmith_tracer._src.breaks.report import (
    BreakReport,
    FrameDetails,
    FrameReport,
    KernelReport,
    Place,
)
from torchsmith_tracer._src.codegen.body import Body, assemble, emit_return, modules_of, new_emitter
from torchsmith_tracer._src.codegen.resume import local_name
from torchsmith_tracer._src.codegen.split import emit_break
from torchsmith_tracer._src.codegen.tail import leads_to
from torchsmith_tracer._src.compilation import Compilation
from torchsmith_tracer._src.frames.code import decode
from torchsmith_tracer._src.frames.liveness import live_locals
from torchsmith_tracer._src.records.frames import start_of
from torchsmith_tracer._src.regions.ambient import unseen, unwarned
from torchsmith_tracer._src.regions.failed import graph_failed
from torchsmith_tracer._src.regions.holding import are_held, holding, locks_of, without_locks
from torchsmith_tracer._src.regions.record import CodeRecord, Entry
from torchsmith_tracer._src.regions.undone import undone
from torchsmith_tracer._src.torch_private import AmbientState
from torchsmith_tracer._src.values.base import Value
from torchsmith_tracer._src.values.functions import FunctionValue
from torchsmith_tracer._src.values.lookup import lookup
from torchsmith_tracer.errors import (
    BackendError,
    FullGraphError,
    SkipGraph,
    TracerError,
    TracerWarning,
)

_AMBIENT = "torch's ambient state (grad mode, autocast, defaults) is part of what was captured"

# What a piece of a broken function is handed and may hand on without a look at it, and a guard.
_PASSED = frozenset((torch.Tensor, int, float, bool, str, type(None), list, tuple))
# Breaks at instructions that, run natively, raise the user's own exception.
_RAISING = frozenset(("raises", "op-failed"))


def compile_frame(
    record: CodeRecord, fn: types.FunctionType, flat: Sequence[object], number: int
) -> Entry:
    """Compile ``record`` for the arguments ``flat`` (in the order of its signature).

    Raises:
        FullGraphError: ``fullgraph=True`` and the graph breaks.
        BackendError: the backend failed.
        InternalTracerError: our bug, under ``fullgraph=True``.
    """
    says_compiling = True
    before: dict[str, Hashable] = {}  # what was known of numbers that are inputs now
    with record.region.tracing(), unseen():
        while True:
            try:
                return _compile_frame(record, fn, flat, number, says_compiling)
            except signals.MisledByUs:
                says_compiling = False
            except signals.HistoryNeeded:
                record.keep_history = True
            except signals.LocksTaken:
                record.takes_locks = False
            except signals.NumbersChange as change:
                before = change.before
            except FullGraphError:
                if not before:
                    raise
                record.frame_state.scalars.update(before)  # the next call may never come
                record.keeps_numbers, before = True, {}


def _compile_frame(
    record: CodeRecord,
    fn: types.FunctionType,
    flat: Sequence[object],
    number: int,
    says_compiling: bool,
) -> Entry:
    report = FrameReport(record.name, start_of(record))
    keep_history = record.keep_history
    native = bool(getattr(record.region.backend.fn, "native_nodes", False))
    trace = Compilation(
        record.region.settings,
        record.frame_state,
        keep_history=keep_history,
        native_nodes=native,
        takes_locks=record.takes_locks,
        says_compiling=says_compiling,
    )
    detailed = record.region.log.detailed or recorder.detailed
    visited = trace.visited = {} if detailed else None
    try:
        body, checker = _compile(trace, record, fn, flat, report)
        locks, env = locks_of(trace), trace.graph.shape_env
        symbolic = env is not None and env.has_symbols
    finally:
        trace.graph.restore_state()
        trace.close()
    report.guards = checker.code
    if body is None:
        report.eager = True
        run: Callable[..., object] = record.native_body(fn)
    else:
        run = body.fn
        if locks:
            run = holding(run, checker, record.native_body(fn), locks)
        report.graph = body.graph
        report.body = body.text
        names = getattr(body.compiled, "kernels", ())
        report.kernels = tuple(
            KernelReport(*k) if isinstance(k, tuple) else KernelReport(str(k))
            for k in (names() if callable(names) else names)
        )
        report.notes = tuple(getattr(body.compiled, "notes", tuple)())
        report.wrapper = str(getattr(body.compiled, "source", ""))
    if visited is not None:
        lines = tuple((code, frozenset(seen)) for code, seen in visited.values())
        report.details = FrameDetails(lines, checker, body and body.compiled)
    record.region.log.frames.append(report)
    _print_stages(record, report)
    return Entry(number, checker, run, report, symbolic=symbolic)


def _compile(
    trace: Compilation,
    record: CodeRecord,
    fn: types.FunctionType,
    flat: Sequence[object],
    report: FrameReport,
) -> tuple[Body | None, guards.Checker]:
    """Body (None: the function itself runs) and guards."""
    now, kind = guards.GlobalState.capture(), guards.GuardKind.GLOBAL_STATE
    trace.guards.add(guards.Guard(guards.GLOBAL_STATE, kind, now, _AMBIENT))
    body: Body | None = None
    try:
        body = _trace_and_generate(trace, record, fn, flat, report)
    except SkipGraph as e:
        report.note = f"runs eagerly, as backend {record.region.backend.name!r} wants: {e}"
    except BackendError as e:
        if not record.region.settings.suppress_backend_errors:
            raise
        report.note = str(e)
        warnings.warn(f"{e}; {record.name} runs eagerly", TracerWarning, stacklevel=6)
    except TracerError:
        raise
    except signals.ObservedException as e:
        report.note = f"raises {e.exc.type_name}"
    except signals.Unsupported as e:
        _broke(record, report, BreakReport.of(e, _stack(trace), resumed=False))
    except RecursionError:
        _too_deep(trace, record, report)
    except Exception as e:  # noqa: BLE001 - reported as our bug; the user's code runs
        record.region.report_bug(record.name, report, f"{type(e).__name__}: {e}", e)
    trace.graph.restore_state()
    try:
        with recorder.phase("guards"), guards.collector.paused():
            return body, _compile_guards(trace, record, fn)
    except TracerError:
        raise
    except RecursionError:
        _too_deep(trace, record, report)
    except Exception as e:  # noqa: BLE001 - as above
        if body is not None:
            record.region.report_bug(record.name, report, f"{type(e).__name__}: {e}", e)
    return None, guards.GuardSet([]).compile(record.parameter_names(), {})


def _too_deep(trace: Compilation, record: CodeRecord, report: FrameReport) -> None:
    """Objects, or calls, are nested deeper than the interpreter's limit allows to follow."""
    signal = signals.Unsupported("inline-depth", what=record.name)
    stack = _stack(trace) or [start_of(record)]
    _broke(record, report, BreakReport.of(signal, stack, resumed=False))


def _trace_and_generate(
    trace: Compilation,
    record: CodeRecord,
    fn: types.FunctionType,
    flat: Sequence[object],
    report: FrameReport,
) -> Body:
    region = record.region
    ambient = AmbientState()
    with recorder.phase("trace"), unwarned(), guards.collector.paused():
        result = _interpret(trace, record, fn, flat)
        trace.builder.guard_memory()
    ambient.keep(switch.put for switch in trace.graph.turned)
    cg = new_emitter(trace, record)
    locks = trace.journal.locks
    if locks and (isinstance(result, signals.BreakAt) or are_held(locks)):
        del result  # its traceback leads to the arguments
        raise signals.LocksTaken
    undoes = [*undone(trace.guards, trace.journal)]
    varying = [g.source for g in undoes if g.kind is guards.GuardKind.CONSTANT]
    if not record.keeps_numbers and (before := record.frame_state.vary(varying)):
        del result
        raise signals.NumbersChange(before)
    if not isinstance(result, signals.BreakAt):
        emit_return(trace, cg, result)
    else:
        frames = result.frames
        stack = [Place.of(f.info, f.ip) for f in reversed(frames)]
        signal = _follows(result)
        found = BreakReport.of(signal, stack)
        raising = signal.kind in _RAISING
        if raising and trace.asked_compiling and trace.says_compiling:
            del result, signal, frames  # their tracebacks lead to the arguments
            raise signals.MisledByUs
        if signal.kind == "raises":
            report.note = f"[{found.id}] {found.what}"
        else:
            _broke(record, report, found, raising=raising)
        refuse = _refusal(found) if raising and region.settings.fullgraph else None
        native = bool(signal.details.get("native"))
        varies = KINDS[signal.kind].varies
        how = {"native": native, "raises": raising, "callee": signal.details.get("callee")}
        resumed = emit_break(trace, cg, record, frames, refuse, varies, **how)  # type: ignore[arg-type]
        if not resumed and report.break_ is not None and signal.kind != "host-function":
            report.break_ = replace(report.break_, resumed=False)
        del signal, result  # their tracebacks lead to this frame, and it to the arguments
    entry = None if record.pass_function else fn
    written = getattr(region.backend.fn, "written_before", None)
    failed: Callable[..., object] = partial(graph_failed, record, entry, ambient, written)
    if locks:
        failed = without_locks(failed)
    verify = region.settings.verify_correctness and not trace.graph.draws
    asked = verify or trace.visited is not None  # somebody wants to see what is compiled
    told = "" if asked or not undoes else undoes[0].source.expr
    compile_graph = partial(region.backend.compile, verify=verify)
    return assemble(trace, record, cg, failed, compile_graph, told)


def _interpret(
    trace: Compilation, record: CodeRecord, fn: types.FunctionType, flat: Sequence[object]
) -> Value | signals.BreakAt:
    """Run the function symbolically: what it returns, or where it broke."""
    builder = trace.builder
    trace.interp.namespace(record.globals)  # the first one is the entry function's own
    entry = FunctionValue.existing(trace, fn, guards.FunctionSource())
    names = zip(record.signature.names, record.labels, flat, strict=True)
    values: dict[str, Value] = {}
    resume = record.resume
    live = live_locals(decode(resume.original), resume.index) if resume is not None else ()
    read = {*map(local_name, live)}
    for name, label, obj in names:
        passed = (type(obj) in _PASSED and obj is not warnings.filters) or name not in read
        # What is on the stack is read at once.
        lazy = passed and resume is not None and not label.startswith("___s")
        values[name] = (builder.lazy if lazy else builder.wrap)(obj, guards.LocalSource(label))
    if record.calls_modules:
        lookup(trace, type(record.signature.first(flat)), "__call__")
    root = trace.loop.root_frame(entry, values)
    if record.resume is not None:
        original = record.resume.original
        first = original.co_varnames[0] if original.co_argcount else None
        root.first = first if first is None or first in root.cells else local_name(first)
        pairs = zip(values.values(), flat, strict=True)
        trace.loop.abandoned.caught = tuple(v for v, obj in pairs if leads_to(obj, original))
    try:
        return trace.loop.run(root)
    except signals.BreakAt as e:
        # Tracebacks lead to frames of ours, and these to the arguments.
        e.signal.__cause__ = e.signal.__context__ = e.__context__ = None
        e.signal.with_traceback(None)
        return e.with_traceback(None)


def _follows(broke: signals.BreakAt) -> signals.Unsupported:
    """What to report: taking the next item of an iterator that a break left on the stack is a
    consequence of that break."""
    state = broke.frames[0]
    if state.instruction.opname == "FOR_ITER" and not state.in_call:
        top = state.stack[-1]
        source = getattr(top, "source", None)
        if isinstance(source, guards.LocalSource) and source.name.startswith("___s"):
            return signals.Unsupported("live-iterator")
    return broke.signal


def _refusal(found: BreakReport) -> Callable[..., object]:
    """What ``fullgraph=True`` runs after an instruction that was expected to raise."""

    def refuse(*args: object) -> object:
        raise found.error()

    return refuse


def _broke(
    record: CodeRecord, report: FrameReport, found: BreakReport, *, raising: bool = False
) -> None:
    report.break_ = found
    if record.region.settings.fullgraph and not raising:
        raise found.error()
    record.region.settings.emit_log("breaks", record.name, str(found))


def _stack(trace: Compilation) -> list[Place]:
    return [Place.of(f.info, f.ip) for f in trace.frames]


def _compile_guards(
    trace: Compilation, record: CodeRecord, fn: types.FunctionType
) -> guards.Checker:
    trace.builder.add_aliasing_guards()
    env = trace.graph.shape_env
    if env is not None:
        for guard in env.shape_guards():
            trace.guards.add(guard)
    bind: dict[str, object] = {"G": record.globals, "M": modules_of(trace)}
    if not record.pass_function:
        bind["F"] = fn
    return trace.guards.compile(record.parameter_names(), bind)


def _print_stages(record: CodeRecord, report: FrameReport) -> None:
    settings = record.region.settings
    if not settings.log:
        return
    if report.graph is not None:
        settings.emit_log("graph", record.name, str(report.graph.code).strip("\n"))
    settings.emit_log("guards", record.name, report.guards)
    settings.emit_log("bytecode", record.name, report.body)
