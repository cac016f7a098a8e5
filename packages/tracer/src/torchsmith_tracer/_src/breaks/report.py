"""What happened while compiling, in the user's terms: breaks, graphs, guards, recompiles."""

from __future__ import annotations

import linecache
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING

import torch
from torch import fx

from torchsmith_tracer._src.breaks.kinds import KINDS, Category
from torchsmith_tracer._src.breaks.signals import Unsupported
from torchsmith_tracer.errors import FullGraphError

if TYPE_CHECKING:
    from torchsmith_guards import Checker
    from torchsmith_guards.records import FrameRecord

    from torchsmith_tracer._src.frames.code import CodeInfo

_TORCH = os.path.dirname(torch.__file__)
Position = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Place:
    """A span of the user's source.

    Attributes:
        file, line, function: where.
        end_line, column, end_column: the span; None where unknown.
    """

    file: str
    line: int
    function: str
    end_line: int | None = None
    column: int | None = None
    end_column: int | None = None

    @staticmethod
    def of(info: CodeInfo, index: int) -> Place:
        """Of one instruction."""
        line, end_line, column, end_column = info.position(index)
        code = info.code
        return Place(
            code.co_filename,
            line or code.co_firstlineno,
            code.co_qualname,
            end_line,
            column,
            end_column,
        )

    def excerpt(self) -> str:
        """The source line with the span underlined; empty when the source is not available."""
        text = linecache.getline(self.file, self.line).rstrip("\n")
        if not text.strip():
            return ""
        shown = text.strip()
        indent = len(text) - len(text.lstrip())
        if self.column is None or self.end_column is None:
            return shown
        # Columns count bytes of UTF-8.
        raw = text.encode()
        start = len(raw[: self.column].decode(errors="replace")) - indent
        end = len(raw[: self.end_column].decode(errors="replace")) - indent
        if self.end_line != self.line:
            end = len(shown)
        return f"{shown}\n{' ' * start}{'^' * max(end - start, 1)}"

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


@dataclass(frozen=True, slots=True)
class BreakReport:
    """One graph break.

    Attributes:
        id: stable id of the kind, ``TS-T...``.
        name: name of the kind.
        category: who can do something about it.
        what: what happened.
        advice: what to do.
        place: where in the user's code.
        stack: frames from the compiled function down to ``place``.
        resumed: False when the rest of the function runs eagerly instead of being compiled.
    """

    id: str
    name: str
    category: Category
    what: str
    advice: str
    place: Place | None
    stack: tuple[Place, ...] = ()
    resumed: bool = True

    @staticmethod
    def of(signal: Unsupported, stack: Sequence[Place], *, resumed: bool = True) -> BreakReport:
        """Describe a signal that arose in ``stack`` (outermost first)."""
        kind = KINDS.get(signal.kind)
        if kind is None:
            text = f"{signal.kind}: {signal.details}"
            advice = "Please report this."
            found = BreakReport("TS-T999", signal.kind, Category.OUR_BUG, text, advice, None)
        else:
            details = _Details(signal.details)
            what = kind.what.format_map(details)
            advice = kind.advice.format_map(details)
            found = BreakReport(kind.id, kind.name, kind.category, what, advice, None)
        place = next((p for p in reversed(stack) if not p.file.startswith(_TORCH)), None)
        if place is None and stack:
            place = stack[-1]
        return BreakReport(
            found.id,
            found.name,
            found.category,
            found.what,
            found.advice,
            place,
            tuple(stack),
            resumed,
        )

    def error(self) -> FullGraphError:
        """The error of ``fullgraph=True``."""
        place = None if self.place is None else f"{self.place.file}:{self.place.line}"
        return FullGraphError(
            f"fullgraph=True, but the graph breaks here:\n{self}",
            code=self.id,
            advice=self.advice,
            place=place,
        )

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        place = self.place
        return {
            "id": self.id,
            "name": self.name,
            "category": self.category.value,
            "what": self.what,
            "advice": self.advice,
            "file": None if place is None else place.file,
            "line": None if place is None else place.line,
            "column": None if place is None else place.column,
            "end_column": None if place is None else place.end_column,
            "function": None if place is None else place.function,
            "stack": [str(p) for p in self.stack],
            "resumed": self.resumed,
        }

    def __str__(self) -> str:
        lines = [f"[{self.id}] {self.what} ({self.category.value})"]
        if self.place is not None:
            lines.append(f"  {self.place}")
            lines += [f"    {line}" for line in self.place.excerpt().splitlines()]
        if not self.resumed:
            lines.append("  The function runs eagerly from its start for such inputs.")
        lines.append(f"  Advice: {self.advice}")
        return "\n".join(lines)


