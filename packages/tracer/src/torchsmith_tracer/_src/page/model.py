"""The plain data behind the page: everything that it shows, and nothing of the program's objects.

``model`` asks each part for its share; a part that fails leaves its share out and a line in
``problems``, so that what is known is always shown. A backend may add what it knows: what it makes
of a graph can have an attribute ``schedules``, a function without arguments that returns one
mapping for each program that the graph became (an inference graph has one, training has a forward
half and backward halves, once they are compiled):

* ``name``: ``"inference"``, ``"forward"``, ``"backward"``; ``device``: where it runs.
* ``kernels``: a list of mappings with ``name``, ``language``, ``source``, and ``tuned``: what
  measuring its forms gave, if that was asked for.
* ``steps``, in the order in which they run: mappings with ``label``, ``kernel`` (an index, or None
  for calls of the library's own kernels), ``nodes`` (names of captured nodes), ``ops`` (what it
  computes), ``bytes`` (read and written), ``flops`` and ``live`` (bytes held after it, beyond the
  inputs); numbers that are not known are None. A kernel may have measured ``seconds``.
* ``peak``: most bytes held at once; ``roof``: peak ``bandwidth`` (bytes per second) and ``flops``
  (per second) of the device, with ``basis``, a sentence that says where these are from.
"""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch import fx
from torchsmith_guards import Guard, GuardKind, TensorSpec, estimated_ns, expectation, hint_of
from torchsmith_guards.records import FrameRecord, GraphRecord, graph_text, recorder

from torchsmith_tracer._src.breaks.report import BreakReport, FrameReport, Recompile
from torchsmith_tracer._src.page.memory import eager_memory, size_in_bytes, tensors, training_memory
from torchsmith_tracer._src.page.source import LineState, Sources, versions

MOST_TEXT = 1_000_000  # characters of generated code; a page is to stay a file that can be sent
MOST_GUARDS = 4_000
_CUT = 300

_ADDRESS = re.compile(r" (?:at 0x[0-9a-f]+|from '[^']*')")
_FRAME = re.compile(r'^  File "(.*)", line (\d+), in (.*)$', re.MULTILINE)


