"""``recorder``: where the stages say what they do. It keeps the latest records, counts and times.

A stage opens a record or a phase around its work::

    with recorder.frame(FrameRecord("0/0", "f")) as record:
        with recorder.phase("trace"):
            ...
        record.ops = 3

Records that are under way belong to their thread, so a phase goes to the one that this thread has
opened last, and to nothing but the times where there is none. All of it happens while compiling:
calls of compiled code know nothing of it.
"""

from __future__ import annotations

import atexit
import itertools
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch.profiler import record_function

from torchsmith_guards._src.interruptions import deliver, is_interruption
from torchsmith_guards._src.records import debug_folder, trace_file
from torchsmith_guards._src.records.metrics import Metrics
from torchsmith_guards._src.records.rows import FrameRecord, GraphRecord, Phase, Record
from torchsmith_guards._src.records.trace_file import TraceWarning
from torchsmith_guards._src.torch_private import profiler_enabled

LIMIT = 64  # records that are kept unless somebody says otherwise
REPORT_VARIABLE = "TORCHSMITH_METRICS"


class _Open(threading.local):
    """Records under way in this thread, innermost last, each with its beginning and phases."""

    def __init__(self) -> None:
        self.records: list[tuple[Record, float, list[Phase]]] = []
        self.depth = 0


