"""``TORCHSMITH_TRACE=folder``: records as JSON lines, one file for each process.

A file is called ``PID-STARTED.jsonl``. Each line is an object with the key ``type``:

* ``process``, the first line: ``format`` (1), ``pid``, ``started`` (seconds since 1970), ``argv``,
  ``python``, ``torch``, ``platform``.
* ``frame`` and ``graph``: the fields of ``FrameRecord`` and ``GraphRecord``, written when the
  compile is over. A graph's line comes before its frame's, a backward graph's later;
  ``compile_id`` joins them. ``texts`` hold sources and ``lines`` the user's line of each node.
* ``counters``, at exit: ``counters``, category -> key -> count; the last such line is the valid
  one. A process that was killed has none.

Readers skip lines and fields that they do not know. A folder that cannot be written costs one
warning; the program goes on, and nothing more is written there by this process.
"""

from __future__ import annotations

import json
import os
import platform
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord, Record

FORMAT = 1
VARIABLE = "TORCHSMITH_TRACE"


class TraceWarning(UserWarning):
    """A folder for traces or debug files cannot be used; the program goes on without it."""


def unwritable(what: str, folder: str, error: OSError, variable: str) -> str:
    """What is told of a folder that cannot be written."""
    return (
        f"torchsmith: no {what} in {folder}: {error.strerror or error}. The program goes on; "
        f"give {variable} a folder that can be written and has room"
    )


class TraceWriter:
    """Appends to this process's file in one folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.pid = os.getpid()
        self.broken = False
        self._file = -1
        self._lock = threading.Lock()

    def write(self, kind: str, row: Mapping[str, object]) -> None:
        """Append one line; failures are told once and end the trace."""
        try:
            with self._lock:
                if self.broken:
                    return
                if self._file < 0:
                    self._file = self._open()
                self._line(kind, row)
        except OSError as error:
            self.broken = True
            text = unwritable("trace", self.folder, error, VARIABLE)
            warnings.warn(text, TraceWarning, stacklevel=2)

    def _open(self) -> int:
        started = time.time()
        os.makedirs(self.folder, exist_ok=True)
        name = os.path.join(self.folder, f"{self.pid}-{int(started * 1e6):x}.jsonl")
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        about = {
            "format": FORMAT,
            "pid": self.pid,
            "started": started,
            "argv": list(map(str, sys.argv)),
            "python": platform.python_version(),
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
            "platform": sys.platform,
        }
        self._line("process", about)
        return self._file

    def _line(self, kind: str, row: Mapping[str, object]) -> None:
        # Surrogates of undecodable file names, and whatever else is no text, are escaped.
        text = json.dumps({"type": kind, **row}, default=repr)
        data = f"{text}\n".encode("ascii", "backslashreplace")
        while data:
            data = data[os.write(self._file, data) :]


_writers: dict[tuple[int, str], TraceWriter] = {}


def writer() -> TraceWriter | None:
    """The writer of the folder that the environment names now, if it names one."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    key = os.getpid(), folder
    found = _writers.get(key)
    return found if found is not None else _writers.setdefault(key, TraceWriter(folder))


def written() -> list[TraceWriter]:
    """The writers of this process that have begun a file."""
    return [w for (pid, _), w in _writers.items() if pid == os.getpid() and w._file >= 0]


@dataclass(slots=True)
class ProcessTrace:
    """One trace file, read.

    Attributes:
        file: its path.
        process: the first line.
        frames, graphs: records in the order in which they were written.
        counters: category -> key -> count; empty if the process did not end by itself.
        skipped: lines that could not be read.
    """

    file: str
    process: dict[str, object] = field(default_factory=dict)
    frames: list[FrameRecord] = field(default_factory=list)
    graphs: list[GraphRecord] = field(default_factory=list)
    counters: dict[str, dict[str, int]] = field(default_factory=dict)
    skipped: int = 0

    def graphs_of(self, frame: FrameRecord) -> list[GraphRecord]:
        """The graphs that belong to ``frame``."""
        return [g for g in self.graphs if g.compile_id == frame.compile_id]


def read_trace(path: str | os.PathLike[str]) -> list[ProcessTrace]:
    """The traces in a folder, or in one file, oldest process first.

    Raises:
        FileNotFoundError: there is no such file, or no trace in the folder.
    """
    place = Path(path)
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    if not files:
        raise FileNotFoundError(f"no trace (*.jsonl) in {place}")
    traces = [_read(file) for file in files]
    return sorted(traces, key=lambda t: float(str(t.process.get("started", 0))))


def _read(file: Path) -> ProcessTrace:
    trace = ProcessTrace(str(file))
    for line in file.read_bytes().splitlines():
        try:
            row = json.loads(line)
            kind = row.pop("type")
            if kind == "process":
                trace.process = row
            elif kind == "frame":
                trace.frames.append(FrameRecord.from_json(row))
            elif kind == "graph":
                trace.graphs.append(GraphRecord.from_json(row))
            elif kind == "counters":
                trace.counters = row["counters"]
        except (ValueError, TypeError, KeyError, AttributeError):
            trace.skipped += 1  # cut off where a process or a disk ended
    return trace


def kind_of(record: Record) -> str:
    """The ``type`` of a record's line."""
    return "frame" if isinstance(record, FrameRecord) else "graph"