class Model:
    """Collects the data of one page.

    Attributes:
        sources: the user's files.
        problems: parts that could not be made, and why.
    """

    def __init__(self, function: str, entry: str, *, replay: bool = True) -> None:
        """``entry``: the file that the explained ``function`` is in; ``replay``: graphs may be run
        without data, to see what autograd keeps."""
        self.function, self.replay = function, replay
        self.sources = Sources(entry)
        self.problems: list[str] = []
        self.stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self._numbers: dict[str, int] = {}  # texts of stacks, which many nodes share
        self._text = 0

    def part(self, what: str, make: Callable[[], Any], default: Any) -> Any:
        """What ``make`` gives; where it fails, ``default`` and a problem."""
        try:
            return make()
        except Exception as error:
            if os.environ.get("TORCHSMITH_STRICT") == "1":
                raise
            self.problems.append(f"{what}: {type(error).__name__}: {error}"[:_CUT])
            return default

    def limited(self, text: str) -> str:
        """Generated code, as long as the page stays small enough."""
        self._text += len(text)
        if self._text > MOST_TEXT:
            return f"(left out: {len(text):,} characters; the page would get too large)"
        return text

    # --- places ----------------------------------------------------------------------------------
    def place(self, file: str, line: int) -> tuple[int, int]:
        """A place as the page names it: the number of the file (-1: a library's) and the line."""
        return self.sources.index(file), line

    def stack(self, trace: object) -> int:
        """The number of a node's stack of user lines, outermost first; -1 for none."""
        if not isinstance(trace, str):
            return -1
        known = self._numbers.get(trace)
        if known is not None:
            return known
        found = [self.place(file, int(line)) for file, line, _ in _FRAME.findall(trace)]
        key = tuple(place for place in found if place[0] >= 0)
        number = self.stacks.setdefault(key, len(self.stacks)) if key else -1
        self._numbers[trace] = number
        return number

    def line(self, text: str | None) -> tuple[int, int] | None:
        """``file:line`` as a place."""
        file, _, number = (text or "").rpartition(":")
        return self.place(file, int(number)) if file and number.isdigit() else None

    def code(self, gm: fx.GraphModule | None) -> str:
        """The graph as Python; where a program runs and waits, as it is quickly written."""
        if gm is None:
            return ""
        return str(gm.code) if self.replay else graph_text(gm.graph)

    # --- pieces ----------------------------------------------------------------------------------
    def piece(self, frame: FrameReport) -> dict[str, Any]:
        """One compiled piece."""
        details = frame.details
        graph = None if frame.graph is None else frame.graph.graph
        at = self.place(frame.place.file, frame.place.line)
        row: dict[str, Any] = {
            # Calls of a module begin in torch's own code.
            "function": frame.function if at[0] >= 0 else self.function or _entered(frame),
            "at": at,
            "where": f"{frame.place.file}:{frame.place.line}",
            "state": "eager" if frame.eager else "compiled" if frame.op_count() else "empty",
            "note": frame.note,
            "ops": frame.op_count(),
            "nodes": self.part("nodes", lambda: list(self._nodes(graph)), []),
            "inputs": self.part("inputs", lambda: list(_inputs(graph)), []),
            "body": self.limited(frame.body),
            "break": None if frame.break_ is None else self.broken(frame.break_),
            "memory": self.part("memory", lambda: self.memory(frame.graph), None),
            "guards": [],
            "schedules": [],
        }
        row["code"] = self.part("graph", lambda: self.limited(self.code(frame.graph)), "")
        if details is not None:
            checker = details.checker
            row["guards"] = self.part("guards", lambda: self.guards(checker.guards), [])
            row["guards_left_out"] = max(len(checker.guards) - MOST_GUARDS, 0)
            row["guard_ns"] = checker.cost_ns
            describe = getattr(details.compiled, "schedules", None)
            if callable(describe):
                row["schedules"] = self.part("schedule", lambda: self.schedules(describe), [])
        if not row["schedules"] and frame.kernels:
            kernels = [{"name": k.name, "source": self.limited(k.source)} for k in frame.kernels]
            row["schedules"] = [{"name": "", "kernels": kernels, "steps": [], "peak": None}]
        return row

    def _nodes(self, graph: fx.Graph | None) -> Iterator[list[object]]:
        """For each call: name, operator, result, stack, module."""
        for node in graph.nodes if graph is not None else ():
            if node.op.startswith("call"):
                value = node.meta.get("example_value")
                stack = self.stack(node.meta.get("stack_trace"))
                for file, line in list(self.stacks)[stack] if stack >= 0 else ():
                    list(self.sources.files.values())[file].mark(line, LineState.CAPTURED)
                yield [node.name, operator_name(node), described(value), stack, _module(node)]

    def memory(self, gm: fx.GraphModule | None) -> dict[str, Any] | None:
        """What eager holds; where autograd keeps values, of the forward and of the backward."""
        found = None if gm is None else eager_memory(gm.graph)
        if gm is not None and found is not None and found["floor"] and self.replay:
            found["halves"] = training_memory(gm)
        return found

    def guards(self, guards: Sequence[Guard]) -> list[list[object]]:
        """For each guard: what is looked at, how, what is expected, why, the line, nanoseconds."""
        rows: list[list[object]] = []
        places: dict[str | None, tuple[int, int] | None] = {}  # many guards share a line
        kinds = {kind: kind.value for kind in GuardKind}
        for guard in guards[:MOST_GUARDS]:
            texts = [guard.source.expr, kinds[guard.kind], _expected(guard), guard.why]
            if max(map(len, texts)) > _CUT:
                texts = [t if len(t) <= _CUT else f"{t[:_CUT]} …" for t in texts]
            line = guard.user_line
            if line not in places:
                places[line] = self.line(line)
            rows.append([*texts, places[line], estimated_ns(guard)])
        return rows

    def broken(self, found: BreakReport) -> dict[str, object]:
        """A graph break."""
        place = found.place
        if place is not None and (file := self.sources.file(place.file)) is not None:
            for line in range(place.line, (place.end_line or place.line) + 1):
                file.mark(line, LineState.BROKEN)
        return {
            **found.to_json(),
            "at": None if place is None else self.place(place.file, place.line),
            "where": "" if place is None else f"{place.file}:{place.line}",
            "columns": _columns(found),
        }

    def schedules(self, describe: Callable[[], Sequence[Mapping[str, Any]]]) -> list[Any]:
        """What a backend says of one graph."""
        found = [dict(each) for each in describe()]
        for each in found:
            each["kernels"] = [
                {**kernel, "source": self.limited(kernel.get("source", ""))}
                for kernel in each.get("kernels", ())
            ]
            each["wrapper"] = self.limited(each.get("wrapper", ""))
        return found

    def recompile(self, frame: FrameReport) -> dict[str, object]:
        """Why a piece was compiled again, at the line that needs what has changed."""
        assert frame.record is not None
        found = frame.record.recompiled
        places = (self.line(reason.line) for reason in found)
        return {
            "function": frame.function,
            "reasons": [
                {"what": f"{r.value} was {r.old}, is {r.new}", "why": r.why, "hint": r.hint}
                for r in found
            ],
            "at": next((place for place in places if place is not None and place[0] >= 0), None),
        }


