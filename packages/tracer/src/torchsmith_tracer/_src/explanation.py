"""``Explanation``: what ``explain(fn)(*args)`` returns."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

from torch import profiler

from torchsmith_tracer._src.breaks.report import FrameReport, KernelReport, Pieces, Recompile
from torchsmith_tracer._src.page.html import page, write_page
from torchsmith_tracer._src.page.model import model
from torchsmith_tracer.errors import TracerWarning


@dataclass(frozen=True, slots=True)
class Explanation(Pieces):
    """The report on one call of a function; prints as text.

    Attributes:
        function: name of what was explained.
        frames: one report for each compiled piece, in the order in which they were compiled.
        recompiles: pieces that had to be compiled more than once, and why.
        result: what the call returned.
    """

    function: str
    frames: tuple[FrameReport, ...]
    recompiles: tuple[Recompile, ...]
    result: object

    @property
    def guards(self) -> list[str]:
        """The guard checks as Python source, one for each compiled piece."""
        return [f.guards for f in self.frames]

    @property
    def kernels(self) -> list[KernelReport]:
        """The distinct kernels of each graph (empty for backends that name none)."""
        return [k for f in self.frames for k in f.kernels]

    @property
    def graph_count(self) -> int:
        """Number of graphs."""
        return len(self.graphs)

    @property
    def break_count(self) -> int:
        """Number of graph breaks."""
        return len(self.breaks)

    @property
    def op_count(self) -> int:
        """Number of calls in all graphs."""
        return sum(f.op_count() for f in self.frames)

    def html(self, profile: profiler.profile | None = None) -> str:
        """One page that shows this in a browser; it needs no other file and no network.

        Args:
            profile: of calls of the compiled function; the page then has the times of its kernels
                on the device.
        """
        data = model(self.function, self.frames, self.recompiles)
        if profile is not None:
            _put_times(data, profile)
        problems = data["problems"]
        if problems:
            text = f"[TS-T909] the report is incomplete: {'; '.join(problems[:3])}"
            warnings.warn(text, TracerWarning, stacklevel=2)
        return page(data, str(self))

    def save(self, path: str | os.PathLike[str], profile: profiler.profile | None = None) -> bool:
        """Write ``html(profile)`` to a file.

        Returns:
            Whether it is there; what keeps it from being written is one warning.
        """
        return write_page(path, self.html(profile))

    def to_json(self) -> dict[str, object]:
        """Plain data: dicts, lists, strings and numbers."""
        return {
            "function": self.function,
            "graph_count": self.graph_count,
            "break_count": self.break_count,
            "op_count": self.op_count,
            "frames": [f.to_json() for f in self.frames],
            "breaks": [b.to_json() for b in self.breaks],
            "recompiles": [r.to_json() for r in self.recompiles],
            "kernels": [k.name for k in self.kernels],
        }

    def __str__(self) -> str:
        lines = [
            f"{self.function}: {_count(self.graph_count, 'graph')}, "
            f"{_count(self.break_count, 'break')}, {_count(self.op_count, 'op')}"
        ]
        for number, item in enumerate(self.breaks, 1):
            lines += ["", f"Break {number}: {item}"]
        for number, frame in enumerate(self.frames, 1):
            lines += ["", f"Piece {number}: {frame.place}"]
            if frame.note:
                lines.append(f"  {frame.note}")
            if frame.graph is not None:
                lines.append(f"  Graph, {_count(frame.op_count(), 'op')}:")
                lines += _indented(frame.graph.code)
            if frame.guards:
                lines.append("  Guards:")
                lines += _indented(frame.guards)
            if frame.kernels:
                lines.append("  Kernels: " + ", ".join(k.name for k in frame.kernels))
            lines += [f"  {note}" for note in frame.notes]
        for note in self.recompiles:
            lines += ["", f"Recompiled: {note}"]
        return "\n".join(lines)


def _put_times(data: dict[str, Any], profile: profiler.profile) -> None:
    """Give kernels the mean time of their launches, where the profiler has seen any."""
    spent = {
        event.key: event.device_time_total * 1e-6 / event.count
        for event in profile.key_averages()
        if event.device_time_total and event.count
    }
    for piece in data["pieces"]:
        for schedule in piece["schedules"]:
            for kernel in schedule["kernels"]:
                if kernel["name"] in spent:
                    kernel["seconds"] = spent[kernel["name"]]


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.strip("\n").splitlines()]