class Recorder:
    """See the module's docstring; there is one for the process."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._kept: deque[Record] = deque(maxlen=limit)
        self._counters: dict[str, dict[str, int]] = {}
        self._times: dict[str, list[float]] = {}
        self._lock = threading.Lock()
        self._open = _Open()
        self._frames = itertools.count()
        self._graphs = itertools.count()
        self._warned = False

    # --- what stages call ----------------------------------------------------------------------
    def frame_number(self) -> int:
        """The next number of a piece of code."""
        return next(self._frames)

    def graph_id(self) -> int:
        """The next number of a graph."""
        return next(self._graphs)

    @contextmanager
    def frame(self, record: FrameRecord) -> Iterator[FrameRecord]:
        """Keep ``record``, filled in within the ``with`` block; what is raised there is noted."""
        label = f"torchsmith compile {record.function} [{record.compile_id}]"
        self.count("frames", "total")
        with self._record(record, label):
            yield record

    @contextmanager
    def graph(self, record: GraphRecord) -> Iterator[GraphRecord]:
        """The same for a graph. It is joined to the frame under way, unless it names another.

        Where the innermost record of this thread is that of a graph of the same kind, the two are
        one: a tracer has opened it, and its backend goes on with it.
        """
        known = self.current_graph()
        if known is not None and known.kind == record.kind:
            yield known
            return
        frame = self.current_frame()
        if frame is not None and not record.compile_id:
            record.compile_id = frame.compile_id
        self.count("graphs", "total")
        label = f"torchsmith {record.kind} graph {record.graph_id} [{record.compile_id}]"
        if frame is not None and frame.compile_id == record.compile_id:
            frame.graph_ids = (*frame.graph_ids, record.graph_id)
        with self._record(record, label):
            yield record

    @contextmanager
    def _record(self, record: Record, label: str) -> Iterator[None]:
        record.started = time.time()
        begin = time.perf_counter()
        phases: list[Phase] = []
        opened = self._open
        before, opened.depth = opened.depth, 0
        opened.records.append((record, begin, phases))
        failure: BaseException | None = None
        try:
            with profiler_range(label):
                yield
        except BaseException as error:
            failure = error
            record.outcome = record.outcome or "failed"
            record.failure = record.failure or type(error).__name__
            record.reason = record.reason or _first_line(error)
            if isinstance(record, FrameRecord):
                record.failure_line = str(getattr(error, "place", None) or "")
            raise
        finally:
            opened.records.pop()
            opened.depth = before
            record.seconds = time.perf_counter() - begin
            record.phases = tuple(sorted(phases, key=lambda p: (p.start, p.depth)))
            self._keep(record, failure)
            failure = None  # its traceback leads to this frame

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time of a stage, also where it raises."""
        deliver()
        opened = self._open
        opened.depth += 1
        begin = time.perf_counter()
        try:
            with profiler_range(f"torchsmith {name}"):
                yield
        finally:
            seconds = time.perf_counter() - begin
            opened.depth -= 1
            with self._lock:
                self._times.setdefault(name, []).append(seconds)
            if opened.records:
                _, start, phases = opened.records[-1]
                phases.append(Phase(name, begin - start, seconds, opened.depth))

    def count(self, category: str, key: str, number: int = 1) -> None:
        """Add to a counter."""
        with self._lock:
            keys = self._counters.setdefault(category, {})
            keys[key] = keys.get(key, 0) + number

    def current_frame(self) -> FrameRecord | None:
        """The frame that this thread is compiling."""
        return next((r for r, *_ in reversed(self._open.records) if type(r) is FrameRecord), None)

    def current_graph(self) -> GraphRecord | None:
        """The graph that this thread is compiling."""
        record = self._open.records[-1][0] if self._open.records else None
        return record if isinstance(record, GraphRecord) else None

    @property
    def detailed(self) -> bool:
        """Whether somebody wants the texts: a trace or a debug folder is on."""
        return bool(os.environ.get(trace_file.VARIABLE)) or self.debugging

    @property
    def debugging(self) -> bool:
        """Whether a debug folder is on: every stage's result is wanted."""
        return bool(os.environ.get(debug_folder.VARIABLE))

    @contextmanager
    def safely(self, what: str) -> Iterator[None]:
        """What goes wrong within is one warning for the process, and no failure of the user's."""
        try:
            yield
        except Exception as error:
            if is_interruption(error) or os.environ.get("TORCHSMITH_STRICT") == "1":
                raise
            if not self._warned:
                self._warned = True
                problem = f"{what} is incomplete: {type(error).__name__}: {error}"
                text = f"torchsmith: {problem}. The program is not affected; please report it"
                warnings.warn(text, TraceWarning, stacklevel=3)

    def _keep(self, record: Record, failure: BaseException | None) -> None:
        with self._lock:
            name = f"{trace_file.kind_of(record)} in all"
            self._times.setdefault(name, []).append(record.seconds)
            self._kept.append(record)
        if record.outcome:
            kind = "frames" if isinstance(record, FrameRecord) else "graphs"
            self.count(kind, "ok" if record.outcome == "compiled" else record.outcome)
        with self.safely("the trace"):
            writer = trace_file.writer()
            if writer is not None:
                writer.write(trace_file.kind_of(record), record.to_json())
            if self.debugging:
                debug_folder.write_record(record, failure)

    # --- what users call -----------------------------------------------------------------------
    def metrics(self) -> Metrics:
        """A copy of everything as it is now."""
        with self._lock:
            kept = tuple(self._kept)
            counters = {name: dict(keys) for name, keys in self._counters.items()}
            times = {name: tuple(spent) for name, spent in self._times.items()}
        frames = tuple(r for r in kept if isinstance(r, FrameRecord))
        graphs = tuple(r for r in kept if isinstance(r, GraphRecord))
        return Metrics(frames, graphs, counters, times)

    def set_limit(self, limit: int) -> None:
        """Keep the latest ``limit`` records from now on; 0 keeps none.

        Raises:
            ValueError: ``limit`` is negative.
        """
        with self._lock:
            self._kept = deque(self._kept, maxlen=limit)

    def clear(self) -> None:
        """Forget records, counters and times."""
        with self._lock:
            self._kept.clear()
            self._counters.clear()
            self._times.clear()

    def at_exit(self) -> None:
        """The last lines of the traces, and the report if ``TORCHSMITH_METRICS=1`` asks for it."""
        metrics = self.metrics()
        for writer in trace_file.written():
            writer.write("counters", {"counters": metrics.counters})
        if os.environ.get(REPORT_VARIABLE) == "1" and metrics.counters:
            sys.stderr.write(f"{metrics}\n")


def profiler_range(label: str) -> AbstractContextManager[object]:
    """A range of the profiler that is running, if one is."""
    return record_function(label) if profiler_enabled() else nullcontext()


def _first_line(error: BaseException) -> str:
    try:
        return str(error).partition("\n")[0][:500]
    except Exception:  # noqa: BLE001 - the user's ``__str__`` raises
        return ""


recorder = Recorder()


def metrics() -> Metrics:
    """What this process has compiled: the latest records, counters and times, as they are now."""
    return recorder.metrics()


def clear_metrics() -> None:
    """Forget records, counters and times; compiled code stays."""
    recorder.clear()


def set_metrics_limit(limit: int) -> None:
    """Keep the latest ``limit`` records (64 unless told otherwise); 0 keeps none.

    Raises:
        ValueError: ``limit`` is negative.
    """
    recorder.set_limit(limit)


atexit.register(recorder.at_exit)
