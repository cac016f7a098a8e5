"""The records: plain data, filled in while a compile is under way, never changed afterwards.

Each is a row of a trace file, see ``trace_file.py``; ``to_json`` and ``from_json`` are inverses.
Values of the user's are kept as text, so that no record keeps an object of theirs alive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

_R = TypeVar("_R", bound="_Row")
Outcome = Literal["", "compiled", "eager", "failed"]
CacheResult = Literal["", "hit", "miss", "bypass"]


_PLAIN = {str, int, float, bool, type(None)}


class _Row:
    """A dataclass that turns into plain data and back."""

    __slots__ = ()
    _nested: ClassVar[Mapping[str, type[_Row]]] = {}

    def to_json(self) -> dict[str, object]:
        """Plain data: dicts, lists, strings, numbers."""
        return {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}  # type: ignore[arg-type]

    @classmethod
    def from_json(cls: type[_R], row: Mapping[str, Any]) -> _R:
        """What ``to_json`` gave; names that this version does not know are left out."""
        found: dict[str, Any] = {}
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]
            if each.name in row:
                value = row[each.name]
                made = cls._nested.get(each.name)
                if made is not None:
                    value = [made.from_json(item) for item in value]
                found[each.name] = tuple(value) if isinstance(value, list) else value
        return cls(**found)


def _plain(value: object) -> object:
    if type(value) in _PLAIN:  # most are, and asking for classes that others derive from takes time
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, _Row):
        return value.to_json()
    return dict(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True, slots=True)
class Phase(_Row):
    """A span of time within a record.

    Attributes:
        name: the stage (``trace``, ``guards``, ``backend``, ``capture``, ``passes``, ...).
        start, seconds: when it began, counted from the record's own beginning, and how long it
            took; what runs within it is included.
        depth: how many phases it runs within.
    """

    name: str
    start: float
    seconds: float
    depth: int = 0


@dataclass(frozen=True, slots=True)
class RecompileReason(_Row):
    """The first guard of one compiled version that did not hold.

    Attributes:
        version: compile id of that version.
        value: the value that it asks for, as the program would write it.
        old, new: what the version was made for, and what came.
        line: ``file:line`` of the user's code that needs it, where known.
        why: what the program does there.
        hint: what to do.
    """

    version: str
    value: str
    old: str
    new: str
    line: str | None = None
    why: str = ""
    hint: str = ""

    def __str__(self) -> str:
        where = f", used at {self.line}" if self.line else ""
        text = f"{self.value} was {self.old}, is {self.new}{where}"
        return text + (f"\n    {self.hint}" if self.hint else "")


@dataclass(frozen=True, slots=True)
class KernelRecord(_Row):
    """One generated kernel of a graph.

    Attributes:
        name: as profilers show it.
        language: ``c`` or ``triton``; empty for kernels of other backends.
        device: where it runs.
        launches: how often a call of the graph runs it.
        bytes: read and written by these launches, each operand once; None where sizes are symbols.
        ops: names of the graph's nodes that it computes.
        lines: the user's lines behind them, ``file:line``, or names of operators.
        source: its text, where texts are kept.
        tuned: which of its forms was measured to be the fastest, and by how much; empty where
            nobody asked for that.
        seconds, table_seconds: what a launch of that form, and of the one that it replaces, took.
    """

    name: str
    language: str = ""
    device: str = ""
    launches: int = 1
    bytes: int | None = None
    ops: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    source: str = ""
    tuned: str = ""
    seconds: float | None = None
    table_seconds: float | None = None


@dataclass(slots=True)
class GraphRecord(_Row):
    """One graph that went through a backend; a training step has one forward and its backwards.

    Attributes:
        graph_id: number within the process.
        compile_id: the frame's that it belongs to; empty for graphs given to a backend by hand.
        kind: ``inference``, ``forward`` or ``backward``.
        name, backend: the graph's name and who compiled it.
        started: seconds since 1970.
        seconds: of the whole compile; ``phases`` say what of.
        ops, nodes, inputs, outputs: sizes of the captured graph.
        cache: whether a graph on disk was used; ``cache_reason`` why not, or its key.
        kernels: distinct generated kernels.
        externs: launches of the library's own kernels.
        bytes: read and written by the generated kernels of a call, where sizes are numbers.
        peak_bytes: the most that a call holds beyond its inputs, where the schedule knows;
            ``eager_peak_bytes``: what the same operators hold when they run one by one.
        outcome: ``compiled``, ``eager`` (it runs as captured) or ``failed``.
        failure, reason: the type of what went wrong and its text.
        restarts: why stages ran again.
        restart_seconds: time lost by that.
        texts: stage -> text, kept only while a trace or debug folder is on: ``graph``,
            ``functional``, ``plan``, ``wrapper``.
        lines: node of ``texts["graph"]`` -> ``file:line``, kept likewise.
    """

    _nested: ClassVar[Mapping[str, type[_Row]]] = {"phases": Phase, "kernels": KernelRecord}

    graph_id: int
    compile_id: str = ""
    kind: str = "inference"
    name: str = ""
    backend: str = ""
    started: float = 0.0
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    ops: int | None = None
    nodes: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    cache: CacheResult = ""
    cache_reason: str = ""
    kernels: tuple[KernelRecord, ...] = ()
    externs: int | None = None
    bytes: int | None = None
    peak_bytes: int | None = None
    eager_peak_bytes: int | None = None
    outcome: Outcome = ""
    failure: str = ""
    reason: str = ""
    restarts: tuple[str, ...] = ()
    restart_seconds: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)
    lines: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class FrameRecord(_Row):
    """One compile of one function, or of the part of it after a graph break.

    Attributes:
        compile_id: ``N/M``: version M of the N-th piece of code that the process compiled.
        function, file, line: the user's function, and where this piece begins.
        resumed: it is the part after a break.
        started: seconds since 1970.
        seconds: of the whole compile; ``phases`` say what of.
        outcome: ``compiled``, ``eager`` (the function itself runs for such inputs), ``failed``.
        ops, nodes, inputs, outputs: sizes of the graph; None where there is none.
        graph_ids: its records, as far as made by now.
        guards, shape_guards: how many are checked; ``shape_guards`` of them relate sizes.
        check_seconds: what the first check took.
        versions: compiled versions of this piece of code, this one included; ``limit`` is the most
            that it may have.
        custom_ops: operators outside of torch's own; ``unmarked_ops``: those of them without the
            tag ``pt2_compliant_tag``.
        break_: the graph break at its end, as ``BreakReport.to_json`` gives it.
        failure, reason: the type of what went wrong and its text; ``failure_line``: ``file:line``.
        recompiled: why the versions that were there did not fit; empty for the first.
        note: anything else that the user should know.
        texts: kind -> text, kept only while a trace or debug folder is on: ``user`` (the
            function's source), ``guards``, ``body``, ``page`` (JSON of the tracer's report).
    """

    _nested: ClassVar[Mapping[str, type[_Row]]] = {"phases": Phase, "recompiled": RecompileReason}

    compile_id: str
    function: str = ""
    file: str = ""
    line: int = 0
    resumed: bool = False
    started: float = 0.0
    seconds: float = 0.0
    phases: tuple[Phase, ...] = ()
    outcome: Outcome = ""
    ops: int | None = None
    nodes: int | None = None
    inputs: int | None = None
    outputs: int | None = None
    graph_ids: tuple[int, ...] = ()
    guards: int | None = None
    shape_guards: int | None = None
    check_seconds: float | None = None
    versions: int = 0
    limit: int = 0
    custom_ops: tuple[str, ...] = ()
    unmarked_ops: tuple[str, ...] = ()
    break_: dict[str, object] | None = None
    failure: str = ""
    failure_line: str = ""
    reason: str = ""
    recompiled: tuple[RecompileReason, ...] = ()
    note: str = ""
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The function with its place, for tables."""
        base = self.file.replace("\\", "/").rpartition("/")[2]
        return f"{self.function!r} ({base}:{self.line})"


Record = FrameRecord | GraphRecord