class _Details(dict[str, object]):
    """Details of a signal for its templates; a missing one shows by name."""

    def __missing__(self, key: str) -> str:
        return f"<{key}>"


@dataclass(frozen=True, slots=True)
class Recompile:
    """Why a function that has compiled versions was compiled again."""

    function: str
    reasons: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {"function": self.function, "reasons": list(self.reasons)}

    def __str__(self) -> str:
        first, *older = self.reasons or ("no compiled version matches",)
        lines = [f"  an older version: {reason.partition(chr(10))[0]}" for reason in older[:3]]
        lines += [f"  and {len(older) - 3} more"] if len(older) > 3 else []
        return "\n".join([f"{self.function}: {first}", *lines])


@dataclass(frozen=True, slots=True)
class KernelReport:
    """One kernel of a compiled graph: its name and, where the backend tells, its source text."""

    name: str
    source: str = ""

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class FrameDetails:
    """What ``explain`` alone keeps of a compile.

    Attributes:
        visited: the code that was traced, inlined functions included, each with the positions of
            its instructions that were run.
        checker: the guards.
        compiled: what the backend made of the graph.
    """

    visited: tuple[tuple[CodeType, frozenset[int]], ...]
    checker: Checker
    compiled: object = None


@dataclass(slots=True)
class FrameReport:
    """What one compile of one function (or of the part after a break) gave.

    Attributes:
        function: qualified name.
        place: where the function, or the part after the break, begins.
        graph: what was captured; None when nothing needs computing.
        break_: the break at its end, if any.
        guards: source text of the guard check.
        body: source text of the generated body.
        kernels: the distinct kernels of the compiled graph, if its backend names them.
        notes: what else its backend tells of it.
        wrapper: source of the compiled graph, if its backend gives it.
        eager: the function itself runs for these inputs (it raises, or cannot be split).
        details: more, where ``explain`` asked for it.
        record: what was measured.
    """

    function: str
    place: Place
    graph: fx.GraphModule | None = None
    break_: BreakReport | None = None
    guards: str = ""
    body: str = ""
    kernels: tuple[KernelReport, ...] = ()
    notes: tuple[str, ...] = ()
    wrapper: str = ""
    eager: bool = False
    note: str = ""
    details: FrameDetails | None = None
    record: FrameRecord | None = None

    def op_count(self) -> int:
        """Number of calls in the graph."""
        if self.graph is None:
            return 0
        return sum(n.op.startswith("call") for n in self.graph.graph.nodes)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "function": self.function,
            "file": self.place.file,
            "line": self.place.line,
            "graph": None if self.graph is None else self.graph.code,
            "ops": self.op_count(),
            "break": None if self.break_ is None else self.break_.to_json(),
            "guards": self.guards,
            "kernels": [{"name": k.name, "source": k.source} for k in self.kernels],
            "notes": list(self.notes),
            "eager": self.eager,
            "note": self.note,
        }


class Pieces:
    """What can be said about several compiled pieces."""

    __slots__ = ()
    frames: Sequence[FrameReport]

    @property
    def graphs(self) -> list[fx.GraphModule]:
        """The captured graphs."""
        return [f.graph for f in self.frames if f.graph is not None]

    @property
    def breaks(self) -> list[BreakReport]:
        """The graph breaks; one that several pieces run into is listed once."""
        found: dict[tuple[str, Place | None], BreakReport] = {}
        for frame in self.frames:
            if frame.break_ is not None:
                found.setdefault((frame.break_.id, frame.break_.place), frame.break_)
        return list(found.values())


@dataclass(slots=True)
class Log(Pieces):
    """Everything that one region has recorded, in order; with ``detailed`` frames have details."""

    frames: list[FrameReport] = field(default_factory=list)
    recompiles: list[Recompile] = field(default_factory=list)
    detailed: bool = False