def phases(
    function: str, record: FrameRecord, graphs: Sequence[GraphRecord]
) -> Iterator[dict[str, object]]:
    """What a compile took, with the stages of its graph's; then those of backward graphs, which
    are compiled when they are first asked for."""
    rows: list[dict[str, Any]] = [phase.to_json() for phase in record.phases]
    for graph in graphs:
        if graph.kind != "backward":
            offset = graph.started - record.started
            rows += [
                {**p.to_json(), "start": offset + p.start, "depth": p.depth + 1}
                for p in graph.phases
            ]
    yield {
        "function": function,
        "where": f"{os.path.basename(record.file)}:{record.line}",
        "seconds": record.seconds,
        "check_seconds": record.check_seconds,
        "cache": [[g.cache, g.cache_reason] for g in graphs if g.cache],
        "phases": sorted(rows, key=lambda row: (row["start"], row["depth"])),
    }
    for graph in graphs:
        if graph.kind == "backward":
            yield {
                "function": f"{function}, backward",
                "seconds": graph.seconds,
                "check_seconds": None,
                "cache": [],
                "phases": [phase.to_json() for phase in graph.phases],
            }


def model(
    function: str,
    frames: Sequence[FrameReport],
    recompiles: Sequence[Recompile] = (),
    *,
    replay: bool = True,
) -> dict[str, Any]:
    """The data of the page on one program; ``replay``: see ``Model``."""
    made = Model(function, frames[0].place.file if frames else "", replay=replay)
    sources, part = made.sources, made.part
    visited = [pair for f in frames if f.details is not None for pair in f.details.visited]
    for pair in visited:
        part("lines", partial(sources.traced, *pair), None)
    pieces = [made.piece(frame) for frame in frames]
    for pair in visited:
        part("lines", partial(sources.continued, *pair), None)
    for frame in frames:
        if frame.eager or (frame.break_ is not None and not frame.break_.resumed):
            part("lines", partial(sources.eager, frame), None)
    again = [f for f in frames if f.record is not None and f.record.recompiled]
    # Calls past the limit are not compiled: nothing but their note is there.
    rest = [
        {"function": note.function, "reasons": [{"what": str(note)}], "at": None}
        for note in recompiles[len(again) :]
    ]
    graphs = recorder.metrics().graphs
    times = []
    for frame, piece in zip(frames, pieces):
        if (record := frame.record) is not None:
            own = [g for g in graphs if g.compile_id == record.compile_id]
            times += part("times", lambda: list(phases(piece["function"], record, own)), [])  # noqa: B023
    return {
        "format": 1,
        "function": function,
        "made": versions(),
        "pieces": pieces,
        "recompiles": [made.recompile(frame) for frame in again] + rest,
        "phases": times,
        "stacks": [list(stack) for stack in made.stacks],
        "files": [part("source", file.to_json, {}) for file in sources.files.values()],
        "problems": made.problems,
    }


