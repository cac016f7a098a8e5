"""The user's source with what became of each line."""

from __future__ import annotations

import inspect
import linecache
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from types import CodeType

import torch

from torchsmith_tracer._src.breaks.report import FrameReport
from torchsmith_tracer._src.frames.code import decode

LONGEST_LINE = 400  # characters; what is longer is machine-made, and cut
LONGEST_FUNCTION = 2_000  # lines
_NEAR = 2  # lines between two functions that are shown rather than folded away

_LIBRARY = tuple(
    {
        os.path.dirname(torch.__file__) + os.sep,
        *(sysconfig.get_paths()[key] + os.sep for key in ("stdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep,
    }
)


class LineState(Enum):
    """What became of a line of the program. Where several hold, the last one listed is shown."""

    MISSED = "missed"  # code that was not reached for these inputs
    FOLDED = "folded"  # ran while tracing: a constant or plain Python, which costs calls nothing
    CAPTURED = "captured"  # it has operators in a graph
    EAGER = "eager"  # runs as it stands, without being compiled
    BROKEN = "broken"  # the graph ends here


STATES = [state.value for state in LineState]
_ALWAYS = (os.path.dirname(torch.__file__) + os.sep, "<torchsmith", "<frozen")
_ORDER = {state: number for number, state in enumerate(LineState)}


def is_library(file: str) -> bool:
    """Whether a file is torch's, the standard library's, an installed package's, or generated."""
    return file.startswith((*_LIBRARY, "<torchsmith", "<frozen"))


@dataclass(slots=True)
class Function:
    """A function of the user's that is shown.

    Attributes:
        name: its qualified name.
        first, last: its lines.
    """

    name: str
    first: int
    last: int


@dataclass(slots=True)
class SourceFile:
    """One file of the user's.

    Attributes:
        path: as the code objects name it.
        functions: those that are shown, by first line.
        states: what became of each line with code.
        problem: why there is no text; empty when there is.
    """

    path: str
    functions: dict[int, Function] = field(default_factory=dict)
    states: dict[int, LineState] = field(default_factory=dict)
    problem: str = ""

    def mark(self, line: int, state: LineState) -> None:
        """A line has ``state``, unless something that matters more is known of it."""
        known = self.states.get(line)
        if known is None or _ORDER[state] > _ORDER[known]:
            self.states[line] = state

    def show(self, name: str, first: int, last: int) -> None:
        """Have these lines shown."""
        last = min(max(first, last), first + LONGEST_FUNCTION)
        known = self.functions.get(first)
        if known is None or known.last < last:
            self.functions[first] = Function(name, first, last)

    def to_json(self) -> dict[str, object]:
        """Plain data: the spans of text to show, and the states by line."""
        text = self._text()
        spans: list[dict[str, object]] = []
        end = -1
        for function in sorted(self.functions.values(), key=lambda f: (f.first, -f.last)):
            first = function.first
            if spans and first <= end + _NEAR + 1:
                span = spans[-1]
                if function.last > end:
                    span["lines"] += _cut(text[end : function.last])  # type: ignore[operator]
            else:
                lines = _cut(text[first - 1 : function.last])
                spans.append({"first": first, "name": function.name, "lines": lines})
            end = max(end, function.last)
        return {
            "path": self.path,
            "name": os.path.basename(self.path) or self.path,
            "problem": self.problem,
            "spans": spans if text else [],
            "states": {str(line): state.value for line, state in sorted(self.states.items())},
        }

    def _text(self) -> list[str]:
        lines = linecache.getlines(self.path)
        if not lines:
            self.problem = _why_missing(self.path)
        return lines


def _cut(lines: Iterable[str]) -> list[str]:
    stripped = (line.rstrip("\r\n\f") for line in lines)
    return [x if len(x) <= LONGEST_LINE else f"{x[:LONGEST_LINE]} …" for x in stripped]


def _why_missing(path: str) -> str:
    if path.startswith("<"):
        return "This code was typed or generated; Python keeps no source of it."
    if not os.path.exists(path):
        return "The file is not there any more."
    return "The file cannot be read as Python source."


class Sources:
    """The user's files that a program consists of, in the order in which they were met."""

    def __init__(self, entry: str = "") -> None:
        """``entry``: a file that is shown although it belongs to an installed package."""
        self.files: dict[str, SourceFile] = {}
        self.entry = entry

    def users(self, path: str) -> bool:
        """Whether the lines of a file are shown."""
        if path == self.entry:
            return bool(path) and not path.startswith(_ALWAYS)
        return bool(path) and not is_library(path)

    def file(self, path: str) -> SourceFile | None:
        """The file of this path; None for those of libraries."""
        if not self.users(path):
            return None
        return self.files.get(path) or self.files.setdefault(path, SourceFile(path))

    def index(self, path: str) -> int:
        """The position of a file among those shown, or -1."""
        found = self.file(path)
        return -1 if found is None else list(self.files).index(path)

    def traced(self, code: CodeType, positions: Iterable[int]) -> None:
        """Code that was traced: of its instructions, those at ``positions`` were run."""
        file = self.file(code.co_filename)
        if file is None:
            return
        lines = set(_lines(code))
        if not lines:
            return
        file.show(code.co_qualname, code.co_firstlineno, max(_lines(code, nested=True)))
        for line in lines:
            if line > code.co_firstlineno or "<lambda>" in code.co_qualname:
                file.mark(line, LineState.MISSED)
        info = decode(code)
        for position in positions:
            first, _, column, _ = info.position(position)
            # What a resume function begins with has no columns, and belongs to no line.
            made = column is None and first == code.co_firstlineno
            if first is not None and not made and info.instructions[position].opname not in _SILENT:
                file.mark(first, LineState.FOLDED)

    def continued(self, code: CodeType, positions: Iterable[int]) -> None:
        """Lines on which an expression goes on are in the state of the line that it begins on."""
        file = self.file(code.co_filename)
        info = decode(code)
        for position in positions if file is not None else ():
            first, last, _, _ = info.position(position)
            # A jump of 3.11 spans the whole statement that it is the test of.
            if first is None or last is None or "JUMP" in info.instructions[position].opname:
                continue
            assert file is not None
            state = file.states.get(first)
            for line in range(first + 1, min(last, first + 50) + 1):
                if state is not None and file.states.get(line) is LineState.FOLDED:
                    file.mark(line, state)

    def eager(self, frame: FrameReport) -> None:
        """A piece that runs without being compiled, from its first line to its function's end."""
        place = frame.place
        file = self.file(place.file)
        if file is None:
            return
        known = [f for f in file.functions.values() if f.first <= place.line <= f.last]
        if not known:
            block = _block(linecache.getlines(place.file), place.line)
            file.show(place.function, place.line, place.line + max(len(block), 1) - 1)
            known = [file.functions[place.line]]
            for offset, text in enumerate(block):
                if text.strip() and not text.strip().startswith("#") and offset:
                    file.states.setdefault(place.line + offset, LineState.MISSED)
        function = max(known, key=lambda f: f.first)
        for line in list(file.states):
            if place.line <= line <= function.last:
                file.mark(line, LineState.EAGER)


_SILENT = {"RESUME", "RETURN_GENERATOR", "COPY_FREE_VARS", "MAKE_CELL", "NOP", "CACHE"}


def _lines(code: CodeType, *, nested: bool = False) -> Iterator[int]:
    yield from (line for _, _, line in code.co_lines() if line)
    if nested:
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from _lines(constant, nested=True)


def _block(lines: list[str], first: int) -> list[str]:
    """The lines of the function that begins at line ``first``."""
    try:
        return inspect.getblock(lines[first - 1 :])[:LONGEST_FUNCTION]
    except (SyntaxError, IndentationError, ValueError, IndexError):
        return lines[first - 1 : first]


def versions() -> str:
    """What made the page."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"torch {torch.__version__}, Python {python}"
