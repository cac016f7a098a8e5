"""``Metrics``: a copy of records, counters and times, as ``metrics()`` gives it; prints as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, overload

from torchsmith_guards._src.records import tables
from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord


@dataclass(frozen=True, slots=True)
class Metrics:
    """What this process has compiled, as far as it is kept.

    Attributes:
        frames, graphs: the latest records, oldest first.
        counters: category -> key -> count, since the process began or was told to forget:
            ``frames`` and ``graphs`` (``total``, ``ok``, ``eager``, ``failed``), ``stats``
            (``calls_captured``, ``unique_graphs``), ``graph_break`` (by reason), ``recompiles``
            (by function), ``cache`` (``hit``, ``miss``, ``bypass``).
        times: stage -> seconds of each run, in order.
    """

    frames: tuple[FrameRecord, ...]
    graphs: tuple[GraphRecord, ...]
    counters: Mapping[str, Mapping[str, int]]
    times: Mapping[str, tuple[float, ...]]

    def counter(self, category: str, key: str) -> int:
        """One count; 0 for what never happened."""
        return self.counters.get(category, {}).get(key, 0)

    def seconds(self) -> dict[str, float]:
        """Stage -> seconds in all. What runs within another stage is in both."""
        return {name: sum(spent) for name, spent in self.times.items()}

    def time_report(self) -> str:
        """One line: each stage and its seconds."""
        parts = (f"{name}:{spent:.5f}" for name, spent in self.seconds().items())
        return " ".join(("TIMING:", *parts))

    @overload
    def compile_times(self, form: Literal["text"] = ..., *, aggregate: bool = ...) -> str: ...
    @overload
    def compile_times(
        self, form: Literal["csv"], *, aggregate: bool = ...
    ) -> tuple[list[str], list[str]]: ...

    def compile_times(
        self, form: Literal["text", "csv"] = "text", *, aggregate: bool = False
    ) -> str | tuple[list[str], list[str]]:
        """The times of each stage as a table, or as a header and its values for a CSV file.

        Args:
            form: ``text`` (seconds with 4 decimals) or ``csv`` (6 decimals).
            aggregate: sums instead of the single runs.

        Raises:
            ValueError: another form.
        """
        if form not in ("text", "csv"):
            raise ValueError(f"unknown form {form!r}; valid: text, csv")
        digits = 4 if form == "text" else 6
        shown = {
            name: ", ".join(f"{t:.{digits}f}" for t in ([sum(spent)] if aggregate else spent))
            for name, spent in self.times.items()
        }
        if form == "csv":
            return list(shown), list(shown.values())
        return "Compile times (s)\n" + tables.table(("stage", "seconds"), list(shown.items()))

    def recompile_summary(self) -> str:
        """Each function that was compiled again, with what changed; see ``tables.recompiles``."""
        return tables.recompiles(self.frames)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "frames": [f.to_json() for f in self.frames],
            "graphs": [g.to_json() for g in self.graphs],
            "counters": {name: dict(keys) for name, keys in self.counters.items()},
            "times": {name: list(spent) for name, spent in self.times.items()},
        }

    def __str__(self) -> str:
        return report(self.frames, self.graphs, self.counters)


def report(
    frames: Sequence[FrameRecord],
    graphs: Sequence[GraphRecord],
    counters: Mapping[str, Mapping[str, int]],
) -> str:
    """Frames, graphs, breaks and recompiles as one text."""
    parts = [tables.frames(frames), tables.graphs(graphs)]
    parts += [tables.breaks(frames), tables.recompiles(frames)]
    if counters:
        parts.append("Counters\n" + tables.counters(counters))
    return "\n\n".join(parts)