def _entered(frame: FrameReport) -> str:
    """The class of the module whose call begins in torch's own code."""
    for node in frame.graph.graph.nodes if frame.graph is not None else ():
        for _, kind in (node.meta.get("nn_module_stack") or {}).values():
            return str(getattr(kind, "__name__", kind))
    return frame.function


def _expected(guard: Guard) -> str:
    expected = guard.expected
    if isinstance(expected, TensorSpec):
        sizes = ", ".join("any" if n is None else str(n) for n in expected.size)
        grad = ", requires grad" if expected.requires_grad else ""
        return f"{_dtype(expected.dtype)}[{sizes}] on {expected.device}{grad}"
    if guard.kind is GuardKind.GLOBAL_STATE:
        return "as it was"
    if isinstance(expected, CodeType):
        return f"the code of {expected.co_qualname}"
    if expected is None:
        return ""
    text = expectation(guard)
    return _ADDRESS.sub("", text) if " at 0x" in text or " from '" in text else text


def operator_name(node: fx.Node) -> str:
    """A node's operator as a program would write it."""
    target = node.target
    if node.op == "call_method":
        return f".{target}"
    if isinstance(target, str):
        return target
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", None) or ""
    if module in ("_operator", "operator"):
        return "[]" if target is operator.getitem else str(name)
    public = getattr(torch, str(name), None)
    if public is target:
        return f"torch.{name}"
    short = module.removeprefix("torch.").removeprefix("nn.")
    return f"{short}.{name}" if module.startswith("torch.") and "._" not in module else str(name)


_DTYPES = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c", "bool": "b8"}


def _dtype(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    letters = name.rstrip("0123456789")
    return f"{_DTYPES[letters]}{name[len(letters) :]}" if letters in _DTYPES else name


def described(value: object) -> str:
    """The form of a node's result: ``f32[8, 16]``."""
    if isinstance(value, torch.Tensor):
        return f"{_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list):
        parts = [described(item) for item in value]
        if len(parts) > 1 and len(set(parts)) == 1:
            return f"{len(parts)} × {parts[0]}"
        inner = ", ".join(parts[:8])
        return f"({inner}{', …' if len(value) > 8 else ''})"
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return f"{value} (now {hint_of(value)})"
    return "" if value is None else type(value).__name__


def _inputs(graph: fx.Graph | None) -> Iterator[list[object]]:
    for node in graph.find_nodes(op="placeholder") if graph is not None else ():
        value = node.meta.get("example_value")
        yield [node.name, described(value), sum(map(size_in_bytes, tensors(value)))]


def _module(node: fx.Node) -> str:
    """The path of the innermost module whose code made the node."""
    stack = node.meta.get("nn_module_stack") or {}
    return str(list(stack.values())[-1][0]) if stack else ""


def _columns(found: BreakReport) -> list[int] | None:
    """First and last character of the span on its first line; columns of code count bytes."""
    place = found.place
    if place is None or place.column is None or place.end_column is None:
        return None
    marks = place.excerpt().rpartition("\n")[2]
    if not marks.strip("^ ") and "^" in marks:
        return [marks.index("^"), len(marks)]
    return None
