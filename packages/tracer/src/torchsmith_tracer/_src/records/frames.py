"""``FrameRecord`` of one compile: made before it begins, filled in when its entry is there."""

from __future__ import annotations

import inspect
import os
import re
import traceback
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torchsmith_guards import Failure, GuardKind, LocalSource, collector, records

from torchsmith_tracer._src.breaks.report import Place
from torchsmith_tracer._src.frames.code import decode
from torchsmith_tracer._src.page.traces import page_text
from torchsmith_tracer._src.torch_private import OPERATORS

if TYPE_CHECKING:
    from torchsmith_tracer._src.regions.record import CodeRecord, Entry

_CORE = ("aten", "prim", "prims")
_MODULES = torch.nn.Module.__call__.__code__.co_filename
_GIVEN = re.compile(r"args\[(\d+)\]|kwargs\['(\w+)'\]")


def new_frame(
    record: CodeRecord,
    number: int,
    flat: Sequence[object] = (),
    reasons: Sequence[records.RecompileReason] = (),
) -> records.FrameRecord:
    """The record of the compile that makes version ``number`` for arguments ``flat``."""
    place, code = start_of(record), users_code(record.code, flat)
    own = code is record.code
    return records.FrameRecord(
        compile_id=f"{record.frame_number}/{number}",
        function=code.co_qualname,
        file=code.co_filename,
        line=place.line if own else code.co_firstlineno,
        resumed=record.resume is not None,
        limit=record.region.settings.recompile_limit,
        recompiled=tuple(reasons),
        texts={"user": user_source(code)} if records.recorder.detailed else {},
    )


def start_of(record: CodeRecord) -> Place:
    """Where the function, or the part of it after a break, begins."""
    code = record.code
    line = code.co_firstlineno
    if record.resume is not None:
        info = decode(code)
        line = info.line(info.instructions[record.resume.prologue - 1].target)
    return Place(code.co_filename, line, code.co_qualname)


def finish(told: records.FrameRecord, record: CodeRecord, entry: Entry) -> None:
    """Fill in ``told`` from what the compile has made."""
    with records.recorder.safely("a record"), collector.paused():
        _finish(told, record, entry)


def _finish(told: records.FrameRecord, record: CodeRecord, entry: Entry) -> None:
    report, guards = entry.report, entry.checker.guards
    report.record = told
    told.outcome = "eager" if report.eager else "compiled"
    told.versions = len(record.entries)
    told.guards = len(guards)
    told.shape_guards = sum(guard.kind is GuardKind.SHAPE for guard in guards)
    told.note = report.note
    broke = report.break_
    if broke is not None:
        told.break_ = broke.to_json()
        records.recorder.count("graph_break", f"[{broke.id}] {broke.what}")
        if report.eager or not broke.resumed:
            told.failure, told.reason = broke.id, broke.what
            told.failure_line = (
                "" if broke.place is None else f"{broke.place.file}:{broke.place.line}"
            )
    if told.recompiled:
        records.recorder.count("recompiles", told.label)
    if report.graph is not None:
        _tell_graph(told, report.graph.graph)
    if records.recorder.detailed:
        told.texts |= {"guards": report.guards, "body": report.body, "page": page_text(report)}
    if not record.region.log.detailed:
        report.details = None


def ranged(told: records.FrameRecord, body: Callable[..., object]) -> Callable[..., object]:
    """``body`` as a range of torch's profiler, named after the user's function, where
    ``TORCHSMITH_RANGES=1`` asks for it."""
    if os.environ.get("TORCHSMITH_RANGES") != "1":
        return body
    label = f"{told.function} [{told.compile_id}]"

    def run(*args: object) -> object:
        with torch.profiler.record_function(label):
            return body(*args)

    return run


def crashed(record: CodeRecord, error: BaseException) -> None:
    """A crash record for a call of compiled code that raised, where a debug folder is on."""
    if not records.recorder.debugging:
        return
    with records.recorder.safely("the debug folder"):
        file, where = record.code.co_filename, ""
        for frame in traceback.extract_tb(error.__traceback__):
            where = f"{file}:{frame.lineno}" if frame.filename == file else where
        records.write_crash(new_frame(record, len(record.entries)), error, where)


def _tell_graph(told: records.FrameRecord, graph: fx.Graph) -> None:
    records.tell_sizes(told, graph)
    records.recorder.count("stats", "calls_captured", told.ops or 0)
    records.recorder.count("stats", "unique_graphs")
    custom: dict[str, bool] = {}
    for node in graph.nodes:
        if node.op == "call_function" and isinstance(node.target, OPERATORS):
            name = str(node.target)
            if name.partition(".")[0] not in _CORE:
                custom[name] = _is_marked(node.target)
    told.custom_ops = tuple(sorted(custom))
    told.unmarked_ops = tuple(name for name in told.custom_ops if not custom[name])


def _is_marked(target: Any) -> bool:
    """Whether every overload says that it keeps the rules of compiled programs."""
    names = getattr(target, "overloads", None)
    overloads = [getattr(target, name) for name in names()] if names is not None else [target]
    return all(torch.Tag.pt2_compliant_tag in overload.tags for overload in overloads)


def user_source(code: types.CodeType) -> str:
    """The text of the user's function; empty where there is none (REPL, binary files)."""
    try:
        return "".join(inspect.getsourcelines(code)[0])
    except Exception:  # noqa: BLE001 - the file may be anything, also no Python
        return ""


def users_code(code: types.CodeType, flat: Sequence[object]) -> types.CodeType:
    """The code that the user wrote: where torch calls a module, that of its ``forward``."""
    first = flat[0] if flat else None
    if code.co_filename != _MODULES or not isinstance(first, torch.nn.Module):
        return code
    found = getattr(type(first).forward, "__code__", code)
    return found if isinstance(found, types.CodeType) else code


def reason(
    failure: Failure, code: types.CodeType, flat: Sequence[object], version: str
) -> records.RecompileReason:
    """A guard that does not hold for arguments ``flat``, in the user's terms."""
    guard, root, value = failure.guard, failure.guard.source.root, failure.value
    user = users_code(code, flat)
    name = root.name if isinstance(root, LocalSource) else ""
    given = _GIVEN.match(value) if user is not code else None
    if given is not None:  # an argument of ``forward``, as torch hands it on
        position = int(given[1]) + 1 if given[1] else 0
        named = 0 < position < user.co_argcount
        name = user.co_varnames[position] if named else given[2] or name
        value = name + value[given.end() :] if named or given[2] else value
    old, new = failure.texts
    line = guard.user_line or first_use(user, name)
    return records.RecompileReason(version, value, old, new, line, guard.why, failure.hint)


def first_use(code: types.CodeType, name: str) -> str | None:
    """Where ``code`` first reads the variable ``name``, ``file:line``."""
    info = decode(code)
    for index, instruction in enumerate(info.instructions):
        read = instruction.argval
        names = read if isinstance(read, tuple) else (read,)
        if name and "LOAD_FAST" in instruction.opname and name in names:
            return f"{code.co_filename}:{info.line(index)}"
    return None
