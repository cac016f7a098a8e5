"""The page of a trace folder: each frame's part is written when it is compiled, and joined here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from torchsmith_guards.records import FrameRecord, GraphRecord, ProcessTrace, read_trace

from torchsmith_tracer._src.breaks.report import FrameReport
from torchsmith_tracer._src.page.html import page, write_page
from torchsmith_tracer._src.page.model import model, phases
from torchsmith_tracer._src.page.source import STATES, versions

_LANGUAGES = {"c": "C", "triton": "Triton"}
MOST_FRAMES = 400  # those after them are counted, not shown


def page_text(report: FrameReport) -> str:
    """What the page shows of one frame, for its record."""
    return json.dumps(model("", [report], replay=False), default=str)


def trace_page(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> bool:
    """Write the page of what programs have left in a trace folder (``TORCHSMITH_TRACE``).

    Args:
        folder: the folder, or one of its files.
        path: the page.

    Returns:
        Whether it is there; what keeps it from being written is one warning.

    Raises:
        FileNotFoundError: there is no trace.
    """
    return write_page(path, page(joined(read_trace(folder))))


def joined(traces: Sequence[ProcessTrace]) -> dict[str, Any]:
    """The data of one page for all frames of ``traces``."""
    made = _Joined()
    for trace in traces:
        for frame in trace.frames:
            made.add(frame, trace.graphs_of(frame))
    argv = traces[0].process.get("argv") if traces else None
    name = PurePath(str(argv[0])).name if isinstance(argv, list) and argv else "a trace"
    about = traces[0].process if traces else {}
    which = f"torch {about.get('torch')}, Python {about.get('python')}"
    return made.to_json(name, which if "torch" in about else versions())


class _Joined:
    """Frames of several models, with the files and stacks of all."""

    def __init__(self) -> None:
        self.pieces: list[Any] = []
        self.recompiles: list[Any] = []
        self.phases: list[Any] = []
        self.problems: list[str] = []
        self.files: dict[str, dict[str, Any]] = {}
        self.stacks: dict[tuple[tuple[int, int], ...], int] = {}
        self.left_out = 0

    def add(self, frame: FrameRecord, graphs: Sequence[GraphRecord]) -> None:
        """One frame; one without texts has no more than its times."""
        if len(self.pieces) >= MOST_FRAMES:
            self.left_out += 1
            return
        name = frame.function
        try:
            self._merge(json.loads(frame.texts["page"]), graphs)
            name = self.pieces[-1]["function"]
        except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
            self.problems.append(f"{frame.label}: {type(error).__name__}: {error}"[:300])
        self.phases += phases(name, frame, graphs)

    def _merge(self, data: Mapping[str, Any], graphs: Sequence[GraphRecord]) -> None:
        files = [self._file(file) for file in data["files"]]

        def moved(place: Any) -> Any:
            return [files[place[0]], place[1]] if place is not None and place[0] >= 0 else place

        stacks = []
        for stack in data["stacks"]:
            key = tuple((files[file], line) for file, line in stack)
            stacks.append(self.stacks.setdefault(key, len(self.stacks)))
        for piece in data["pieces"]:
            piece["at"] = moved(piece["at"])
            for node in piece["nodes"]:
                node[3] = stacks[node[3]] if node[3] >= 0 else -1
            for guard in piece["guards"]:
                guard[4] = moved(guard[4])
            if piece["break"] is not None:
                piece["break"]["at"] = moved(piece["break"]["at"])
            piece["schedules"] += [_backward(g) for g in graphs if g.kind == "backward"]
        for note in data["recompiles"]:
            note["at"] = moved(note["at"])
        self.pieces += data["pieces"]
        self.recompiles += data["recompiles"]
        self.problems += data["problems"]

    def _file(self, file: Mapping[str, Any]) -> int:
        """The number of a file, with its lines and their states among those known."""
        known = self.files.setdefault(
            file["path"],
            {**file, "problem": "", "spans": [], "states": {}, "text": {}, "names": {}},
        )
        known["problem"] = known["problem"] or file["problem"]
        for span in file["spans"]:
            known["names"].setdefault(span["first"], span["name"])
            known["text"] |= dict(enumerate(span["lines"], span["first"]))
        for line, state in file["states"].items():
            before = known["states"].get(line)
            if before is None or STATES.index(state) > STATES.index(before):
                known["states"][line] = state
        return list(self.files).index(file["path"])

    def to_json(self, name: str, made: str) -> dict[str, Any]:
        """The whole page's data."""
        if self.left_out:
            self.problems.append(f"{self.left_out:,} more frames are not shown")
        return {
            "format": 1,
            "function": name,
            "made": made,
            "pieces": self.pieces,
            "recompiles": self.recompiles,
            "phases": self.phases,
            "stacks": [list(stack) for stack in self.stacks],
            "files": [_with_spans(file) for file in self.files.values()],
            "problems": self.problems[:20],
        }


def _with_spans(file: dict[str, Any]) -> dict[str, Any]:
    text, names = file.pop("text"), file.pop("names")
    spans: list[dict[str, Any]] = []
    for line in sorted(text):
        if not spans or line != spans[-1]["first"] + len(spans[-1]["lines"]):
            spans.append({"first": line, "name": names.get(line, ""), "lines": []})
        spans[-1]["lines"].append(text[line])
    return {**file, "spans": spans}


def _backward(graph: GraphRecord) -> dict[str, Any]:
    """What is known of a backward graph, which was compiled after its frame."""
    kernels = [
        {
            "name": k.name,
            "language": _LANGUAGES.get(k.language, ""),
            "source": k.source,
            "tuned": k.tuned,
        }
        for k in graph.kernels
    ]
    steps: list[dict[str, Any]] = [
        {
            "label": " · ".join(dict.fromkeys(x.split(".")[1] for x in k.lines if "aten." in x)),
            "kernel": number,
            "nodes": [],
            "bytes": k.bytes,
            "flops": None,
            "live": None,
        }
        for number, k in enumerate(graph.kernels)
    ]
    device = graph.kernels[0].device if graph.kernels else ""
    peak = graph.peak_bytes
    return {"name": "backward", "device": device, "kernels": kernels, "steps": steps, "peak": peak}
